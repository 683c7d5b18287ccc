"""Operators that compute each padded row independently."""

from __future__ import annotations

import math

from tvm import relay

from ...analysis.operators import Rows as Kind
from ...analysis.operators import computes_along, known_of, reduced_axes
from .padded import Became, NotStatic, Padded, Rows
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
    """A gather along another axis, where each row has indices of its own."""
    data, indices = args
    both = isinstance(data, Padded) and isinstance(indices, Padded)
    if not both or (data.rows, data.axis) != (indices.rows, indices.axis):
        raise NotStatic("the operands have different valid rows")
    if computes_along(call, data.axis):
        raise NotStatic("it computes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def scatter_nd(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """The same elements of each row are replaced, by indices along other axes."""
    data, indices, updates = args
    of_indices = walk.shape(walk.expr(indices))
    if not isinstance(data, Padded) or isinstance(indices, Padded) or data.axis < of_indices[0]:
        raise NotStatic("rows are replaced by index")
    axis = data.axis - of_indices[0] + len(of_indices) - 1
    if not isinstance(updates, Padded) or (updates.rows, updates.axis) != (data.rows, axis):
        raise NotStatic("the operands have different valid rows")
    return walk.padded(call, args, data.rows, data.axis)


def reduce(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    axes = reduced_axes(call)
    if data.axis in axes:
        raise NotStatic("it reduces over the rows")
    gone = 0 if call.attrs.keepdims else sum(axis < data.axis for axis in axes)
    return walk.padded(call, args, data.rows, data.axis - gone)
