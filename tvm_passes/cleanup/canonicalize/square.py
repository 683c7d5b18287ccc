"""Rewrite powers that are products."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

from ...engine.expressions import scalar
from ...engine.rule import Match, Rule


class SquareForPower(Rule):
    """Replace `power(x, 2)` with `x * x`, as PyTorch computes it.

    Why legal: the square of a float, rounded once, is that product. A general power takes a logarithm and an
    exponential of each element.
    """

    base, exponent = wildcard(), is_constant()
    pattern = is_op("power")(base, exponent)

    def where(self, match: Match) -> bool:
        is_float = "float" in match.root.checked_type.dtype
        return is_float and scalar(match.exponent) == 2 and match.root.checked_type == match.base.checked_type

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.multiply(match.base, match.base)
