"""Drop the branch by which scripted torchvision chooses between two ways to compute the same NMS."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_if, wildcard

from ...engine.expressions import is_same, op_name
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
        if not is_same(match.selection, match.other, MAX_LEVELS):
            return Refusal("the branches compute different NMS")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.selection
