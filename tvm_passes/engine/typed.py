"""Typed modules and their graphs, which a pass that changes nothing leaves to the next one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import tvm
from tvm import relay

from .graph import Graph, relay_functions


class Typed(NamedTuple):
    module: tvm.IRModule  # the caller's own, whose functions he may update
    graphs: dict[relay.GlobalVar, Graph]  # of its Relay functions


class _State(threading.local):
    is_remembering = False
    last: _Last | None = None


class _Last(NamedTuple):
    """What was typed last; while its functions are held, as here, no other has their addresses."""

    given: dict[int, int]
    typed: Typed
    held: object


_state = _State()


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Inside, a module whose functions are those of the last typed one is not typed, or walked, again."""
    if _state.is_remembering:
        yield
        return
    _state.is_remembering = True
    try:
        yield
    finally:
        _state.is_remembering, _state.last = False, None


def typed(mod: tvm.IRModule) -> Typed:
    """The module with types, and the graphs of its functions."""
    last = _state.last
    if last is None or addresses(mod) not in (last.given, addresses(last.typed.module)):
        module = relay.transform.InferType()(mod)
        of_relay = relay_functions(module)
        graphs = {name: Graph(function, len(of_relay) == 1) for name, function in of_relay.items()}
        # TVM has put copies of functions without types in the place of those that were given.
        last = _Last(addresses(mod), Typed(module, graphs), mod.functions)
        _state.last = last if _state.is_remembering else None
    return Typed(last.typed.module.clone(), last.typed.graphs)


def addresses(mod: tvm.IRModule) -> dict[int, int]:
    """The addresses of its functions, which are theirs while they are held, by those of their variables."""
    return {variable.handle.value: function.handle.value for variable, function in mod.functions.items()}
