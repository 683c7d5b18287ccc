"""What is given for a module: TVM refuses anything else with a trace of its C++ code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from topi_ext.bootstrap import tvm_in_use  # before tvm

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


def _have_passes_check_modules(base: Any) -> None:
    """All passes do, also TVM's own, since a user's Sequential is one of these."""
    call: Callable[[Any, tvm.IRModule], tvm.IRModule] = base.__call__

    @functools.wraps(call)
    def checked(self: Any, mod: tvm.IRModule) -> tvm.IRModule:
        check_module(mod, self.info.name)
        return call(self, mod)

    base.__call__ = checked


def _have_passes_refuse_copies(base: Any) -> None:
    """TVM makes one without what it does, and calls that: the process ends."""

    def refused(self: Any, _protocol: int) -> Any:
        raise TypeError(f"{self.info.name}: a pass can be neither copied nor pickled: make it anew there")

    base.__reduce_ex__ = refused


if tvm_in_use.compiles:
    _have_passes_check_modules(tvm.transform.Pass)
    _have_passes_refuse_copies(tvm.transform.Pass)
