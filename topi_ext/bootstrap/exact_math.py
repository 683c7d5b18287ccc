"""CUDA's arithmetic as IEEE 754 has it, as kernels expect that give the same bits on every target.

TVM 0.27 compiles all CUDA kernels with `--use_fast_math`, under which divisions, roots and denormal numbers
are not exact. It reads these variables whenever it compiles.
"""

import os


def set_exact_math() -> None:
    """Set what the user's environment does not."""
    os.environ.setdefault("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
    os.environ.setdefault("TVM_CUDA_NVRTC_EXTRA_OPTS", "--ftz=false --prec-div=true --prec-sqrt=true")
