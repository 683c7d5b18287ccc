"""Operators that create a tensor with as many rows as a padded one has."""

from __future__ import annotations

import numpy as np

from tvm import relay

from ...analysis.shape_values import Dim
from ...engine.expressions import scalar
from .padded import Became, NotStatic, Padded, Rows
from .walk import Walk


def full(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    if isinstance(args[0], Padded):
        raise NotStatic("it is filled with a value computed from a row")
    shape, rows, axis = _shape_with_rows(walk, call.args[1])
    return Padded(walk.typed(relay.full(walk.expr(args[0]), shape, call.checked_type.dtype)), rows, axis)


def broadcast_to(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data = args[0]
    shape, rows, axis = _shape_with_rows(walk, call.args[1], data.rows if isinstance(data, Padded) else None)
    if isinstance(data, Padded) and (data.rows, data.axis - data.rank) != (rows, axis - len(shape)):
        raise NotStatic("it is broadcast to other rows")
    return Padded(walk.typed(relay.broadcast_to(walk.expr(data), shape)), rows, axis)


def arange(walk: Walk, call: relay.Call, _args: list[Became]) -> Padded:
    (stop,) = walk.known_lengths(call.args[1])
    rows = walk.rows(stop) if isinstance(stop, Dim) else None
    if (scalar(call.args[0]), scalar(call.args[2])) != (0, 1) or rows is None:
        raise NotStatic("it counts something other than rows")
    numbers = np.arange(rows.capacity).astype(call.checked_type.dtype)
    return Padded(walk.typed(relay.const(numbers, call.checked_type.dtype)), rows, places=rows)


def _shape_with_rows(
    walk: Walk, expr: relay.Expr, expected: Rows | None = None
) -> tuple[list[int], Rows, int]:
    """The lengths in a shape, the axis that rows lie along, and those rows: the `expected` if as many."""
    values = walk.known_lengths(expr)
    depending = [axis for axis, value in enumerate(values) if not walk.is_fixed(value)]
    if len(depending) != 1:
        raise NotStatic("a shape depends on the number of valid rows")
    (axis,) = depending
    if expected is not None and walk.counted(values[axis]) == expected.counted:
        values[axis] = expected.capacity
        return [walk.length(value) for value in values], expected, axis
    rows = walk.rows(values[axis]) if isinstance(values[axis], Dim) else None
    if rows is None:
        raise NotStatic("a shape depends on the number of valid rows")
    return [walk.length(value) for value in values], rows, axis
