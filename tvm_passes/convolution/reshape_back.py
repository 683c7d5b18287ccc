"""A rule that several passes share: two reshapes that leave a tensor as it was."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.expressions import batch_shape
from ..engine.rule import Match, Rule


class ReshapeBack(Rule):
    """Drop two reshapes of which the second undoes the first, such as those between two layers.

    Why legal: no reshape changes the order of the elements, or their number, which tells the batch.
    """

    data = wildcard()
    pattern = is_op("reshape")(is_op("reshape")(data))

    def where(self, match: Match) -> bool:
        shape = batch_shape(match.data)
        return shape is not None and shape == batch_shape(match.root) and 0 not in shape[1:]

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.data
