"""Drop the branch by which scripted torchvision chooses between two ways to compute the same NMS."""

from __future__ import annotations

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_if, wildcard

from ...engine.expressions import op_name
from ...engine.rule import LEGAL, Answer, Match, Refusal, Rule
from ..selection import Selection

MAX_LEVELS = 8  # a selection, the operator, its arguments and a cast of them are fewer


class SameNmsOnBothBranches(Selection, Rule):
    """Replace `if there are many boxes: nms(boxes), else: nms(boxes)` with `nms(boxes)`.

    Why legal: both branches compute the same, so the condition does not matter.
    """

    condition, other = wildcard(), wildcard()
    pattern = is_if(condition, Selection.selection, other)

    def where(self, match: Match) -> bool:
        return op_name(match.other) == op_name(match.selection)

    def plan(self, match: Match) -> Answer | Refusal:
        if not _is_same(match.selection, match.other, MAX_LEVELS):
            return Refusal("the branches compute different NMS")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.selection


def _is_same(left: relay.Expr, right: relay.Expr, levels: int) -> bool:
    """Whether two expressions are structurally equal down to nodes that they share."""
    if left.same_as(right):
        return True
    if levels == 0 or type(left) is not type(right):
        return False
    if isinstance(left, relay.Constant):
        return structural_equal(left, right)
    if isinstance(left, relay.TupleGetItem):
        return left.index == right.index and _is_same(left.tuple_value, right.tuple_value, levels - 1)
    if not isinstance(left, relay.Call) or op_name(left) is None or op_name(left) != op_name(right):
        return False
    if len(left.args) != len(right.args) or not structural_equal(left.attrs, right.attrs):
        return False
    return all(_is_same(*pair, levels - 1) for pair in zip(left.args, right.args))
