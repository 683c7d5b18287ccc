"""Replace boxes moved apart by class, given to an NMS of one class, by the boxes and their classes."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from .._matchers import either_way, op_name
from .._rule import Match, Rule
from .._selection import as_class_ids, as_given, in_order, scalar

# An offset that does not follow from the boxes must be this large to keep classes apart: Ultralytics uses
# 7,680, an earlier YOLOv5 4,096; pictures given to a detector are smaller.
LEAST_FIXED_OFFSET = 4096


class OffsetByClass(Rule):
    """Replace `nms(boxes + ids * offset)` with class-aware `nms(boxes, ids)`.

    Why legal: the offset moves the boxes of each class to where no box of another can overlap them, so that
    one-class NMS suppresses within classes only; the operator compares the classes themselves. It is more
    right than the graph: the sum rounds coordinates, and coordinates below 0 reach into the next class. Boxes
    that are apart have an IoU of 0, so the threshold must not be less.
    """

    moved, scores, same_class = wildcard(), wildcard(), wildcard()
    valid_count, iou_threshold, score_threshold = wildcard(), wildcard(), wildcard()
    pattern = is_op("topi_ext.batched_nms")(
        moved, scores, same_class, valid_count, iou_threshold, score_threshold
    )

    def where(self, match: Match) -> bool:
        return _boxes_and_spread(match) is not None

    def check(self, match: Match) -> str | None:
        boxes, spread = _boxes_and_spread(match)
        if not _is_one_class(match.same_class):
            return "the NMS has class ids already"
        ids, offset = _ids_and_offset(spread)
        if ids is None:
            return "what is added to the boxes is no product of class ids and a scalar"
        if _integers(ids) is None:
            return "the class ids are not whole numbers"
        threshold = scalar(match.iou_threshold)
        if threshold is not None and not threshold >= 0:
            return f"at an IoU threshold of {threshold} boxes that are apart suppress each other too"
        if not _as_many(ids, match.scores) or not _as_many(boxes, match.scores):
            return "there are not as many boxes, class ids and scores"
        return _why_not_apart(offset, boxes)

    def rewrite(self, match: Match) -> relay.Expr:
        boxes, spread = _boxes_and_spread(match)
        ids, _ = _ids_and_offset(spread)
        # Moving both corners alike keeps their order.
        boxes = boxes if as_given(match.moved).same_as(match.moved) else in_order(boxes)
        args = [boxes, match.scores, _integers(ids), *match.root.args[3:]]
        return relay.Call(match.root.op, args, match.root.attrs)


def _boxes_and_spread(match: Match) -> tuple[relay.Expr, relay.Expr] | None:
    """The boxes and the column that is added to them, or None."""
    total = as_given(match.moved)
    if op_name(total) != "add" or len(total.checked_type.shape) != 2:
        return None
    for boxes, spread in either_way(total):
        shapes = boxes.checked_type.shape, spread.checked_type.shape
        if [len(shape) for shape in shapes] == [2, 2] and getattr(shapes[1][1], "value", None) == 1:
            return boxes, spread
    return None


def _why_not_apart(offset: relay.Expr, boxes: relay.Expr) -> str | None:
    """Why this offset may leave boxes of two classes overlapping, or None."""
    fixed = scalar(offset)
    if fixed is not None:
        return None if fixed >= LEAST_FIXED_OFFSET else f"an offset of {fixed} may leave classes overlapping"
    if op_name(offset) != "add":
        return "the offset between classes is neither a number nor the greatest coordinate and more"
    greatest, more = next((pair for pair in either_way(offset) if scalar(pair[1]) is not None), (None, None))
    if greatest is None:
        return "the offset is the sum of two terms of which none is a number"
    if scalar(more) < 1:
        return f"the offset is the greatest coordinate and {scalar(more)}, less than 1 more"
    if op_name(greatest) != "max":
        return "the offset does not follow from the greatest coordinate"
    if not greatest.args[0].same_as(boxes):
        return "the offset is the greatest coordinate of other boxes"
    if len(greatest.checked_type.shape) != 0:
        return "the offset is the greatest of some coordinates only"


def _ids_and_offset(spread: relay.Expr) -> tuple[relay.Expr | None, relay.Expr | None]:
    """The factors of a column of offsets: class ids, a row of them, and a scalar; or None twice."""
    product = _row(spread) or spread
    if op_name(product) == "multiply":
        for ids, offset in either_way(product):
            ids = _row(ids) if product.same_as(spread) else ids
            if ids is not None and len(offset.checked_type.shape) == 0:
                return ids, offset
    return None, None


def _row(column: relay.Expr) -> relay.Expr | None:
    """What was made a column, or None."""
    if op_name(column) not in ("expand_dims", "reshape"):
        return None
    (row,) = column.args
    made = len(row.checked_type.shape) == len(column.checked_type.shape) - 1
    return row if made and getattr(column.checked_type.shape[-1], "value", None) == 1 else None


def _integers(ids: relay.Expr) -> relay.Expr | None:
    """Class ids as integers: those that were cast to the boxes' type, or None."""
    if op_name(ids) == "cast":
        ids = ids.args[0]
    return as_class_ids(ids, ids.checked_type.dtype)


def _is_one_class(ids: relay.Expr) -> bool:
    ids = ids.args[0] if op_name(ids) == "cast" else ids
    return op_name(ids) in ("zeros_like", "zeros")


def _as_many(left: relay.Expr, right: relay.Expr) -> bool:
    """Whether two tensors can be as long as each other without one being repeated for it."""
    left, right = (getattr(expr.checked_type.shape[0], "value", None) for expr in (left, right))
    return left == right or (None in (left, right) and 1 not in (left, right))
