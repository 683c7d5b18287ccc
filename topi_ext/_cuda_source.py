"""CUDA code between TVM, which writes it, and the compiler.

TVM calls a single function for this, which anybody may register, at any time. So before each build it is
looked whether that is still the one of this module, which calls the other one first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

from ._tvm import are_same, register_function

CALLBACK, BUILD = "tvm_callback_cuda_postproc", "target.build.cuda"
CHANGED = "// changed by topi_ext\n"  # a callback may call the one that was there before

_changes: list[Callable[[str], str]] = []
_registered: list[Any] = []  # the functions of this module, one of which somebody may register again


def change_by(change: Callable[[str], str]) -> None:
    """Have all code changed before it is compiled, after what others have registered for that."""
    if not _changes:
        _look_before_each_build()
    _changes.append(change)
    _take_the_place()


def _look_before_each_build() -> None:
    build = tvm.get_global_func(BUILD, allow_missing=True)
    if build is None:
        return

    @register_function(BUILD)
    def build_changed(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        _take_the_place()
        return build(mod, target)


def _take_the_place() -> None:
    """Of a callback that somebody else has registered, and that is called before the changes."""
    theirs = tvm.get_global_func(CALLBACK, allow_missing=True)
    if theirs and any(are_same(theirs, ours) for ours in _registered):
        return

    @register_function(CALLBACK)
    def changed(code: str, target: tvm.target.Target) -> str:
        return _changed(str(theirs(code, target)) if theirs else code)

    _registered.append(tvm.get_global_func(CALLBACK))


def _changed(code: str) -> str:
    if CHANGED in code:
        return code
    for change in _changes:
        code = change(code)
    return CHANGED + code
