"""Replace TVM's NMS over every image and class with topi_ext.batched_nms, and gather the kept boxes."""

from __future__ import annotations

import math

import topi_ext
from topi_ext.batched_nms import one_class

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import constant, known_extent, scalar, static_shape
from ...engine.rule import Match, Refusal, Rule
from ..selection import in_order
from ..stock_nms import thresholds, why_no_boxes, why_no_thresholds

MAX_KEPT = 2**14  # an NMS that is told how many to keep makes room for as many
INT64_MAX = 2**63 - 1


class AllClassNms(Rule):
    """Replace `vision.all_class_non_max_suppression` with `topi_ext.batched_nms` of as many images.

    Why legal: TVM suppresses within each class of each image; here, each such pair is a batch item. The kept
    (image, class, box) are gathered to the front, in that order, those of a class in descending order of
    score. TVM leaves the rows after them undefined; here they hold some box, or -1. A box may be given by
    any two opposite corners, which are sorted. A limit of 0 or fewer boxes means no limit, as in TVM. TVM
    never suppresses a box with a score of 0 or less, and drops those of -1 or less; ONNX compares all scores,
    and so does the rewrite.
    """

    boxes, scores, most, iou_threshold, score_threshold = (wildcard() for _ in range(5))
    pattern = is_op("vision.all_class_non_max_suppression")(
        boxes, scores, most, iou_threshold, score_threshold
    )

    def plan(self, match: Match) -> int | Refusal:
        """The number of classes."""
        if str(match.root.attrs.output_format) != "onnx":
            return Refusal("the result is in TensorFlow's format, with the scores of the kept boxes")
        refusal = why_no_boxes(match.boxes, match.scores, rank=3) or why_no_thresholds(
            match.iou_threshold, match.score_threshold
        )
        if refusal:
            return refusal
        classes = known_extent(match.scores.checked_type.shape[1])
        if classes is None:
            return Refusal("the number of classes is known only at run time")
        if scalar(match.most) is None and len(match.most.checked_type.shape) != 0:
            return Refusal("the number of boxes to keep is not a scalar")
        return classes

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        classes = plan
        scores = relay.reshape(match.scores, [-3, 0])
        boxes = in_order(match.boxes, axis=2)
        boxes = relay.repeat(boxes, classes, axis=0) if classes != 1 else boxes
        iou_threshold, score_threshold = thresholds(match.iou_threshold, match.score_threshold)
        size = _room(match)
        kept = topi_ext.batched_nms(
            boxes,
            scores,
            one_class(scores),
            iou_threshold,
            score_threshold=score_threshold,
            max_output_size=size,
        )
        indices, counts = relay.TupleGetItem(kept, 0), relay.cast(relay.TupleGetItem(kept, 1), "int64")
        if size is None and not _is_all(match):
            counts = relay.minimum(counts, _most_at_run_time(match.most))
        return _gathered(indices, counts, _numbers(match.scores), classes)


def _room(match: Match) -> int | None:
    """The number of boxes to make room for, where the NMS itself is to stop there, or None."""
    most, count = scalar(match.most), known_extent(match.scores.checked_type.shape[2])
    if most is None or most <= 0:
        return None
    return most if most < (MAX_KEPT if count is None else count) else None


def _is_all(match: Match) -> bool:
    """Whether there is no limit on the number of kept boxes."""
    most, count = scalar(match.most), known_extent(match.scores.checked_type.shape[2])
    return most is not None and (most <= 0 or (count is not None and count <= most))


def _most_at_run_time(most: relay.Expr) -> relay.Expr:
    value = constant(most)
    most = relay.cast(most if value is None else relay.const(value.reshape(()), str(value.dtype)), "int64")
    return relay.where(most > relay.const(0, "int64"), most, relay.const(INT64_MAX, "int64"))


def _numbers(tensor: relay.Expr) -> relay.Expr:
    """0, 1, 2 and so on, as many as a tensor has elements."""
    shape = static_shape(tensor)
    known_size = None if shape is None else relay.const(math.prod(shape), "int64")
    size = known_size or relay.op.ndarray_size(tensor, "int64")
    return relay.arange(relay.const(0, "int64"), size, relay.const(1, "int64"), dtype="int64")


def _gathered(indices: relay.Expr, counts: relay.Expr, places: relay.Expr, classes: int) -> relay.Expr:
    """Rows of (image, class, box), the first `counts` of the `indices` of each class, and their number.

    Each output position finds its row by itself, in the prefix sums of the counts: all run in parallel.
    """
    ends = relay.cumsum(counts, axis=0, dtype="int64")
    total = relay.sum(counts, axis=0, keepdims=True)
    # A factor, not `where`, whose shape function takes a scalar for a vector and fails on zero boxes.
    is_taken = relay.cast(relay.less(places, total), "int64")
    item = relay.searchsorted(ends, places, right=True, dtype="int64") * is_taken
    column = (places - relay.take(ends - counts, item, axis=0)) * is_taken
    box = relay.gather_nd(indices, relay.stack([item, column], axis=0), index_rank=2)
    classes = relay.const(classes, "int64")
    image = relay.floor_divide(item, classes)
    rows = relay.stack([image, item - image * classes, box], axis=1)
    return relay.Tuple([rows, total])
