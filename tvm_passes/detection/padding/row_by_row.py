"""Operators that compute each padded row independently."""

from __future__ import annotations

import math

import numpy as np

from tvm import relay

from ...analysis.operators import Rows as Kind
from ...analysis.operators import computes_along, known_of, reduced_axes
from ...engine.expressions import op_name
from .padded import Became, NotStatic, Padded, Rows, along_axis
from .walk import Walk


def elementwise(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    first = next(arg for arg in args if isinstance(arg, Padded))
    axis = first.axis - first.rank  # from the end, as broadcasting aligns shapes
    for arg in args:
        if isinstance(arg, Padded):
            if arg.rows != first.rows or arg.axis - arg.rank != axis:
                raise NotStatic("the operands have different valid rows")
        elif len(walk.shape(arg)) >= -axis and walk.shape(arg)[axis] != 1:
            raise NotStatic("padded rows are combined with rows that are all valid")
    return walk.padded(call, args, first.rows, len(call.checked_type.shape) + axis)


def item_by_item(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Each item of the first operand, or of the last if that holds regions, gives an item of the result."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    items = parts[-1 if known_of(call).rows is Kind.REGIONS else 0]
    if any(isinstance(part, Padded) != (part is items) for part in parts):
        raise NotStatic("an input besides the batch is padded")
    layouts = (str(getattr(call.attrs, name, "N")) for name in ("data_layout", "layout"))
    is_batch = all(layout[0] == "N" for layout in layouts) and getattr(call.attrs, "axis", 1) != 0
    if items.axis != 0 or not is_batch:  # the axis of a group or instance norm is that of the channels
        raise NotStatic("the rows are not the items of a batch")
    return walk.padded(call, args, items.rows, 0)


def resize2d(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Each image is resized by itself, and each channel, which masks of YOLO are."""
    (data,) = args
    if str(call.attrs.layout)[data.axis] in "HW":
        raise NotStatic("it resizes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def of_masks_and_boxes(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    return walk.padded(call, args, _rows_of_all("masks and boxes", args), 0)


def grid_sample(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Each image is sampled at its own points, as rotated regions are, of one map expanded to all of them."""
    return walk.padded(call, args, _rows_of_all("images and points", args), 0)


def heatmaps_to_keypoints(walk: Walk, call: relay.Call, args: list[Became]) -> tuple[Padded, ...]:
    """Padding gets a roi at infinity, for which nothing is computed."""
    rows = _rows_of_all("maps and rois", args)
    maps, rois = (arg.expr for arg in args)
    valid = relay.expand_dims(rows.valid, 1)
    rois = relay.where(valid, rois, relay.const(math.inf, walk.dtype(rois)))
    results = walk.typed(relay.Call(call.op, [maps, rois], call.attrs))
    return tuple(Padded(walk.typed(relay.TupleGetItem(results, index)), rows) for index in range(2))


def _rows_of_all(names: str, args: list[Became]) -> Rows:
    """The rows that all operands have in common, along axis 0."""
    first = args[0]
    if any(not isinstance(arg, Padded) or arg.axis != 0 for arg in args) or first.rows != args[1].rows:
        raise NotStatic(f"{names} have different valid rows")
    return first.rows


def along_another_axis(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """Results of the data's rank have its rows; others, such as statistics of a batch norm, have none."""
    data, *others = args
    if not isinstance(data, Padded) or any(isinstance(other, Padded) for other in others):
        raise NotStatic("an input besides the rows is padded")
    if computes_along(call, data.axis):
        raise NotStatic("it computes along the rows")
    if not isinstance(call.checked_type, relay.TupleType):
        return walk.padded(call, args, data.rows, data.axis)
    results = walk.typed(relay.Call(call.op, [walk.expr(arg) for arg in args], call.attrs))
    fields = [walk.typed(relay.TupleGetItem(results, i)) for i in range(len(call.checked_type.fields))]
    return tuple(
        Padded(field, data.rows, data.axis) if len(walk.shape(field)) == data.rank else field
        for field in fields
    )


def gather(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """A gather along another axis, where each row has indices of its own, or of the order of sorted rows."""
    data, indices = args
    along_rows = isinstance(data, Padded) and computes_along(call, data.axis)
    if (
        along_rows
        and isinstance(indices, Padded)
        and indices.axis == data.axis
        and indices.places == data.rows
    ):
        return walk.padded(call, args, indices.rows, data.axis)
    both = isinstance(data, Padded) and isinstance(indices, Padded)
    if not both or (data.rows, data.axis) != (indices.rows, indices.axis):
        raise NotStatic("the operands have different valid rows")
    if computes_along(call, data.axis):
        raise NotStatic("it computes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def reduce(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """Over other axes, or over the rows too, of which the padding then has the value that changes nothing."""
    (data,) = args
    axes = reduced_axes(call)
    if data.axis in axes:
        return _over_rows(walk, call, data)
    gone = 0 if call.attrs.keepdims else sum(axis < data.axis for axis in axes)
    return walk.padded(call, args, data.rows, data.axis - gone)


def _over_rows(walk: Walk, call: relay.Call, data: Padded) -> relay.Expr:
    dtype = walk.dtype(data.expr)
    neutral = _neutral(op_name(call), dtype)
    if neutral is None:
        raise NotStatic(f"{op_name(call)} reduces over the rows")
    valid = along_axis(data.rows.valid, data.axis, data.rank)
    kept = relay.where(valid, data.expr, relay.const(neutral, dtype))
    return walk.typed(relay.Call(call.op, [kept], call.attrs))


def _neutral(name: str | None, dtype: str) -> float | None:
    """What changes no result of a reduction, or None if there is no such value."""
    if name not in ("max", "min"):
        return {"sum": 0, "prod": 1, "any": False, "all": True}.get(name or "")
    if "float" in dtype:
        return -math.inf if name == "max" else math.inf
    if "int" in dtype:
        return int(np.iinfo(dtype).min if name == "max" else np.iinfo(dtype).max)
    return None
