"""Fuse convolutions in NHWC, with what follows them, into `topi_ext.conv2d_nhwc`."""

from __future__ import annotations

import math

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc
from topi_ext.conv2d_nhwc.op import has_kernel
from topi_ext.conv2d_nhwc.problem import MAX_ELEMENTS

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import TupleGetItemPattern, is_op, wildcard

from ..analysis.half_precision import holds
from ..analysis.shuffles import Shuffle
from ..convolution.fused_call import QUANTIZED, FusedCall, why_no_residual, why_no_shuffle
from ..engine.contract import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule
from .graph import FLOATS, dtype_of, extents_of, op_name
from .rule_pass import rule_pass
from .shuffles import SpelledShuffle, spelled_by
from .take_in import (
    CONVOLUTION,
    Grow,
    TakeIn,
    has_type_of,
    of_channels,
    of_filters,
    why_complete,
    why_no_kernel_of,
)
from .take_in_activations import WithActivation, WithPRelu, WithSpelledActivation


class OfConv2d(Rule):
    """Replace nn.conv2d in NHWC with `topi_ext.conv2d_nhwc`.

    Why legal: it is the same sum of products, accumulated in float32 and rounded once.
    """

    data, weight = wildcard(), wildcard()
    conv = is_op("relax.nn.conv2d")(data, weight)
    pattern = conv

    def __init__(self, target: tvm.target.Target, to_be: str | None = None) -> None:
        self.target, self.to_be = target, to_be

    def where(self, match: Match) -> bool:
        attrs = match.conv.attrs
        return (str(attrs.data_layout), str(attrs.kernel_layout)) == ("NHWC", "OHWI")

    def plan(self, match: Match) -> Answer | Refusal:
        dtype, attrs = dtype_of(match.data), match.conv.attrs
        if dtype not in FLOATS or {dtype_of(match.root), dtype_of(match.weight)} != {dtype}:
            return Refusal(f"the types are not all {' or '.join(FLOATS)}")
        data, weight, result = map(extents_of, (match.data, match.weight, match.root))
        if data is None or weight is None or result is None:
            return Refusal("the rank is dynamic")
        channels, filters = data[3], result[3]
        if channels is None or filters is None or None in weight:
            return Refusal("the number of channels is dynamic")
        computed_in = self.to_be if self.to_be and dtype == "float32" else dtype
        refusal = why_no_kernel_of(data, computed_in, self.target)
        if refusal is not None:
            return refusal
        if not has_kernel(channels, filters, int(attrs.groups), computed_in, self.target):
            return Refusal(f"the target has no kernel for {computed_in}")
        if computed_in != dtype and not all(
            holds(computed_in, match.graph.constant(each)) for each in (match.data, match.weight)
        ):
            return Refusal(f"a constant is out of the range of {computed_in}")
        if str(attrs.out_layout) != "NHWC":
            return Refusal("the result is in another layout")
        if 0 in (*data, *weight, *result):
            return Refusal("a tensor is empty")
        if max(math.prod(extent or 1 for extent in shape) for shape in (data, result)) > MAX_ELEMENTS:
            return Refusal("a tensor has too many elements")
        if min(attrs.padding) < 0:
            return Refusal("the padding is negative")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        attrs, weight = match.conv.attrs, match.graph.constant(match.weight)
        return conv2d_nhwc(
            match.data,
            match.weight
            if weight is None
            else relax.const(np.ascontiguousarray(weight), dtype_of(match.weight)),
            strides=tuple(map(int, attrs.strides)),
            padding=tuple(map(int, attrs.padding)),
            dilation=tuple(map(int, attrs.dilation)),
            groups=int(attrs.groups),
        )


class OfRoundedConv2d(OfConv2d):
    """The same where sums in float32 are rounded to the type of the data by a cast."""

    pattern = is_op("relax.astype")(OfConv2d.conv)

    def plan(self, match: Match) -> Answer | Refusal:
        if dtype_of(match.conv) != "float32":
            return NO_MATCH
        if match.graph.users(match.conv) != [match.root]:
            return Refusal("the sums are used without rounding, too")
        return super().plan(match)


class _WithConstant(Grow):
    """Fold in what is computed with a constant for each channel."""

    constant = wildcard()

    def where(self, match: Match) -> bool:
        return match.graph.constant(match.constant) is not None

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        constant = of_channels(match, match.constant)
        if constant is None:
            return Refusal("the constant is not one for each channel")
        return _scaled(match, call, *self.factor_and_summand(op_name(match.root), constant), self.to_be)

    def factor_and_summand(self, name: str, constant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the operator multiplies each channel by, and adds to it."""
        raise NotImplementedError


class WithBias(_WithConstant):
    """Fold in the addition, or the subtraction, of a constant for each channel."""

    pattern = (
        is_op("relax.add")(Grow.conv, _WithConstant.constant)
        | is_op("relax.add")(_WithConstant.constant, Grow.conv)
        | is_op("relax.subtract")(Grow.conv, _WithConstant.constant)
    )

    def factor_and_summand(self, name: str, constant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones_like(constant), -constant if name == "relax.subtract" else constant


class WithScale(_WithConstant):
    """Fold a product with a constant for each channel, or a quotient, into the weights.

    Why legal: each filter's sum is multiplied by one number, and so may be its weights,
    which are rounded anew.
    """

    pattern = (
        is_op("relax.multiply")(Grow.conv, _WithConstant.constant)
        | is_op("relax.multiply")(_WithConstant.constant, Grow.conv)
        | is_op("relax.divide")(Grow.conv, _WithConstant.constant)
    )

    def factor_and_summand(self, name: str, constant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 1 / constant if name == "relax.divide" else constant, np.zeros_like(constant)


class WithBatchNorm(TakeIn):
    """Fold a batch normalization by constant moments into weights and bias.

    TVM's FoldBatchnormToConv2D asks neither for the axis nor for what is trained, scaled or centered.

    Why legal: it multiplies each channel by a number and adds another one. The moments, its other results,
    are not used.
    """

    data = wildcard()
    conv = is_op(CONVOLUTION)(varg_default_wildcard=True)
    gamma, beta, mean, variance = wildcard(), wildcard(), wildcard(), wildcard()
    norm = is_op("relax.nn.batch_norm")(conv, gamma, beta, mean, variance)
    pattern = TupleGetItemPattern(norm, 0)

    def plan(self, match: Match) -> FusedCall | Refusal:
        attrs = match.norm.attrs
        if match.graph.users(match.conv) != [match.norm] or match.graph.users(match.norm) != [match.root]:
            return Refusal("the result of the convolution, or the moments, have other users")
        if attrs.training:
            return Refusal("it normalizes by the moments of the data")
        if int(attrs.axis) % 4 != 3:
            return Refusal("it normalizes along another axis than the channels")
        parameters = [
            match.graph.constant(each) for each in (match.gamma, match.beta, match.mean, match.variance)
        ]
        if any(each is None for each in parameters):
            return Refusal("its parameters are not constant")
        gamma, beta, mean, variance = (each.astype("float64") for each in parameters)
        factor = (gamma if attrs.scale else 1) / np.sqrt(variance + float(attrs.epsilon))
        call, shift = FusedCall(match.conv), (beta if attrs.center else 0) - mean * factor
        return why_complete(call) or _scaled(match, call, factor, shift, self.to_be)


class WithShuffle(SpelledShuffle, TakeIn):
    """Fold in a depth-to-space: the convolution writes each result to its place in the block.

    Why legal: nothing else uses what is in between. The operator takes the channels in the order DCR; for CRD
    the filters are put into it.
    """

    def plan(self, match: Match) -> FusedCall | Answer | Refusal:
        shuffle, conv = spelled_by(match), match.graph.value(match.data)
        if shuffle is None or op_name(conv) != CONVOLUTION:
            return NO_MATCH
        if match.used_elsewhere(match.data, match.split, match.moved):
            return Refusal("the result of the convolution has other users")
        call = FusedCall(conv)
        if call.is_quantizing:
            return Refusal(QUANTIZED)
        refusal = why_no_shuffle(call)
        if refusal is not None:
            return refusal
        if call.groups > 1:
            return Refusal("the filters are in groups")
        call.block_size = shuffle.block
        return call if shuffle.mode == "DCR" else _reordered(match, call, shuffle)


class WithResidual(Grow):
    """Fold in the addition of another tensor.

    Why legal: that tensor does not depend on the convolution, whose only user this is.
    """

    residual = wildcard()
    pattern = is_op("relax.add")(Grow.conv, residual)

    def where(self, match: Match) -> bool:
        return match.graph.constant(match.residual) is None

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        refusal = why_no_residual(call)
        if refusal is not None:
            return refusal
        if match.graph.value(match.residual) == match.conv:
            return Refusal("the convolution is added to itself")
        if not has_type_of(match.residual, match.conv):
            return Refusal("one of the tensors is broadcast to the other")
        call.residual = match.residual
        return call


class WithResidualBefore(WithResidual):
    """The same where the convolution is the second operand; the first may be one, too, with other users."""

    pattern = is_op("relax.add")(WithResidual.residual, Grow.conv)


def _scaled(
    match: Match, call: FusedCall, factor: np.ndarray, added: np.ndarray, to_be: str | None
) -> FusedCall | Refusal:
    """The call whose result is the same but for a factor and a summand for each channel."""
    factor, added = of_filters(call, factor), of_filters(call, added)
    weight = match.graph.constant(call.weight)
    bias = np.zeros(len(added)) if call.bias is None else match.graph.constant(call.bias)
    is_scaled = (factor != 1).any()
    if call.activation or call.final_activation or (is_scaled and call.residual is not None):
        return Refusal("it comes after an activation or a residual")
    if bias is None or (is_scaled and weight is None):
        return Refusal("the weights or the bias of the convolution are not constant")
    bias = _rounded(bias * factor + added, "float32")
    if is_scaled:
        weight = _rounded(weight * factor.reshape(-1, 1, 1, 1), dtype_of(call.weight))
    if bias is None or (is_scaled and weight is None):
        return Refusal("weights or bias would overflow")
    if is_scaled and to_be and not holds(to_be, weight):
        return Refusal(f"the weights would be out of the range of {to_be}")
    call.bias = relax.const(bias)
    if is_scaled:
        call.weight = relax.const(weight)
    return call


def _reordered(match: Match, call: FusedCall, shuffle: Shuffle) -> FusedCall | Refusal:
    """The call with its filters in the order in which the operator shuffles them."""
    order = shuffle.deep(int(match.root.ty.shape.values[3])).ravel()  # in DCR this would be ascending
    for name, given in call.by_filter().items():
        array = match.graph.constant(given)
        if array is None:
            return Refusal("the weights or the bias of the convolution are not constant")
        setattr(call, name, relax.const(np.ascontiguousarray(array[order])))
    return call


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """An array in another type; None where a number would be infinite, or is none."""
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    return rounded if np.isfinite(rounded).all() else None


def FuseConv2dNHWC(target: tvm.target.Target, to_be: str | None = None) -> tvm.transform.Pass:
    """Fuse NHWC convolutions with their epilogues into `topi_ext.conv2d_nhwc`.

    `to_be`: the type to which `InMixedPrecision` will convert float32, for which the target then needs a
    kernel: in this order, bias and slopes are not rounded, since they stay float32.

    Why legal: the operator adds a bias, activates, adds a residual, activates and shuffles, in this order.
    Only what follows in that order is folded in, and only where results in between have no other users; what
    is done to each result alone may follow the shuffle. Sums are float32 and rounded once, at the end.
    """
    growth = (
        WithBatchNorm,
        WithScale,
        WithBias,
        WithSpelledActivation,
        WithActivation,
        WithPRelu,
        WithShuffle,
        WithResidual,
        WithResidualBefore,
    )
    first = OfConv2d(target, to_be), OfRoundedConv2d(target, to_be)
    return rule_pass("FuseConv2dNHWC", *first, *(rule(to_be) for rule in growth))
