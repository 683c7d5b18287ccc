"""Rewrite the sum and difference of a tensor and itself so that TVM gets them right."""

from __future__ import annotations

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.rule import Match, Rule


class TwiceForSumOfEquals(Rule):
    """Replace `x + x` with `x * 2`, as TVM tries to itself, and fails unless `x` is a parameter.

    Why legal: doubling a float is exact, and doubling an integer wraps as the sum does.
    """

    one, other = wildcard(), wildcard()
    pattern = is_op("add")(one, other)

    def where(self, match: Match) -> bool:
        is_number = match.root.checked_type.dtype != "bool"
        return is_number and structural_equal(match.one, match.other)  # TVM merges equal operators first

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.multiply(match.one, relay.const(2, match.root.checked_type.dtype))


class SeparateDifferenceOfEquals(Rule):
    """Replace `x - x` of floats with `x - y`, where `y` is a copy of `x` in memory.

    Why legal: `annotation.stop_fusion` changes no number. TVM folds `x - x` to 0, which is wrong where `x`
    is infinite or NaN, and does not compile a division by it.
    """

    one, other = wildcard(), wildcard()
    pattern = is_op("subtract")(one, other)

    def where(self, match: Match) -> bool:
        return "float" in match.root.checked_type.dtype and structural_equal(match.one, match.other)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.subtract(match.one, relay.annotation.stop_fusion(relay.copy(match.one)))
