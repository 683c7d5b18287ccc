"""CUDA code between TVM, which writes it, and the compiler."""

from __future__ import annotations

from collections.abc import Callable

import tvm

from ._tvm import register_function

CALLBACK = "tvm_callback_cuda_postproc"


def change_by(change: Callable[[str], str]) -> None:
    """Have all code changed before it is compiled, after what else has been registered for that."""
    others = tvm.get_global_func(CALLBACK, allow_missing=True)

    @register_function(CALLBACK)
    def changed(code: str, target: tvm.target.Target) -> str:
        return change(str(others(code, target)) if others else code)
