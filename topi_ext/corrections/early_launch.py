"""Kernels that may be launched before the kernel in front of them has ended, and wait for its results.

The start of a kernel takes a microsecond, as long as many a kernel of a small network takes itself. On GPUs
of sm_90 and newer, a CUDA graph may start one while the one before it ends ("programmatic dependent launch"),
if the kernel itself waits, as each one does that `with_waits` has written. Elsewhere its wait ends at once.

A module of such kernels has the variable `MARK`, by which `tvm_passes.runtime` knows that it may do so.
"""

from __future__ import annotations

import re

FIRST_ARCH = 90
MARK = "tvm_passes_kernels_wait"
DEFINITION = re.compile(r'^(extern "C" __global__ void [^;{]*)\{$', re.MULTILINE)
# The next kernel may start once all blocks of this one have: it waits for their end, where this one's writes
# are visible, and so for the end of all that this one has waited for.
WAIT = 'asm volatile("griddepcontrol.launch_dependents;"); asm volatile("griddepcontrol.wait;" ::: "memory");'


def with_waits(code: str, arch: int) -> str:
    """TVM's source of kernels, each of which first waits for those before it.

    Their pointers are not `__restrict__` any more: what is read through such pointers is known not to change
    while a kernel runs, so that it may be read before the wait.
    """
    if arch < FIRST_ARCH:
        return code
    code = DEFINITION.sub(rf"\1{{\n  {WAIT}", code.replace("__restrict__ ", ""))
    return f'extern "C" __device__ int {MARK} = 1;\n{code}'
