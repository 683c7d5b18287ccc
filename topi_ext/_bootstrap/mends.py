"""Corrections that TVM needs on today's machines, made from outside: no installed file is edited."""

from __future__ import annotations

import functools
import os

from . import cuda_schedules

HALF_TANH = "CUDA_UNSUPPORTED_HALF_MATH_UNARY(htanh, tanhf)"


def apply() -> None:
    """Apply every mend; the user's own settings and callbacks stay."""
    _stay_off_the_network()
    _compile_half_with_new_cuda()
    _ask_once_how_tvm_was_built()
    cuda_schedules.apply()


def _stay_off_the_network() -> None:
    """Building for a target makes AutoTVM download tuned logs, unless it is told not to."""
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")


def _compile_half_with_new_cuda() -> None:
    """TVM's fp16 header defines `htanh`, which CUDA has had itself since 12.8: define it only before."""
    import tvm

    if tvm.get_global_func("tvm_callback_cuda_postproc", allow_missing=True):
        return

    @tvm.register_func("tvm_callback_cuda_postproc")
    def define_htanh_before_cuda_12_8(code: str, _target: object) -> str:
        older = "__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1208"
        return code.replace(HALF_TANH, f"#if {older}\n{HALF_TANH}\n#endif")


def _ask_once_how_tvm_was_built() -> None:
    """It asks at each length of each tensor that it lowers: seconds of the minute that a detector takes."""
    from tvm.relay.backend import te_compiler

    te_compiler.libinfo = functools.lru_cache(maxsize=None)(te_compiler.libinfo)
