"""What passes refuse, all of them: TVM's own, too, since a user's Sequential is one of these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm

from .module_argument import check_module


def guard_passes() -> None:
    _have_passes_check_modules(tvm.transform.Pass)
    _have_passes_refuse_copies(tvm.transform.Pass)


def _have_passes_check_modules(base: Any) -> None:
    """TVM refuses anything else with a trace of its C++ code."""
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
