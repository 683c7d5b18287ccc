"""Kernels of CUDA that may be launched while those before them still run, and wait by themselves.

On GPUs since Hopper, each kernel that TVM compiles first waits for the kernels that it depends on
(`griddepcontrol.wait`: until they have ended, and what they wrote can be seen), and lets those that depend on
it be launched. Nothing changes where a kernel is launched as usual. Where a graph says that it may begin
earlier (`tvm_passes.runtime.early_launch`), its launch takes place behind the work before it.

`MARK` is a variable of each module of such kernels, so that those compiled elsewhere, which do not wait, are
told apart.
"""

from __future__ import annotations

import re

import tvm

from ._tvm import register_function
from .conv2d_nhwc.cuda import arch_of

MARK = "tvm_passes_kernels_wait"
SINCE = 90  # GPUs of compute capability 9.0
_HEAD = re.compile(r'^extern "C" __global__ [^{};]*\{', re.MULTILINE)
_WAIT = """
#ifndef __EMULATED_CUDA__
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif"""


def waiting(code: str) -> str:
    """This CUDA code, with kernels that wait."""
    code, count = _HEAD.subn(lambda head: head.group() + _WAIT, code)
    mark = f'#ifndef __EMULATED_CUDA__\nextern "C" __device__ int {MARK} = {count};\n#endif\n'
    return mark + code if count else code


def _provide_in_cuda_code() -> None:
    """Register it to run before each compilation, after what else has been registered there."""
    name = "tvm_callback_cuda_postproc"
    others = tvm.get_global_func(name, allow_missing=True)

    @register_function(name)
    def let_kernels_wait(code: str, target: tvm.target.Target) -> str:
        code = str(others(code, target)) if others else code
        return waiting(code) if arch_of(target) >= SINCE else code


_provide_in_cuda_code()
