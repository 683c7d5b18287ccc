"""Operators that compute each padded row independently."""

from __future__ import annotations

import math

from tvm import relay

from ...analysis.operators import Rows as Kind
from ...analysis.operators import known_of, may_divide_by_zero, reduced_axes
from .padded import Became, NotStatic, Padded, Rows
from .walk import Walk


def elementwise(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    if may_divide_by_zero(call) and isinstance(args[1], Padded):
        raise NotStatic("it divides by integers of padded rows, which may be 0")
    first = next(arg for arg in args if isinstance(arg, Padded))
    axis = first.axis - first.rank  # counted from the end, where shapes are lined up
    for arg in args:
        if isinstance(arg, Padded):
            if arg.rows != first.rows or arg.axis - arg.rank != axis:
                raise NotStatic("the operands have different valid rows")
        elif len(walk.shape(arg)) >= -axis and walk.shape(arg)[axis] != 1:
            raise NotStatic("padded rows are combined with rows that are all valid")
    return walk.padded(call, args, first.rows, len(call.checked_type.shape) + axis)


def item_by_item(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Each item of the first argument, or of the last one if that holds regions, gives one of the result."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    items = parts[-1 if known_of(call).rows is Kind.REGIONS else 0]
    if any(isinstance(part, Padded) != (part is items) for part in parts):
        raise NotStatic("an input besides the batch is padded")
    layouts = (str(getattr(call.attrs, name, "N")) for name in ("data_layout", "layout"))
    if items.axis != 0 or any(layout[0] != "N" for layout in layouts):
        raise NotStatic("the rows are not the items of a batch")
    return walk.padded(call, args, items.rows, 0)


def paste_masks(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    return walk.padded(call, args, _rows_of_all("masks and boxes", args), 0)


def heatmaps_to_keypoints(walk: Walk, call: relay.Call, args: list[Became]) -> tuple[Padded, ...]:
    """Padding gets a roi at infinity, for which nothing is computed."""
    rows = _rows_of_all("maps and rois", args)
    maps, rois = (arg.expr for arg in args)
    valid = relay.expand_dims(rows.valid, 1)
    rois = relay.where(valid, rois, relay.const(math.inf, walk.dtype(rois)))
    results = walk.typed(relay.Call(call.op, [maps, rois], call.attrs))
    return tuple(Padded(walk.typed(relay.TupleGetItem(results, index)), rows) for index in range(2))


def _rows_of_all(names: str, args: list[Became]) -> Rows:
    """The rows of which each argument has one item."""
    first = args[0]
    if any(not isinstance(arg, Padded) or arg.axis != 0 for arg in args) or first.rows != args[1].rows:
        raise NotStatic(f"{names} have different valid rows")
    return first.rows


def along_another_axis(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it computes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def reduce(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    axes = reduced_axes(call)
    if data.axis in axes:
        raise NotStatic("it reduces over the rows")
    gone = 0 if call.attrs.keepdims else sum(axis < data.axis for axis in axes)
    return walk.padded(call, args, data.rows, data.axis - gone)
