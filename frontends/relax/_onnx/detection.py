"""NonMaxSuppression by `topi_ext.batched_nms`, whose result has a fixed number of rows and a count.

ONNX keeps each class of each image apart, in this order, and up to a number of boxes of each: each is an item
of a batch here. The kept rows of all come first, in ONNX's order; the others are zeros, which are valid
indices.
"""

from __future__ import annotations

import numpy as np

import topi_ext

from tvm import relax

from .node import Node, constant
from .rows import Selection, places_of_first

op = relax.op


def non_max_suppression(n: Node, there: Selection | None = None) -> tuple[relax.Expr, relax.Expr]:
    """The rows of (image, class, box), int64, and how many are kept, int32, of boxes that are there."""
    images, classes, boxes = n.shape(1)
    most = min(int(n.value(2).item()) if n.has(2) else 0, boxes)
    if most <= 0:
        n.refuse("max_output_boxes_per_class is not given, or 0: it keeps nothing")
    iou, least = (float(n.value(place).item()) if n.has(place) else None for place in (3, 4))
    items = images * classes
    corners = op.reshape(_corners(n), (images, 1, boxes, 4))
    corners = op.reshape(op.broadcast_to(corners, (images, classes, boxes, 4)), (items, boxes, 4))
    scores = n.emit(op.reshape(n.data(1), (items, boxes)))
    order, valid_count = None, None
    if there is not None and least is None:  # any score takes part, and so none says that a box is not there
        if there.count is None:
            order = places_of_first(n, there.kept, boxes)
            corners, scores = (n.emit(op.take(n.emit(each), order, 1)) for each in (corners, scores))
        valid_count = n.emit(op.broadcast_to(op.reshape(there.counted(n), (1,)), (items,)))
    elif there is not None:
        scores = n.emit(op.where(there.kept, scores, relax.const(-np.inf, n.dtype(1))))
    kept = n.emit(
        topi_ext.batched_nms(
            n.emit(corners),
            scores,
            constant(np.zeros((items, boxes), "int32")),
            iou or 0.0,
            score_threshold=least,
            max_output_size=most,
            valid_count=valid_count,
        )
    )
    places = n.emit(op.reshape(n.emit(relax.TupleGetItem(kept, 0)), (items * most,)))
    count = n.emit(op.sum(n.emit(relax.TupleGetItem(kept, 1))))
    rows = np.zeros((items * most, 3), "int64")
    item = np.arange(items * most) // most
    rows[:, 0], rows[:, 1] = item // classes, item % classes
    is_kept = n.emit(op.greater_equal(places, relax.const(0, "int64")))
    if order is not None:
        places = n.emit(op.take(order, places, 0, mode="clip"))
    whole = op.concat([constant(rows[:, :2]), op.reshape(places, (-1, 1))], 1)
    found = op.where(op.reshape(is_kept, (-1, 1)), whole, relax.const(0, "int64"))
    if items > 1:  # the kept ones of each item to the front
        found = op.take(found, places_of_first(n, is_kept, items * most), 0)
    return n.emit(found), count


def _corners(n: Node) -> relax.Expr:
    """The least and the greatest corner of each box: ONNX takes any two that are opposite."""
    boxes = n.data(0)
    first, second = (op.strided_slice(boxes, [2], [at], [at + 2]) for at in (0, 2))
    if n.attribute("center_point_box"):
        half = op.multiply(second, n.number(0.5))
        return n.emit(op.concat([op.subtract(first, half), op.add(first, half)], 2))
    return n.emit(op.concat([op.minimum(first, second), op.maximum(first, second)], 2))
