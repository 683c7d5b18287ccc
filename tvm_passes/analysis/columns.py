"""Columns of matrices: detections are often rows of boxes, scores and class ids side by side."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay

from ..engine.expressions import constant, op_name, type_of


class Column(NamedTuple):
    """A column of a matrix, or a vector, which has one."""

    of: relay.Expr
    place: int = 0


def source_of(column: Column) -> Column:
    """The same column before it was put beside others, taken from among them, or reshaped."""
    below = _before(column)
    while below is not None:
        column, below = below, _before(below)
    return column


def is_whole(expr: relay.Expr) -> bool:
    """Whether all elements of a vector, or of the only column of a matrix, are integers cast to floats."""
    column = Column(expr)
    while "float" in type_of(column.of).dtype:
        below = _before(column)
        if below is None and op_name(column.of) in ("cast", "take") and _takes_whole_rows(column.of):
            below = Column(column.of.args[0], column.place)
        if below is None:
            return False
        column = below
    return True


def _takes_whole_rows(call: relay.Call) -> bool:
    if op_name(call) == "cast":
        return True
    axis, rank = call.attrs.axis, len(type_of(call.args[0]).shape)
    return axis is not None and int(axis) % rank == 0 and len(type_of(call).shape) == rank


def _before(column: Column) -> Column | None:
    """The column that this one is, one operator earlier."""
    expr, index = column
    if isinstance(expr, relay.TupleGetItem):
        return _before_split(expr, index)
    name, rank = op_name(expr), len(type_of(expr).shape)
    data = expr.args[0] if isinstance(expr, relay.Call) and expr.args else None
    if name == "take" and rank == 1 and expr.attrs.axis is not None:
        place, count = constant(expr.args[1]), width(data)
        is_of_columns = len(type_of(data).shape) == 2 and int(expr.attrs.axis) % 2 == 1
        if is_of_columns and place is not None and count is not None:
            return Column(data, int(place) % count)
    if name == "strided_slice" and rank == 2:
        first = _first_column(expr)
        return None if first is None else Column(data, first + index)
    if name in ("squeeze", "reshape", "expand_dims") and width(expr) == width(data) == 1:
        return Column(data)
    if name == "concatenate" and rank == 2 and int(expr.attrs.axis) % 2 == 1:
        return _part(data, index)
    return None


def _before_split(item: relay.TupleGetItem, index: int) -> Column | None:
    split = item.tuple_value
    if op_name(split) != "split" or len(type_of(item).shape) != 2 or int(split.attrs.axis) % 2 != 1:
        return None
    widths = [width(relay.TupleGetItem(split, at)) for at in range(item.index)]
    known = [count for count in widths if count is not None]
    return Column(split.args[0], sum(known) + index) if len(known) == len(widths) else None


def _part(parts: relay.Tuple, index: int) -> Column | None:
    for part in parts.fields:
        count = width(part)
        if count is None or index < count:
            return None if count is None else Column(part, index)
        index -= count
    return None


def width(expr: relay.Expr) -> int | None:
    """The number of columns."""
    shape = type_of(expr).shape
    return 1 if len(shape) == 1 else getattr(shape[1], "value", None) if len(shape) == 2 else None


def _first_column(call: relay.Call) -> int | None:
    """The first of the columns that a slice takes from all rows; None if it takes some rows or columns."""
    attrs, data = call.attrs, call.args[0]
    count, rows = width(data), [type_of(each).shape[0] for each in (call, data)]
    if count is None or any(int(step) != 1 for step in attrs.strides or ()):
        return None
    axes = range(len(attrs.begin)) if attrs.axes is None else [int(axis) % 2 for axis in attrs.axes]
    if 0 in axes and getattr(rows[0], "value", -1) != getattr(rows[1], "value", -2):
        return None
    firsts = [int(begin) for axis, begin in zip(axes, attrs.begin) if axis == 1]
    return firsts[0] % count if firsts else 0
