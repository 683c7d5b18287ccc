"""Restore normalizations of groups of channels from the operators that spell them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import topi_ext
from topi_ext.authoring import known
from topi_ext.conv2d_nhwc.problem import GivenActivation
from topi_ext.corrections.convert_layout import GROUP_NORM, LAYER_NORM

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import of_each_channel
from ..analysis.operators import ACTIVATIONS
from ..analysis.scalar_functions import activation_of, call_below
from ..engine.expressions import constant, op_name
from ..engine.match import any_op
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .fused_call import activation_as_given, why_not_taken_in
from .normalization import (
    BetweenCasts,
    DividedDifference,
    FactorOrAddend,
    Plan,
    again,
    is_activated,
    reshaped_constant,
    why_not_by_operator,
)


class StockGroupNorm(Rule):
    """Replace `nn.group_norm` or `nn.instance_norm` with `topi_ext.group_norm`.

    Why legal: they compute the same, and an instance is a group of one channel. TVM computes it as the
    operators that spell it, in the type of the data.
    """

    data, gamma, beta = wildcard(), wildcard(), wildcard()
    pattern = any_op(("nn.group_norm", "nn.instance_norm"), data, gamma, beta)

    def plan(self, match: Match) -> Plan | Refusal:
        type_, attrs = match.data.checked_type, match.root.attrs
        rank = len(type_.shape)
        axis, epsilon = int(attrs.axis) % rank, float(attrs.epsilon)
        if axis not in (1, rank - 1):
            return Refusal("the channels are neither the second axis nor the last")
        if op_name(match.root) == "nn.group_norm" and axis != 1:
            return Refusal("TVM reshapes as if the channels were the second axis")
        if not known(type_.shape[axis]):
            return Refusal("the number of channels is known only at run time")
        return why_not_by_operator(type_.dtype, epsilon) or Plan(axis, epsilon)

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        attrs = match.root.attrs
        is_given = attrs.scale and not _is_all(match.gamma, 1), attrs.center and not _is_all(match.beta, 0)
        gamma, beta = (each if given else None for each, given in zip((match.gamma, match.beta), is_given))
        channels = int(match.data.checked_type.shape[plan.axis])
        groups = int(getattr(attrs, "num_groups", channels))
        return topi_ext.group_norm(
            match.data, gamma, beta, groups=groups, axis=plan.axis, epsilon=plan.epsilon
        )


def _is_all(expr: relay.Expr, number: float) -> bool:
    """Whether an expression is a constant of one number only."""
    array = constant(expr)
    return array is not None and bool((array == number).all())


class DividedDifferenceOfImages(DividedDifference):
    """Replace `(x - mean(x)) / sqrt(variance(x) + epsilon)` over all pixels with `topi_ext.group_norm`.

    Over the pixels of each channel, every channel is a group; over those of all channels, an image is one.
    Spellings and legality are those that RestoreLayerNorm knows along one axis, which it replaces.
    """

    def why_not_along(self, axes: set[int], rank: int) -> Refusal | Answer | None:
        if len(axes) == 1:
            return NO_MATCH
        if axes not in (set(range(1, rank)), set(range(2, rank)), set(range(1, rank - 1))):
            return Refusal("the data are normalized over other axes than those of pixels, or all of an image")
        return None

    def plan(self, match: Match) -> Plan | Refusal | Answer:
        plan = super().plan(match)
        if isinstance(plan, Plan) and not known(match.x.checked_type.shape[self._axis(match, plan)]):
            return Refusal("the number of channels is known only at run time")
        return plan

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        axis = self._axis(match, plan)
        channels, of_all = int(match.x.checked_type.shape[axis]), len(plan.axes) == _rank(match.x) - 1
        groups = 1 if of_all else channels
        return topi_ext.group_norm(match.x, groups=groups, axis=axis, epsilon=plan.epsilon)

    def _axis(self, match: Match, plan: Plan) -> int:
        """The axis of the channels."""
        return 1 if max(plan.axes) == _rank(match.x) - 1 else _rank(match.x) - 1


def _rank(expr: relay.Expr) -> int:
    return len(expr.checked_type.shape)


class OfGroups(Rule):
    """Normalize groups of the channels of images, instead of the rows to which they are reshaped, and back.

    This is how ONNX files without an operator for it have it, and TVM's importers. In between there may be a
    factor and an addend of each group.

    Why legal: a row, or a group of them, has the elements of whole channels of one image that are neighbours.
    Nothing else uses what is in between.
    """

    data, gamma, beta, factor, addend = (wildcard() for _ in range(5))
    before = is_op("reshape")(data)
    rows = before | is_op("cast")(before)
    norm = any_op((LAYER_NORM, GROUP_NORM), rows, gamma, beta)
    scaled = norm | is_op("multiply")(norm, factor)
    shifted = scaled | is_op("add")(scaled, addend)
    pattern = is_op("reshape")(shifted)

    def where(self, match: Match) -> bool:
        return tvm.ir.structural_equal(match.root.checked_type.shape, match.data.checked_type.shape)

    def plan(self, match: Match) -> _Grouped | Refusal | Answer:
        shape, rows = match.data.checked_type.shape, match.norm.checked_type.shape
        lengths, of_rows = ([known(extent) for extent in each[1:]] for each in (shape, rows))
        attrs, is_layer_norm = match.norm.attrs, op_name(match.norm) == LAYER_NORM
        axis = int(attrs["axis"]) % len(rows)
        if len(rows) < 3 or axis != (len(rows) - 1 if is_layer_norm else 1) or is_activated(match.norm):
            return NO_MATCH
        if is_layer_norm and (len(rows) > 3 or attrs["has_gamma"] or attrs["has_beta"]):
            return NO_MATCH
        if not all(lengths) or not all(of_rows):
            return Refusal("the shape of an image is known only at run time")
        channels, count = lengths[0] or 1, of_rows[0] or 1
        sizes = [math.prod(each or 0 for each in extents) for extents in (lengths, of_rows)]
        if sizes[0] != sizes[1] or channels % count:
            return Refusal("the rows are not groups of the channels of one image")
        if any(match.used_elsewhere(each) for each in (match.norm, match.scaled, match.shifted)):
            return Refusal("the normalized data are used elsewhere, too")
        ones, zeros = np.ones(count, "float32"), np.zeros(count, "float32")
        gamma = constant(match.gamma) if attrs["has_gamma"] else ones
        beta = constant(match.beta) if attrs["has_beta"] else zeros
        factor, addend = (
            default if numbers is None else _of_rows(numbers, len(rows))
            for numbers, default in ((match.factor, ones), (match.addend, zeros))
        )
        if gamma is None or beta is None or factor is None or addend is None:
            return Refusal("factors or addends are not constants with a number for each group")
        per_channel = (
            np.repeat(np.broadcast_to(each, [count]), channels // count).astype("float32")
            for each in (gamma * factor, beta * factor + addend)
        )
        return _Grouped(count if is_layer_norm else int(attrs["groups"]), *per_channel)

    def rewrite(self, match: Match, plan: _Grouped) -> relay.Expr:
        dtype = match.norm.checked_type.dtype
        data = match.data if match.data.checked_type.dtype == dtype else relay.cast(match.data, dtype)
        return topi_ext.group_norm(
            data,
            None if (plan.gamma == 1).all() else relay.const(plan.gamma),
            None if (plan.beta == 0).all() else relay.const(plan.beta),
            groups=plan.groups,
            epsilon=float(match.norm.attrs["epsilon"]),
        )


class _Grouped(NamedTuple):
    groups: int
    gamma: np.ndarray  # of each channel
    beta: np.ndarray


def _of_rows(numbers: relay.Expr, rank: int) -> np.ndarray | None:
    """The numbers of each group, or one for all, in float32."""
    constant = reshaped_constant(numbers)
    vector = None if constant is None else of_each_channel(constant, rank, 1)
    return None if vector is None else vector.astype("float32")


class WithActivation(Rule):
    """Apply an activation in `topi_ext.group_norm`.

    Why legal: the operator applies it to the result before it rounds, and nothing else uses that.
    """

    norm = is_op(GROUP_NORM)(wildcard(), wildcard(), wildcard())
    pattern = any_op(ACTIVATIONS, norm)

    def where(self, match: Match) -> bool:
        return not is_activated(match.norm)

    def plan(self, match: Match) -> GivenActivation | Refusal:
        if match.used_elsewhere(match.norm):
            return Refusal("the normalized data are used elsewhere, too")
        activation = activation_as_given(match.root)
        return why_not_taken_in(activation) or activation

    def rewrite(self, match: Match, plan: GivenActivation) -> relay.Expr:
        return again(match.norm, match.norm.args[0], activation=plan)


class WithSpelledActivation(Rule):
    """The same for an activation that several operators compute, such as `x * sigmoid(x)`.

    Why legal: they are evaluated at many points, among them those around each of their constants, and are
    the activation there; nothing else uses what they compute in between.
    """

    pattern = any_op(("multiply", "divide"), wildcard(), wildcard())

    def plan(self, match: Match) -> str | Answer:
        norm = call_below(match.root, GROUP_NORM)
        if norm is None or is_activated(norm) or match.root.checked_type != norm.checked_type:
            return NO_MATCH
        return activation_of(match.root, norm, match.graph) or NO_MATCH

    def rewrite(self, match: Match, plan: str) -> relay.Expr:
        norm = call_below(match.root, GROUP_NORM)
        assert norm is not None
        return again(norm, norm.args[0], activation=plan)


class RestoreGroupNorm(RulePass):
    """Replace the operators that normalize groups of channels, or each of them, over an image, with one.

    It finds what an importer makes of group and instance normalization, scales, shifts and activates in the
    same operator, and expects RestoreLayerNorm to have replaced what is normalized along one axis.

    >>> x = relay.var("x", shape=(1, 8, 6, 10))
    >>> gamma, beta = (relay.const(np.full(8, number, "float32")) for number in (2, 3))
    >>> y = relay.nn.relu(relay.nn.group_norm(x, gamma, beta, num_groups=4))
    >>> mod = tvm.IRModule.from_expr(relay.Function([x], y))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreGroupNorm()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 8, 6, 10), float32] {
      topi_ext.group_norm(%x, const[(8,), float32], const[(8,), float32], activation="relu",
          activation_high=0f, activation_low=0f, axis=1, epsilon=1e-05f, groups=4, has_beta=1,
          has_gamma=1)
    }
    """

    rules = (
        *(StockGroupNorm, DividedDifferenceOfImages, OfGroups),
        *(FactorOrAddend, BetweenCasts, WithActivation, WithSpelledActivation),
    )
