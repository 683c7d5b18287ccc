"""The pattern of the boxes that an NMS keeps: the first `count` of its indices."""

from __future__ import annotations

from typing import Any

import topi_ext

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple_get_item, wildcard
from tvm.relay.op.dyn import _make as dynamic

from ..engine.expressions import op_name


class Selection:
    """Patterns for rules to inherit: `selection` matches the kept indices of one `topi_ext.batched_nms`."""

    nms = is_op("topi_ext.batched_nms")(None)
    begin, strides = wildcard(), wildcard()
    count = is_op("expand_dims")(is_tuple_get_item(nms, 1))
    selection = is_op("dyn.strided_slice")(is_tuple_get_item(nms, 0), begin, count, strides)


def select(
    boxes: relay.Expr,
    scores: relay.Expr,
    class_ids: relay.Expr,
    iou_threshold: float | relay.Expr,
    **options: Any,
) -> relay.Expr:
    """The kept indices of a class-aware NMS without a batch axis, as many as there are kept boxes."""
    nms = topi_ext.batched_nms(boxes, scores, class_ids, iou_threshold, **options)
    indices, count = relay.TupleGetItem(nms, 0), relay.TupleGetItem(nms, 1)
    zero, one = relay.const([0], "int32"), relay.const([1], "int32")
    # relay.strided_slice would first clip the bounds, which are in range.
    return dynamic.strided_slice(indices, zero, relay.expand_dims(count, 0), one, "size")


def as_class_ids(ids: relay.Expr, dtype: str) -> relay.Expr | None:
    """Class ids cast to an integer type that the operator takes, or None."""
    if dtype in ("int32", "int64"):
        return ids
    return relay.cast(ids, "int32") if dtype in ("int8", "uint8", "int16", "uint16", "bool") else None


def in_order(boxes: relay.Expr, axis: int = 1) -> relay.Expr:
    """Boxes given by any two opposite corners along an axis, sorted: the smaller coordinates first."""
    first = relay.strided_slice(boxes, [0], [2], axes=[axis])
    second = relay.strided_slice(boxes, [2], [4], axes=[axis])
    return relay.concatenate([relay.minimum(first, second), relay.maximum(first, second)], axis=axis)


def as_given(boxes: relay.Expr) -> relay.Expr:
    """The boxes that `in_order` was given, where this is its result."""
    if op_name(boxes) != "concatenate" or not isinstance(boxes.args[0], relay.Tuple):
        return boxes
    parts = list(boxes.args[0].fields)
    if [op_name(part) for part in parts] != ["minimum", "maximum"]:
        return boxes
    halves = [half for part in parts for half in part.args]
    if any(op_name(half) != "strided_slice" for half in halves):
        return boxes
    bounds = [(list(map(int, half.attrs.begin)), list(map(int, half.attrs.end))) for half in halves]
    sources = [half.args[0] for half in halves]
    is_order = bounds == [([0], [2]), ([2], [4])] * 2 and all(part.same_as(sources[0]) for part in sources)
    return sources[0] if is_order else boxes
