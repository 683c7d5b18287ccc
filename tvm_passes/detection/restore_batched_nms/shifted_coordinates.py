"""Shift boxes at once whose coordinates are shifted one by one and then joined."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...analysis.columns import Column, source_of, width
from ...engine.expressions import either_way, is_same, op_name, type_of
from ...engine.rule import NO_MATCH, Answer, Match, Rule
from ..selection import as_given, in_order


class Shifted(NamedTuple):
    """Boxes, and the column that is added to all of their coordinates."""

    boxes: relay.Expr
    shift: relay.Expr


class ShiftedCoordinates(Rule):
    """Replace `nms(concatenate(a + shift, b + shift))` with `nms(concatenate(a, b) + shift)`.

    Why legal: the shift is one number for each box, so that it is added to the same coordinates, with the
    same rounding. `OffsetByClass` reads the sum.
    """

    moved = wildcard()
    pattern = is_op("topi_ext.batched_nms")(moved, *(wildcard() for _ in range(5)))

    def plan(self, match: Match) -> Shifted | Answer:
        joined = as_given(match.moved)
        if op_name(joined) not in ("concatenate", "stack") or not isinstance(joined.args[0], relay.Tuple):
            return NO_MATCH
        if _rank(joined) != 2 or int(joined.attrs.axis) % 2 != 1:
            return NO_MATCH
        parts = joined.args[0].fields
        for _, shift in _sums(parts[0]):
            before = [_without(part, shift) for part in parts]
            if all(each is not None for each in before):
                boxes = _whole(before) or relay.Call(joined.op, [relay.Tuple(before)], joined.attrs)
                return Shifted(boxes, shift if _rank(shift) == 2 else relay.expand_dims(shift, 1))
        return NO_MATCH

    def rewrite(self, match: Match, plan: Shifted) -> relay.Expr:
        boxes = relay.add(*plan)
        if not as_given(match.moved).same_as(match.moved):
            boxes = in_order(boxes)
        return relay.Call(match.root.op, [boxes, *match.root.args[1:]], match.root.attrs)


def _sums(part: relay.Expr) -> list[tuple[relay.Expr, relay.Expr]]:
    """The coordinates of a part, and what is added to all of them: a vector, or a column."""
    vector = part.args[0] if op_name(part) == "expand_dims" and _rank(part.args[0]) == 1 else part
    if op_name(vector) != "add":
        return []
    return [
        (rest if vector is part else relay.expand_dims(rest, 1), shift)
        for rest, shift in either_way(vector)
        if _rank(rest) == _rank(shift) == _rank(vector) and _is_one_for_each_box(shift)
    ]


def _without(part: relay.Expr, shift: relay.Expr) -> relay.Expr | None:
    return next((rest for rest, other in _sums(part) if is_same(other, shift)), None)


def _is_one_for_each_box(shift: relay.Expr) -> bool:
    return width(shift) == 1


def _whole(parts: list[relay.Expr]) -> relay.Expr | None:
    """The tensor of four columns that these parts are, in order, or None."""
    columns = [source_of(Column(part, at)) for part in parts for at in range(width(part) or 0)]
    whole = columns[0].of if columns else parts[0]
    is_one = all(column.of.same_as(whole) for column in columns)
    are_all = [column.place for column in columns] == [0, 1, 2, 3] and _rank(whole) == 2 and width(whole) == 4
    return whole if is_one and are_all else None


def _rank(expr: relay.Expr) -> int:
    return len(type_of(expr).shape)
