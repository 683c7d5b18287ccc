"""TVM looks for free variables in each function that is put into a module, of which it makes a copy first.

All its passes put functions into modules: that takes two fifths of the time to compile a network of unknown
sizes, and an eighth of a pipeline's. Inside `unchecked`, it does not: whoever enters checks before or after.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tvm
from tvm import relay

CHECK = "relay.ir.WarnIfMalformed"  # which raises an error


class _State(threading.local):
    are_checked = True


_state = _State()
_stock = tvm.get_global_func(CHECK)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Inside, TVM takes functions as they are, in this thread."""
    before, _state.are_checked = _state.are_checked, False
    try:
        yield
    finally:
        _state.are_checked = before


def check(mod: tvm.IRModule) -> None:
    """Raise TVM's own error where a function of Relay has a variable that nothing defines."""
    for function in mod.functions.values():
        if isinstance(function, relay.Function):
            _stock(mod, function)


@tvm.register_func(CHECK, override=True)
def _check(mod: tvm.IRModule, function: relay.Function) -> None:
    if _state.are_checked:
        _stock(mod, function)
