"""Where in memory the elements of a tensor are that operators have only moved, as NumPy's views tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tvm import relay

from ..engine.expressions import constant, known_shape, op_name, static_shape
from .evaluate import NotFolded, move
from .operators import keeps_order

MOVES = ("broadcast_to", "layout_transform", "split", "strided_slice", "take", "transpose")


class Places(NamedTuple):
    """The places of a tensor's elements among those of the source; a stride is 0 for an extent of 1."""

    source: relay.Expr
    first: int
    strides: tuple[int, ...]


def places(expr: relay.Expr) -> Iterator[Places]:
    """The places of a tensor's elements in each tensor from which it was moved, the nearest one first."""
    chain = [expr]
    while _moved_from(chain[-1]) is not None:
        chain.append(_moved_from(chain[-1]))
        found = _in_source(chain)
        if found is not None:
            yield found


def _moved_from(expr: relay.Expr) -> relay.Expr | None:
    """The tensor whose elements an operator moves; a field of a split counts as one operator."""
    call = expr.tuple_value if isinstance(expr, relay.TupleGetItem) else expr
    if (op_name(call) == "split") != isinstance(expr, relay.TupleGetItem):
        return None
    if not keeps_order(call) and op_name(call) not in MOVES:
        return None
    return call.args[0] if None not in map(static_shape, (call.args[0], expr)) else None


def _in_source(chain: list[relay.Expr]) -> Places | None:
    """The places in the last tensor of a chain; None where they have no strides."""
    memory = np.empty(known_shape(chain[-1]), "int8")  # an element is a byte; none is read or written
    view = memory
    for expr in reversed(chain[:-1]):
        try:
            view = _moved(expr, view)
        except NotFolded:
            return None
        if not np.may_share_memory(view, memory):  # it was copied
            return None
    first = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    strides = (0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides))
    return Places(chain[-1], first, tuple(strides))


def _moved(expr: relay.Expr, view: np.ndarray) -> np.ndarray:
    """A view of what an operator makes of another one."""
    if isinstance(expr, relay.TupleGetItem):
        return move(expr.tuple_value, expr.tuple_value.checked_type, [view])[expr.index]
    if op_name(expr) != "take":
        return move(expr, expr.checked_type, [view])
    index, axis = constant(expr.args[1]), expr.attrs.axis
    if index is None or index.ndim or axis is None or not 0 <= int(index) < view.shape[int(axis)]:
        raise NotFolded("of several, or of those that only the run time knows")
    return view[(slice(None),) * (int(axis) % view.ndim) + (int(index),)]
