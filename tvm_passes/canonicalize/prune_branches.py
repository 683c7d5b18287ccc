"""Replace an `if` whose condition is known with the branch it takes."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_if, wildcard

from .._rule import Match, Rule
from .shape_values import all_known, shape_values


class PruneBranch(Rule):
    """Replace an `if` whose condition is known with the branch it takes.

    Why legal: Relay's expressions have no effects, so the other branch is never missed.
    """

    condition, taken, other = wildcard(), wildcard(), wildcard()
    pattern = is_if(condition, taken, other)

    def where(self, match: Match) -> bool:
        return all_known(shape_values(match.graph, match.condition))

    def rewrite(self, match: Match) -> relay.Expr:
        holds = shape_values(match.graph, match.condition).flat[0]
        return match.taken if holds else match.other
