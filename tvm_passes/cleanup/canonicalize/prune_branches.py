"""Replace an `if` whose condition is known with the branch it takes."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_if, wildcard

from ...analysis.shape_values import all_known, shape_values
from ...engine.rule import NO_MATCH, Answer, Match, Rule


class PruneBranch(Rule):
    """Replace an `if` whose condition is known with the branch it takes.

    Why legal: Relay's expressions have no effects, so the other branch is never missed.
    """

    condition, taken, other = wildcard(), wildcard(), wildcard()
    pattern = is_if(condition, taken, other)

    def plan(self, match: Match) -> relay.Expr | Answer:
        holds = shape_values(match.graph, match.condition)
        if holds is None or not all_known(holds):
            return NO_MATCH
        return match.taken if holds.flat[0] else match.other

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan
