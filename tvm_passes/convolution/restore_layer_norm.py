"""Restore normalizations along one axis from the means and differences that spell them."""

from __future__ import annotations

import topi_ext
from topi_ext.authoring import known
from topi_ext.corrections.convert_layout import LAYER_NORM

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .normalization import BetweenCasts, DividedDifference, FactorOrAddend, Plan, again, why_not_by_operator


class DividedDifferenceOfRows(DividedDifference):
    """Replace `(x - mean(x)) / sqrt(variance(x) + epsilon)` along one axis with `topi_ext.layer_norm`.

    A mean may be a sum that is divided, the variance a mean of squares, and the division a product with
    `rsqrt`, a reciprocal or a power. In between there may be casts from one floating-point type to another,
    as there are in a network that is imported in half precision.

    Why legal: the operator computes the same in float32, and mean, variance and epsilon are those that it
    computes with: of the same data, along the same axis, divided by its length. Results differ by rounding,
    and in half precision they are more accurate.
    """

    def why_not_along(self, axes: set[int], rank: int) -> Refusal | Answer | None:
        return Refusal(f"the data are normalized over {len(axes)} axes together") if len(axes) != 1 else None

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        return topi_ext.layer_norm(match.x, axis=plan.axis, epsilon=plan.epsilon)


class BetweenTransposes(Rule):
    """Normalize data along another axis, instead of transposing them, and the result back.

    Why legal: the same numbers are normalized together, wherever their axis is.
    """

    data, gamma, beta = wildcard(), wildcard(), wildcard()
    before = is_op("transpose")(data)
    norm = is_op(LAYER_NORM)(before, gamma, beta)
    pattern = is_op("transpose")(norm)

    def plan(self, match: Match) -> int | Refusal | Answer:
        rank = len(match.root.checked_type.shape)
        first, second = (_order(each, rank) for each in (match.before, match.root))
        if [first[axis] for axis in second] != list(range(rank)):
            return NO_MATCH
        if match.used_elsewhere(match.norm):
            return Refusal("the normalized data are used elsewhere, too")
        return first[int(match.norm.attrs["axis"])]

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        return again(match.norm, match.data, axis=plan)


def _order(transpose: relay.Call, rank: int) -> list[int]:
    """Which axis of its operand each axis of a transpose is."""
    axes = transpose.attrs.axes
    return [int(axis) % rank for axis in axes] if axes else list(range(rank))[::-1]


class StockNorm(Rule):
    """Replace `nn.layer_norm` with `topi_ext.layer_norm`.

    Why legal: both compute the same; TVM computes it as the operators that spell it, in the type of the data.
    """

    data, gamma, beta = wildcard(), wildcard(), wildcard()
    pattern = is_op("nn.layer_norm")(data, gamma, beta)

    def plan(self, match: Match) -> Plan | Refusal:
        type_, attrs = match.data.checked_type, match.root.attrs
        axis, epsilon = int(attrs.axis) % len(type_.shape), float(attrs.epsilon)
        if known(type_.shape[axis]) is None:
            return Refusal("the length of the axis is known only at run time")
        return why_not_by_operator(type_.dtype, epsilon) or Plan(axis, epsilon)

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        attrs = match.root.attrs
        affine = match.gamma if attrs.scale else None, match.beta if attrs.center else None
        return topi_ext.layer_norm(match.data, *affine, axis=plan.axis, epsilon=plan.epsilon)


class RestoreLayerNorm(RulePass):
    """Replace the operators that normalize data along one axis, and scale and shift them, with one.

    >>> x, gamma = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((8, 1, 1), "float32"))
    >>> difference = x - relay.mean(x, axis=1, keepdims=True)
    >>> variance = relay.mean(difference * difference, axis=1, keepdims=True)
    >>> y = difference / relay.sqrt(variance + relay.const(1e-6)) * gamma
    >>> mod = tvm.IRModule.from_expr(relay.Function([x], y))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreLayerNorm()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 8, 6, 10), float32] {
      topi_ext.layer_norm(%x, const[(8,), float32], 0f, axis=1, epsilon=1e-06f, has_beta=0,
          has_gamma=1)
    }
    """

    rules = (DividedDifferenceOfRows, FactorOrAddend, StockNorm, BetweenCasts, BetweenTransposes)
