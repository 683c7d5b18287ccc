"""Write the sum of a tensor and itself as its double."""

from __future__ import annotations

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_op, wildcard

from .._rule import Match, Rule


class TwiceForSumOfEquals(Rule):
    """Replace `x + x` with `x * 2`, which TVM would do itself, and fails at where `x` is no parameter.

    Why legal: the double of a number is exact, and of an integer wraps as the sum does.
    """

    one, other = wildcard(), wildcard()
    pattern = is_op("add")(one, other)

    def where(self, match: Match) -> bool:
        is_number = match.root.checked_type.dtype != "bool"
        return is_number and structural_equal(match.one, match.other)  # TVM merges equal operators first

    def rewrite(self, match: Match) -> relay.Expr:
        return relay.multiply(match.one, relay.const(2, match.root.checked_type.dtype))
