"""What this machine's processor has, as options of an LLVM target."""

from __future__ import annotations

import tvm

# LLVM's names of processors, the best first, and the features that each requires.
SKYLAKE = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "f16c", "bmi2", "adx"}
PROCESSORS = {
    "cascadelake": SKYLAKE | {"avx512vnni"},  # by which int8 is multiplied twice as fast
    "skylake-avx512": SKYLAKE,
    "haswell": {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"},
    "nehalem": {"sse4.1", "sse4.2", "popcnt"},
}


def options_of_processor() -> dict[str, str | int]:
    """The vector extensions of this processor, and how much LLVM optimizes."""
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    found = {name for name, has in features().items() if has} if features else set()
    processor = next((name for name, needed in PROCESSORS.items() if needed <= found), None)
    # At LLVM's level 3, TVM's default, a detector's kernels take up to six times as long to compile, and none
    # of them runs faster.
    return {**({"mcpu": processor} if processor else {}), "opt-level": 2}
