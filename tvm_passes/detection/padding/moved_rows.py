"""Operators that keep padded rows intact, possibly along another axis or in another shape."""

from __future__ import annotations

import math

from tvm import relay

from ...analysis.shape_values import Element, shape_values
from ...engine.expressions import op_name
from .lengths import Length
from .padded import Became, NotStatic, Padded, Rows, all_of, in_a_row
from .walk import Walk, data_of


def transpose(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    axes = call.attrs.axes
    order = list(range(data.rank))[::-1] if axes is None else [int(axis) % data.rank for axis in axes]
    return walk.padded(call, args, data.rows, order.index(data.axis))


def expand_dims(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    at, new = int(call.attrs.axis), int(call.attrs.num_newaxis)
    at = at + data.rank + 1 if at < 0 else at
    return walk.padded(call, args, data.rows, data.axis + (new if at <= data.axis else 0))


def squeeze(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    if call.attrs.axis is None or any(int(axis) % data.rank == data.axis for axis in call.attrs.axis):
        raise NotStatic("it squeezes the rows")
    gone = sum(int(axis) % data.rank < data.axis for axis in call.attrs.axis)
    return walk.padded(call, args, data.rows, data.axis - gone)


def reshape(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data, lengths = data_of(args), None
    if op_name(call) == "dyn.reshape":
        lengths = _new_shape(walk, call.args[1])
        shape = [-1 if length is None else walk.length(length) for length in lengths]
        result = walk.typed(relay.reshape(data.expr, shape, bool(call.attrs.allowzero)))
    else:
        result = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    before, after = data.shape, walk.shape(result)
    for axis, dim in enumerate(call.checked_type.shape):
        # The rows lie along the first axis of unknown length with as many elements in front of it as before.
        if not hasattr(dim, "value") and math.prod(before[: data.axis]) == math.prod(after[:axis]):
            rows = _resized(data.rows, after[axis])
            if rows is not None and (lengths is None or _is_shape(walk, lengths, rows, axis)):
                return Padded(result, rows, axis)
    raise NotStatic("it mixes rows with other axes")


def _new_shape(walk: Walk, expr: relay.Expr) -> list[Element]:
    """The lengths of a reshape, at most one of which is -1 or unknown."""
    values = shape_values(walk.graph, expr)
    if values is None or sum(value is None or value == -1 for value in values) > 1:
        raise NotStatic("a shape depends on the number of valid rows")
    return list(values)


def _is_shape(walk: Walk, lengths: list[Element], rows: Rows, at: int) -> bool:
    """Whether no length but that at `at` depends on rows, and that one is the number of valid rows."""
    others = lengths[:at] + lengths[at + 1 :]
    if not all(map(walk.is_fixed, others)):
        return False
    follows = lengths[at] in (None, -1, 0)
    return follows or walk.counted(lengths[at]) == rows.counted


def _resized(rows: Rows, length: int) -> Rows | None:
    if length % rows.capacity == 0:
        return rows.repeated(length // rows.capacity)
    return rows.merged(rows.capacity // length) if rows.capacity % length == 0 else None


def concatenate(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Concatenate, or stack, which inserts an axis first."""
    (parts,) = args
    stacks = op_name(call) == "stack"
    if len(parts) > 1 and any(isinstance(part, Padded) and part.holds_moved for part in parts):
        raise NotStatic("it uses row indices, which padding changed")
    first = next(part for part in parts if isinstance(part, Padded))
    rank = first.rank + stacks
    at = int(call.attrs.axis) % rank
    if stacks or at != first.axis:
        if any(
            not isinstance(part, Padded) or (part.rows, part.axis) != (first.rows, first.axis)
            for part in parts
        ):
            raise NotStatic("the concatenated tensors have different valid rows")
        return walk.padded(call, args, first.rows, first.axis + (stacks and at <= first.axis))
    if any(isinstance(part, Padded) and part.axis != at for part in parts):
        raise NotStatic("the concatenated tensors are padded along different axes")
    rows = [part.rows if isinstance(part, Padded) else all_of(walk.shape(part)[at]) for part in parts]
    return walk.padded(call, args, in_a_row(rows), at)


def split(walk: Walk, call: relay.Call, args: list[Became]) -> tuple[Padded, ...]:
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it splits the rows")
    whole = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    number = len(call.checked_type.fields)
    return tuple(
        Padded(walk.typed(relay.TupleGetItem(whole, index)), data.rows, data.axis) for index in range(number)
    )


def pad_to_fixed_length(walk: Walk, call: relay.Call, args: list[Became]) -> relay.Expr:
    """A pad to as many rows whatever is detected: the padding is part of the result."""
    data, value = data_of(args), args[2]
    if isinstance(value, Padded) or not data.rows.are_first:
        raise NotStatic("it pads rows that are not the first ones, or with a value computed from a row")
    widths = walk.computed_lengths(call.args[1]).copy()
    before, after = widths[data.axis]
    total = Length.of(data.rows) + after
    others = [width for axis, pair in enumerate(widths) for width in pair if axis != data.axis]
    if isinstance(total, Length) or any(not isinstance(width, int) for width in (before, *others)):
        raise NotStatic("the length behind a pad depends on the number of valid rows")
    shape = [1] * data.rank
    shape[data.axis] = data.rows.capacity
    valid = relay.reshape(data.rows.valid, shape)
    kept = relay.where(valid, data.expr, relay.cast(walk.expr(value), walk.dtype(data.expr)))
    widths[data.axis] = before, total - data.rows.capacity
    padded = relay.nn.pad(kept, [tuple(map(int, pair)) for pair in widths], walk.expr(value))
    return walk.typed(padded)


def pad(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data = data_of(args)
    if any(int(width) for width in call.attrs.pad_width[data.axis]):
        raise NotStatic("it pads the rows")
    return walk.padded(call, args, data.rows, data.axis)
