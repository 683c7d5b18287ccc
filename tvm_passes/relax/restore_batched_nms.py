"""Restore class-aware NMS where a network shifts the boxes of each class apart."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst
from tvm.relax.dpl import is_op, wildcard

from ..detection.class_offset import (
    size_of_image,
    why_disjoint_boxes_count,
    why_not_above_the_largest,
    why_too_small,
)
from ..engine.contract import NO_MATCH, Answer, Match, Refusal, Rule
from .graph import Graph, dtype_of, op_name, shape_of
from .rule_pass import rule_pass

FILLED = {f"relax.{name}{like}" for name in ("zeros", "ones", "full") for like in ("", "_like")}
EXACT = "float32", "int64"  # in which class ids stay apart, times an offset too
RESHAPES = "relax.expand_dims", "relax.reshape", "relax.broadcast_to"


class OffsetByClass(Rule):
    """Replace `nms(boxes + ids * offset)` with class-aware `nms(boxes, ids)`.

    Why legal: the offset moves the boxes of each class to where no box of another class can overlap them, so
    NMS of one class suppresses only within classes; the operator compares the classes themselves. It is more
    accurate than the graph, where the sum rounds coordinates. See the rule of this name for Relay.
    """

    moved, scores, same_class = wildcard(), wildcard(), wildcard()
    valid_count, iou_threshold, score_threshold = wildcard(), wildcard(), wildcard()
    pattern = is_op("topi_ext.batched_nms")(
        moved, scores, same_class, valid_count, iou_threshold, score_threshold
    )

    def plan(self, match: Match) -> tuple[Expr, Expr] | Refusal | Answer:
        """The boxes before they were shifted apart, and their classes."""
        graph, total = match.graph, match.graph.value(match.moved)
        if op_name(total) != "relax.add" or total.ty.ndim != 2:
            return NO_MATCH
        shape = shape_of(total)
        if shape is None:
            return Refusal("the number of boxes is not known")
        sides = [(one, other) for one, other in _either_way(total) if shape_of(one) == shape]
        if not sides or all(graph.constant(other) is not None for _, other in sides):
            return NO_MATCH
        if not _is_one_class(graph, match.same_class):
            return Refusal("the NMS has class ids already")
        found = next(((boxes, each) for boxes, other in sides if (each := _factors(graph, other))), None)
        if found is None:
            return Refusal("what is added to the boxes is not a product of class ids and a scalar")
        boxes, (ids, offset) = found
        if not _is_integer(ids):
            return Refusal("the class ids are not whole numbers")
        if shape_of(ids) not in (shape[:1], (shape[0], 1)):
            return Refusal("there are different numbers of boxes and class ids")
        refusal = why_disjoint_boxes_count(_scalar(graph, match.iou_threshold))
        return refusal or _why_not_apart(graph, offset, boxes) or (boxes, ids)

    def rewrite(self, match: Match, plan: tuple[Expr, Expr]) -> Expr:
        boxes, ids = plan
        ids = ids if ids.ty.ndim == 1 else relax.op.squeeze(ids, [1])
        ids = ids if dtype_of(ids) in ("int32", "int64") else relax.op.astype(ids, "int64")
        return relax.Call(match.root.op, [boxes, match.scores, ids, *match.root.args[3:]], match.root.attrs)


def _either_way(call: Expr) -> Iterator[tuple[Expr, Expr]]:
    left, right = call.args
    yield left, right
    yield right, left


def _scalar(graph: Graph, expr: Expr) -> float | None:
    """The number that a tensor of one element is, where it is constant."""
    value = graph.value(expr)
    while op_name(value) in ("relax.astype", "relax.reshape", "relax.expand_dims"):
        value = graph.value(value.args[0])
    array = value.value.numpy() if isinstance(value, GenericConst) else graph.constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _factors(graph: Graph, spread: Expr) -> tuple[Expr, Expr] | None:
    """The factors of what is added to the boxes: class ids, a row or a column, and a scalar; or None.

    The ids are those before they were cast to the type of the boxes.
    """
    offset, expr = None, spread
    while True:
        value = graph.value(expr)
        if op_name(value) == "relax.multiply" and offset is None and dtype_of(value) in EXACT:
            sides = (pair for pair in _either_way(value) if shape_of(pair[0]) == shape_of(value))
            pair = next((pair for pair in sides if shape_of(pair[1]) in ((), (1,), (1, 1))), None)
            if pair is None:
                return None
            expr, offset = pair
        elif _keeps_ids(value):
            expr = value.args[0]
        else:
            return None if offset is None else (expr, offset)


def _is_integer(expr: Expr) -> bool:
    return dtype_of(expr).startswith(("int", "uint"))


def _keeps_ids(value: Expr) -> bool:
    """Whether it casts class ids to a type that tells them apart, or makes rows of them."""
    if op_name(value) == "relax.astype":
        return dtype_of(value) in EXACT and _is_integer(value.args[0])
    return op_name(value) in RESHAPES and _is_of_rows(value)


def _is_of_rows(call: Expr) -> bool:
    """Whether each row of the result is one element of a row, or of a column."""
    before, after = shape_of(call.args[0]), shape_of(call)
    if before is None or after is None or len(after) != 2 or before not in (after[:1], (after[0], 1)):
        return False
    return after[1] == 1 or (op_name(call) == "relax.broadcast_to" and len(before) == 2)


def _is_one_class(graph: Graph, ids: Expr) -> bool:
    value = graph.value(ids)
    while op_name(value) == "relax.astype":
        value = graph.value(value.args[0])
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return bool((array == array.flat[0]).all()) if array.size else True
    return op_name(value) in FILLED


def _why_not_apart(graph: Graph, offset: Expr, boxes: Expr) -> Refusal | None:
    """Why this offset may leave boxes of two classes overlapping, or None."""
    fixed, total = _scalar(graph, offset), graph.value(offset)
    if fixed is not None:
        inputs = (shape_of(parameter) or () for parameter in graph.parameters)
        return why_too_small(fixed / _scale(graph, boxes), size_of_image(inputs))
    if op_name(total) != "relax.add":
        return Refusal("the offset between classes is neither a constant nor the largest coordinate plus one")
    pairs = ((greatest, _scalar(graph, more)) for greatest, more in _either_way(total))
    greatest, more = next(((each, more) for each, more in pairs if more is not None), (None, None))
    if greatest is None or more is None:
        return Refusal("the offset is a sum without a constant term")
    greatest = graph.value(greatest)
    if op_name(greatest) == "relax.subtract" and _is_of(graph, "relax.min", greatest.args[1], boxes):
        greatest = graph.value(greatest.args[0])  # the extent of all boxes, wherever they are
    if not _is_of(graph, "relax.max", greatest, boxes):
        return Refusal("the offset is not computed from the largest coordinate of the boxes")
    return why_not_above_the_largest(more)


def _is_of(graph: Graph, name: str, number: Expr, boxes: Expr) -> bool:
    """Whether a number is an extreme of the coordinates of these boxes; an offset is one for all of them."""
    value = graph.value(number)
    return op_name(value) == name and graph.value(value.args[0]) == graph.value(boxes)


def _scale(graph: Graph, boxes: Expr) -> float:
    """The constant factor by which coordinates were scaled, 1 if none was found."""
    scale, value = 1.0, graph.value(boxes)
    while op_name(value) in ("relax.multiply", "relax.divide"):
        is_product = op_name(value) == "relax.multiply"
        pairs = list(_either_way(value))[: 2 if is_product else 1]
        pair = next(((rest, factor) for rest, each in pairs if (factor := _scalar(graph, each))), None)
        if pair is None or pair[1] < 0:
            break
        scale *= pair[1] if is_product else 1 / pair[1]
        value = graph.value(pair[0])
    return scale


def RestoreBatchedNMS() -> tvm.transform.Pass:
    """Give `topi_ext.batched_nms` the class ids by which a network shifts boxes apart."""
    return rule_pass("RestoreBatchedNMS", OffsetByClass())
