"""What is given for a module: TVM refuses anything else with a trace of its C++ code."""

from __future__ import annotations

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm


def check_module(mod: object, caller: str) -> None:
    """Raise TypeError with what to give instead, unless it is a module."""
    if isinstance(mod, tvm.IRModule):
        return
    instead = "give what an importer of `frontends` returns"
    if isinstance(mod, tuple):
        instead = "give the first of what an importer returns, and the second, its parameters, by itself"
    elif isinstance(mod, tvm.ir.BaseFunc):
        instead = "give tvm.IRModule.from_expr(...) of it"
    raise TypeError(f"{caller}: mod must be a tvm.IRModule, not {type(mod).__name__}: {instead}")
