"""A rule that several passes share: two reshapes that leave a tensor as it was."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.expressions import static_shape
from ..engine.rule import Match, Rule


class ReshapeBack(Rule):
    """Drop two reshapes of which the second undoes the first, such as those between two layers.

    Why legal: no reshape changes the order of the elements.
    """

    data = wildcard()
    pattern = is_op("reshape")(is_op("reshape")(data))

    def where(self, match: Match) -> bool:
        shape = static_shape(match.data)
        return shape is not None and shape == static_shape(match.root)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.data
