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


def check_has_main(mod: tvm.IRModule, caller: str) -> None:
    """Raise ValueError unless a module has the function that is compiled."""
    names = [str(name.name_hint) for name in mod.get_global_vars()]
    if "main" not in names:
        raise ValueError(
            f"{caller}: mod has no function main, but {', '.join(names) or 'none at all'}: give a module "
            "whose network is main, such as tvm.IRModule.from_expr(...) of it"
        )
