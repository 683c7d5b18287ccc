"""Restore attention from the matrix products and the softmax that spell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import topi_ext
from topi_ext.attention.op import NAME, parts_of
from topi_ext.attention.problem import BHND, BNHD

from tvm import relay
from tvm.relay.dataflow_pattern import DFPattern, is_op, wildcard

from ...analysis.layouts import order_of_axes
from ...analysis.operators import keeps_order
from ...engine.expressions import known_shape, op_name, static_shape
from ...engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from ..reshape_back import ReshapeBack
from .inputs import Plan, plan_for, why_not
from .scores import scores_of, softmax_below
from .views import GROUP, Axis, View, layout_of, operands


class ProductsAroundSoftmax(Rule):
    """Replace `softmax(query key^T * scale + mask) value` with `topi_ext.attention`.

    Either product may be spelled the other way around, as (B^T A^T)^T. In between there may be reshapes that
    split or merge batch and heads, transposes, and casts from one floating-point type to another; the scale
    may be a factor or divisor of the scores, the queries or the keys. A constant factor for each head, as of
    cosines, or for each query or key, multiplies the queries or the keys. Scores may be excluded by a number
    that takes their place, such as -inf or -1e9, instead of a mask that is added.

    Why legal: the operator computes the same, in float32. The softmax is over the keys, the scale is a
    constant, and nothing else uses the scores or their softmax. Factors that are the same for all elements of
    a sum may multiply either factor of its products, if they are finite. A number that takes the place of
    scores is so low that next to any other its weight is 0, and that to add it gives itself: if all scores of
    a query are excluded, all weights stay the same, and with -inf all are NaN. Results differ by rounding.
    """

    pattern = is_op("nn.batch_matmul")(wildcard(), wildcard())

    def plan(self, match: Match) -> Plan | Refusal | Answer:
        for side, axes in enumerate(("NE", "EN")):
            both = operands(View(match.root, (GROUP, *axes)), "M")
            found = softmax_below(both[side])
            if found is not None:
                return _plan(match, *found, both[1 - side], axes)
        return NO_MATCH

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        query, key, value = plan.inputs
        result = topi_ext.attention(
            query, key, value, plan.mask, scale=plan.scale, layouts=(*plan.layouts, BHND)
        )
        result = result if plan.axes == "NE" else relay.transpose(result, [0, 1, 3, 2])
        return relay.reshape(result, known_shape(match.root))


def _plan(match: Match, softmax: View, passed: list[relay.Expr], value: View, axes: str) -> Plan | Refusal:
    """The plan for a product of a softmax, which is behind the nodes that are passed, and of values."""
    if int(softmax.expr.attrs.axis) % len(softmax.axes) != softmax.axes.index("M"):
        return Refusal("the softmax is not over the axis that the second product sums")
    scores = scores_of(View(softmax.expr.args[0], softmax.axes))
    if isinstance(scores, Refusal):
        return scores
    inside = [*passed, softmax.expr, *scores.passed]
    if any(user not in [*inside, match.root] for node in inside for user in match.graph.users(node)):
        return Refusal("the scores or their softmax are used elsewhere, too")
    key, query = sorted(operands(scores.product, "D"), key=lambda view: "N" in view.axes)
    views = query, key, value
    reason = why_not(match.root, views)
    return Refusal(reason) if reason else plan_for(views, scores, axes)


class TransposeOfResult(Rule):
    """Let the operator write its result in the order to which it is transposed.

    Why legal: the same numbers are in the same order, and nothing else uses the result.
    """

    data = wildcard()
    pattern = is_op("transpose")(data)

    def plan(self, match: Match) -> relay.Expr | Refusal | Answer:
        """The attention that is transposed."""
        passed, shape, order = [match.data], static_shape(match.data), order_of_axes(match.root)
        while keeps_order(passed[-1]):
            passed.append(passed[-1].args[0])
        attention = passed[-1]
        if op_name(attention) != NAME or str(attention.attrs["layouts"][3]) != BHND:
            return NO_MATCH
        batch, heads, *rest = known_shape(attention)
        if shape is None or order is None or len(shape) < 3 or list(shape[-2:]) != rest:
            return NO_MATCH
        groups = len(shape) - 2
        strides = (GROUP * math.prod(shape[at + 1 : groups]) for at in range(groups))
        axes: list[Axis] = [*strides, "N", "E"]
        if layout_of([(axes[axis], shape[axis]) for axis in order], (batch, heads)) != BNHD:
            return NO_MATCH
        inside = [match.root, *passed]
        if any(user not in inside for node in passed for user in match.graph.users(node)):
            return Refusal("the result is used elsewhere, too")
        return attention

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        layouts = [*map(str, plan.attrs["layouts"][:3]), BNHD]
        return relay.reshape(_again(plan, plan.args[:3], layouts), known_shape(match.root))


def _cast_and_reshaped(data: DFPattern) -> DFPattern:
    wide = is_op("cast")(data)
    return wide | is_op("reshape")(wide)


class BetweenCasts(Rule):
    """Attend in half precision to what is in half precision, instead of casting it to float32 and back.

    Why legal: `topi_ext.attention` computes in float32, and rounds its result as the cast does.
    """

    query, key, value, mask = wildcard(), wildcard(), wildcard(), wildcard()
    result = is_op(NAME)(*map(_cast_and_reshaped, (query, key, value)), mask)
    reshaped = is_op("reshape")(result)
    pattern = is_op("cast")(result) | is_op("cast")(reshaped)

    def where(self, match: Match) -> bool:
        dtypes = {each.checked_type.dtype for each in (match.query, match.key, match.value, match.root)}
        return dtypes in ({"float16"}, {"bfloat16"})

    def plan(self, match: Match) -> Refusal | Answer:
        if match.used_elsewhere(match.result, *([match.reshaped] if match.reshaped else [])):
            return Refusal("the result is used elsewhere, too")
        return LEGAL

    def rewrite(self, match: Match, plan: Answer) -> relay.Expr:
        layouts = list(map(str, match.result.attrs["layouts"]))
        inputs = [
            relay.reshape(data, known_shape(wide))
            for data, wide in zip((match.query, match.key, match.value), match.result.args)
        ]
        return relay.reshape(_again(match.result, inputs, layouts), known_shape(match.root))


def _again(attention: relay.Call, inputs: Sequence[relay.Expr], layouts: Sequence[str]) -> relay.Call:
    """The same attention, with other inputs or layouts."""
    attrs, (query, key, value) = attention.attrs, inputs
    mask = attention.args[3] if attrs["has_mask"] else None
    scale, parts = float(attrs["scale"]), parts_of(attrs)
    return topi_ext.attention(query, key, value, mask, scale=scale, layouts=layouts, parts=parts)


class RestoreAttention(RulePass):
    """Replace the matrix products, the scale, the mask and the softmax of attention with one operator.

    >>> query, key, value = (relay.var(name, shape=(2, 10, 8)) for name in ("query", "key", "value"))
    >>> scores = relay.nn.batch_matmul(query, key) * relay.const(0.5)
    >>> y = relay.nn.batch_matmul(relay.nn.softmax(scores), value, transpose_b=False)
    >>> mod = tvm.IRModule.from_expr(relay.Function([query, key, value], y))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreAttention()(mod)))
    def @main(%query: Tensor[(2, 10, 8), float32], %key: Tensor[(2, 10, 8), float32],
        %value: Tensor[(2, 10, 8), float32]) -> Tensor[(2, 10, 8), float32] {
      %0 = reshape(%query, newshape=[1, 2, 10, 8]);
      %1 = reshape(%key, newshape=[1, 2, 10, 8]);
      %2 = reshape(%value, newshape=[1, 2, 10, 8]);
      %3 = topi_ext.attention(%0, %1, %2, 0f, has_mask=0, layouts=["BHND", "BHND", "BHND", "BHND"],
          scale=0.5f);
      reshape(%3, newshape=[2, 10, 8])
    }
    """

    rules = (ProductsAroundSoftmax, TransposeOfResult, BetweenCasts, ReshapeBack)
