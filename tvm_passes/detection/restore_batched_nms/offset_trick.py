"""Replace one-class NMS on boxes shifted apart by class with class-aware NMS on the boxes themselves."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...analysis.columns import is_whole
from ...analysis.shape_values import length, shape_values
from ...engine.expressions import either_way, op_name, scalar, static_shape
from ...engine.graph import Graph
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule
from ..class_offset import (
    size_of_image,
    why_disjoint_boxes_count,
    why_not_above_the_largest,
    why_too_small,
)
from ..selection import as_class_ids, as_given, in_order

REPEATS = "broadcast_to", "dyn.broadcast_to", "repeat", "tile"


class OffsetByClass(Rule):
    """Replace `nms(boxes + ids * offset)` with class-aware `nms(boxes, ids)`.

    Why legal: the offset moves the boxes of each class to where no box of another class can overlap them, so
    one-class NMS suppresses only within classes; the operator compares the classes themselves. It is more
    accurate than the graph, where the sum rounds coordinates and coordinates below 0 reach into the next
    class. The offset may be a large constant, the largest coordinate plus 1, or the extent of all boxes plus
    1. Disjoint boxes have an IoU of 0, so the threshold must not be negative. If the offset is the size
    of the image, a box that reaches beyond its lower right corner may overlap one of the next class in the
    graph, which no model means.
    """

    moved, scores, same_class = wildcard(), wildcard(), wildcard()
    valid_count, iou_threshold, score_threshold = wildcard(), wildcard(), wildcard()
    pattern = is_op("topi_ext.batched_nms")(
        moved, scores, same_class, valid_count, iou_threshold, score_threshold
    )

    def plan(self, match: Match) -> tuple[relay.Expr, relay.Expr] | Refusal | Answer:
        """The boxes before they were shifted apart, and their classes as integers."""
        moved = _boxes_and_spread(match)
        if moved is None:
            return NO_MATCH
        boxes, spread = moved
        if not _is_one_class(match.same_class):
            return Refusal("the NMS has class ids already")
        product = _ids_and_offset(match.graph, spread)
        if product is None:
            return Refusal("what is added to the boxes is not a product of class ids and a scalar")
        ids, offset = product
        integers = _integers(ids)
        if integers is None:
            return Refusal("the class ids are not whole numbers")
        refusal = why_disjoint_boxes_count(scalar(match.iou_threshold))
        if refusal is not None:
            return refusal
        if not _as_many(ids, match.scores) or not _as_many(boxes, match.scores):
            return Refusal("there are different numbers of boxes, class ids and scores")
        # Moving both corners alike keeps their order.
        ordered = boxes if as_given(match.moved).same_as(match.moved) else in_order(boxes)
        return _why_not_apart(offset, boxes, match.graph) or (ordered, integers)

    def rewrite(self, match: Match, plan: tuple[relay.Expr, relay.Expr]) -> relay.Expr:
        boxes, ids = plan
        return relay.Call(match.root.op, [boxes, match.scores, ids, *match.root.args[3:]], match.root.attrs)


def _boxes_and_spread(match: Match) -> tuple[relay.Expr, relay.Expr] | None:
    """The boxes and what is added to all coordinates of each, or None."""
    total = as_given(match.moved)
    if op_name(total) != "add" or len(total.checked_type.shape) != 2:
        return None
    for boxes, spread in either_way(total):
        shapes = boxes.checked_type.shape, spread.checked_type.shape
        if [len(shape) for shape in shapes] != [2, 2]:
            continue
        if getattr(shapes[1][1], "value", None) == 1 or _ids_and_offset(match.graph, spread):
            return boxes, spread
    return None


def _why_not_apart(offset: relay.Expr, boxes: relay.Expr, graph: Graph) -> Refusal | None:
    """Why this offset may leave boxes of two classes overlapping, or None."""
    fixed = scalar(offset)
    if fixed is not None:
        inputs = (static_shape(param) or () for param in getattr(graph.root, "params", []))
        return why_too_small(fixed / _scale(boxes), size_of_image(inputs))
    if op_name(offset) != "add":
        return Refusal("the offset between classes is neither a constant nor the largest coordinate plus one")
    pair = next((pair for pair in either_way(offset) if scalar(pair[1]) is not None), None)
    if pair is None:
        return Refusal("the offset is a sum without a constant term")
    greatest, more = pair
    refusal = why_not_above_the_largest(scalar(more))
    if refusal is not None:
        return refusal
    if op_name(greatest) == "subtract" and _is_extreme("min", greatest.args[1], boxes):
        greatest = greatest.args[0]  # the extent of all boxes, wherever they are
    if op_name(greatest) != "max":
        return Refusal("the offset is not computed from the largest coordinate")
    if len(greatest.checked_type.shape) != 0:
        return Refusal("the offset is the largest of only some coordinates")
    if not _is_extreme("max", greatest, boxes):
        return Refusal("the offset is the largest coordinate of other boxes")
    return None


def _is_extreme(name: str, number: relay.Expr, boxes: relay.Expr) -> bool:
    """Whether a scalar is the largest or least of all coordinates, perhaps found along one axis at a time."""
    if len(number.checked_type.shape) != 0:
        return False
    while op_name(number) in (name, "reshape", "squeeze") and not number.same_as(boxes):
        number = number.args[0]
    return number.same_as(boxes)


def _scale(boxes: relay.Expr) -> float:
    """The constant factor by which coordinates were scaled, 1 if none was found."""
    scale = 1.0
    while op_name(boxes) in ("multiply", "divide"):
        pairs = either_way(boxes) if op_name(boxes) == "multiply" else [tuple(boxes.args)]
        pair = next(((rest, scalar(factor)) for rest, factor in pairs if scalar(factor)), None)
        if pair is None or pair[1] < 0:
            break
        scale *= pair[1] if op_name(boxes) == "multiply" else 1 / pair[1]
        boxes = pair[0]
    return scale


def _ids_and_offset(graph: Graph, spread: relay.Expr) -> tuple[relay.Expr, relay.Expr] | None:
    """The factors of what is added to the boxes: class ids, a row of them, and a scalar; or None."""
    offset, node = None, spread
    while len(node.checked_type.shape) > 1 or offset is None:
        name = op_name(node)
        row = _row(node) if len(node.checked_type.shape) == 2 else None
        if row is not None:
            node = row
        elif name == "multiply" and offset is None:
            pair = next((pair for pair in either_way(node) if len(pair[1].checked_type.shape) == 0), None)
            if pair is None:
                return None
            node, offset = pair
        elif name == "cast" and "int" in node.args[0].checked_type.dtype:
            node = node.args[0]
        elif name == "reshape" and list(node.attrs.newshape)[:1] == [0] and _has_as_many_axes(node):
            node = node.args[0]  # two axes, the first of which stays, so both do
        elif name in REPEATS and _repeats_a_column(graph, node):
            node = node.args[0]
        elif offset is not None and _is_column(node):
            return _flat(node), offset
        else:
            return None
    return (node, offset) if len(node.checked_type.shape) == 1 else None


def _is_column(node: relay.Expr) -> bool:
    shape = node.checked_type.shape
    return len(shape) == 2 and getattr(shape[1], "value", None) == 1


def _flat(column: relay.Expr) -> relay.Expr:
    row = relay.squeeze(column, axis=[1])
    relay.transform.InferTypeLocal(row)
    return row


def _has_as_many_axes(call: relay.Call) -> bool:
    return len(call.checked_type.shape) == len(call.args[0].checked_type.shape) == 2


def _repeats_a_column(graph: Graph, call: relay.Call) -> bool:
    """Whether it repeats the only column, and no row."""
    column = call.args[0]
    if not _is_column(column):
        return False
    if op_name(call) == "repeat":
        return int(call.attrs.axis) % 2 == 1
    if op_name(call) == "tile":
        return [int(times) for times in call.attrs.reps[:-1]] in ([], [1])
    if op_name(call) == "broadcast_to":
        after: Any = [length(call, axis) for axis in range(len(call.checked_type.shape))]
    else:
        after = shape_values(graph, call.args[1])
    return after is not None and len(after) == 2 and after[0] == length(column, 0)


def _row(column: relay.Expr) -> relay.Expr | None:
    """The tensor that was made a column, or None."""
    if op_name(column) not in ("expand_dims", "reshape"):
        return None
    (row,) = column.args
    made = len(row.checked_type.shape) == len(column.checked_type.shape) - 1
    return row if made and getattr(column.checked_type.shape[-1], "value", None) == 1 else None


def _integers(ids: relay.Expr) -> relay.Expr | None:
    """Class ids as integers, before they were cast to the type of the boxes if that is next, or None."""
    if op_name(ids) == "cast" and "float" not in ids.args[0].checked_type.dtype:
        ids = ids.args[0]
    if "float" in ids.checked_type.dtype and is_whole(ids):
        return relay.cast(ids, "int32")
    return as_class_ids(ids, ids.checked_type.dtype)


def _is_one_class(ids: relay.Expr) -> bool:
    ids = ids.args[0] if op_name(ids) == "cast" else ids
    return op_name(ids) in ("zeros_like", "zeros")


def _as_many(left: relay.Expr, right: relay.Expr) -> bool:
    """Whether two tensors may have the same length without one being broadcast."""
    left, right = (getattr(expr.checked_type.shape[0], "value", None) for expr in (left, right))
    return left == right or (None in (left, right) and 1 not in (left, right))
