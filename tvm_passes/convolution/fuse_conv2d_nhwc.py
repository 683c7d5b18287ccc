"""Fuse an NHWC convolution, and what follows it, into one `topi_ext.conv2d_nhwc`.

The operator grows: one rule makes it from nn.conv2d, and others fold what comes next into it, as long as that
keeps to the operator's own order: bias, activation, residual, final activation, depth to space.
"""

from __future__ import annotations

import math

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc
from topi_ext.conv2d_nhwc.op import FLOATS, has_grouped_kernel, takes_any_batch, takes_any_size
from topi_ext.conv2d_nhwc.problem import MAX_ELEMENTS

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import (
    as_constant,
    of_each_channel,
    pairs,
    shuffle_of,
    weights_of,
    why_not_plain,
    why_not_whole,
)
from ..analysis.half_precision import HALF, RANGES
from ..analysis.operators import ACTIVATIONS
from ..analysis.precision import gains, why_not_half
from ..analysis.scalar_functions import activation_of, call_below
from ..analysis.targets import has_onednn, target_or_current
from ..engine.expressions import constant, extents_of, op_name, static_shape
from ..engine.match import any_op
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass, for_target
from .enlarge_weights import EnlargedForFloat16
from .fused_call import (
    QUANTIZED,
    FusedCall,
    activation_as_given,
    why_no_activation,
    why_no_residual,
    why_no_shuffle,
    why_not_taken_in,
)


class OfHalf(Rule):
    """Replace nn.conv2d in NHWC with `topi_ext.conv2d_nhwc`, which runs on tensor cores.

    Why legal: it is the same sum of products, accumulated in float32 and rounded once. On CUDA, infinity or
    NaN in one group may make the results of others NaN, since small groups are computed together.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.conv2d")(data, weight)
    dtypes: tuple[str, ...] = HALF
    half: str | None = None  # the type in which it will be computed, if not its own
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        return str(match.root.attrs.data_layout) == "NHWC"

    def plan(self, match: Match) -> Answer | Refusal:
        dtype, groups = match.data.checked_type.dtype, int(match.root.attrs.groups)
        computed_in = self.half or dtype
        data, result = extents_of(match.data), extents_of(match.root)
        channels, filters = data[3], result[3]
        if channels is None or filters is None:
            return Refusal("the number of channels is dynamic")
        if None in data[1:3] and not takes_any_size(computed_in, self.target):
            return Refusal("the size of the images is dynamic, for which the target has no kernel")
        if data[0] is None and not takes_any_batch(self.target):
            return Refusal("the batch is dynamic, for which the target has no kernel")
        is_served = groups > 1 and has_grouped_kernel(channels, filters, groups, computed_in, self.target)
        is_served = is_served and dtype in FLOATS
        if dtype not in self.dtypes and not is_served:
            return Refusal(f"tensor cores do not multiply {dtype} in full precision")
        if match.root.checked_type.dtype != dtype:
            return Refusal(f"the result is {match.root.checked_type.dtype}, not {dtype}")
        if 0 in (*data, *result):
            return Refusal("the tensor is empty")
        if max(math.prod(extent or 1 for extent in shape) for shape in (data, result)) > MAX_ELEMENTS:
            return Refusal("the tensor has too many elements")
        if any(min(before, after) < 0 for _, _, before, after in pairs(match.root)):
            return why_not_plain(match.root) or Refusal("the padding is negative")
        if groups > 1 and not is_served:
            return Refusal("the target has no kernel for a grouped convolution")
        return why_not_plain(match.root, grouped=is_served) or LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        strides, dilation, before, after = zip(*pairs(match.root))
        groups = int(match.root.attrs.groups)
        channels, filters = (int(expr.checked_type.shape[3]) for expr in (match.data, match.root))
        weights = weights_of(match.root)
        # Of a convolution with a few filters for each channel, TVM has the weights as (channel, filter, ...).
        weights = weights.reshape(filters, channels // groups, *weights.shape[2:])
        return conv2d_nhwc(
            match.data,
            as_constant(weights.transpose(0, 2, 3, 1), match.data.checked_type.dtype),
            strides=strides,
            padding=(*before, *after),
            dilation=dilation,
            groups=groups,
        )


class OfFloat(OfHalf):
    """The same, in float32 too, which has kernels for LLVM only."""

    dtypes = (*HALF, "float32")


class ToBeFloat16(OfHalf):
    """The same, of float32 that InMixedPrecision will convert to half precision."""

    dtypes = ("float32",)
    half: str = "float16"

    def plan(self, match: Match) -> Answer | Refusal:
        if not gains(match.root, self.half):
            return NO_MATCH
        reason = why_not_half(match.root, self.half)
        return Refusal(reason) if reason else super().plan(match)


class ToBeBfloat16(ToBeFloat16):
    """The same for bfloat16."""

    half = "bfloat16"


class _Grow(Rule):
    """Fold what comes next into the call; the plan is the call that it becomes."""

    conv = is_op("topi_ext.conv2d_nhwc")(None)

    def plan(self, match: Match) -> FusedCall | Refusal:
        if match.graph.users(match.conv) != [match.root]:  # also if the tensor added depends on it
            return Refusal("the result of the convolution has other users")
        if match.root.checked_type.dtype != match.conv.checked_type.dtype:
            return Refusal("the next operator changes the type")
        call = FusedCall(match.conv)
        return Refusal(QUANTIZED) if call.is_quantizing else self.grown(match, call)

    def rewrite(self, match: Match, plan: FusedCall) -> relay.Expr:
        return plan.call()

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        """The call with the root folded in, or why the operator does not do that in this order."""
        raise NotImplementedError


class WithBias(_Grow):
    """Fold in the addition of a per-channel constant."""

    constant = wildcard()
    pattern = is_op("add")(_Grow.conv, constant) | is_op("nn.bias_add")(_Grow.conv, constant)

    def where(self, match: Match) -> bool:
        return constant(match.constant) is not None

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        # There may be a residual already: the two can be added in either order.
        if call.activation or call.final_activation or call.block_size > 1:
            return Refusal("the constant is added after an activation or a shuffle")
        before = None if call.bias is None else constant(call.bias)
        if call.bias is not None and before is None:
            return Refusal("the convolution has a bias that is not constant")
        bias = _of_filters(match)
        if bias is None:
            return Refusal("the constant is not per-channel")
        refusal = _why_too_large(bias, match.constant.checked_type.dtype)
        if before is not None:
            bias = bias.astype("float32") + before.astype("float32")
        call.bias = relay.const(bias)  # in the type of the data or in float32: the operator takes both
        return refusal or call


class WithActivation(_Grow):
    """Fold in an activation, as the first one or the final one."""

    pattern = any_op(ACTIVATIONS, _Grow.conv) | is_op("nn.prelu")(_Grow.conv, wildcard())

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        name, attrs = op_name(match.root), match.root.attrs
        if call.block_size > 1:
            return Refusal("the activation comes after a shuffle")
        if name == "nn.prelu":
            if call.activation or call.residual is not None:
                return Refusal("per-channel slopes are supported in the first activation only")
            if int(attrs.axis) % 4 != 3:
                return Refusal("the slopes are not along the channel axis")
            slopes = constant(match.root.args[1])
            if slopes is None:
                return Refusal("the slopes are not constant")
            refusal = _why_too_large(slopes, match.root.args[1].checked_type.dtype)
            if refusal:
                return refusal
            call.slope = match.root.args[1]
        activation = activation_as_given(match.root)
        refusal = why_not_taken_in(activation) or why_no_activation(call)
        if refusal is None:
            call.activate(activation)
        return refusal or call


class WithSpelledActivation(Rule):
    """Fold in an activation that several operators compute, such as `x * sigmoid(x)`.

    Why legal: they are evaluated at many points, among them those around each of their constants, and are
    the activation there; nothing else uses what they compute in between. In half precision, results in
    between are no longer rounded.
    """

    product = any_op(("multiply", "divide"), wildcard(), wildcard())
    pattern = product | is_op("cast")(product)  # a network in half precision may compute it in float32

    def plan(self, match: Match) -> FusedCall | Answer | Refusal:
        conv = call_below(match.root, "topi_ext.conv2d_nhwc")
        name = None if conv is None else activation_of(match.root, conv, match.graph)
        if conv is None or name is None:
            return NO_MATCH
        if match.root.checked_type != conv.checked_type:
            return NO_MATCH
        call = FusedCall(conv)
        if call.is_quantizing:
            return Refusal(QUANTIZED)
        if call.block_size > 1:
            return Refusal("the activation comes after a shuffle")
        refusal = why_no_activation(call)
        if refusal is None:
            call.activate(name)
        return refusal or call

    def rewrite(self, match: Match, plan: FusedCall) -> relay.Expr:
        return plan.call()


class WithSquashingActivation(WithSpelledActivation):
    """The same for sigmoid and tanh, in full precision only.

    Rounded to half precision, scores close to 1, which are compared, would be alike.
    """

    pattern = any_op(("sigmoid", "tanh"), wildcard())


class WithSquashingActivationBetween(WithSquashingActivation):
    """The same where convolutions alone read it, which will take it in half precision in any case."""

    def where(self, match: Match) -> bool:
        users = match.graph.users(match.root)
        return all(
            op_name(user) == "topi_ext.conv2d_nhwc" and user.args[0].same_as(match.root) for user in users
        )


class WithResidual(_Grow):
    """Fold in the addition of another tensor.

    Why legal: that tensor does not depend on the convolution, whose only user this is.
    """

    residual = wildcard()
    pattern = is_op("add")(_Grow.conv, residual)

    def where(self, match: Match) -> bool:
        return not isinstance(match.residual, relay.Constant)

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        refusal = why_no_residual(call)
        if refusal is not None:
            return refusal
        if match.residual.checked_type != match.conv.checked_type or static_shape(match.conv) is None:
            return Refusal("one of the tensors is, or may be, broadcast to the other")
        call.residual = match.residual
        return call


class WithResidualBefore(WithResidual):
    """The same where the convolution is the second operand."""

    pattern = is_op("add")(WithResidual.residual, _Grow.conv)


class WithDepthToSpace(_Grow):
    """Fold in nn.depth_to_space: the convolution writes each result to its shuffled place."""

    pattern = is_op("nn.depth_to_space")(_Grow.conv)

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        if str(match.root.attrs.layout) != "NHWC":
            return Refusal("the shuffle is not in NHWC")
        refusal = why_not_whole(match.root)
        if refusal:
            return refusal
        if call.groups == int(match.conv.checked_type.shape[3]):
            return Refusal("a depthwise convolution does not shuffle")
        if shuffle_of(match.root).mode != "DCR":
            return Refusal("the shuffle is in mode CRD, not DCR")
        refusal = why_no_shuffle(call)
        if refusal is None:
            call.block_size = int(match.root.attrs.block_size)
        return refusal or call


class FuseConv2dNHWC(RulePass):
    """Fuse NHWC convolutions with their epilogues into `topi_ext.conv2d_nhwc`.

    `target`: the target to compile for, by default the current one, which tells whether there is a kernel for
    grouped convolutions. `also_float32`: whether to fuse float32 too, which has kernels for LLVM only.
    `to_be`: the type to which `InMixedPrecision` will convert float32, which is then fused as well: in this
    order, bias and slopes are not rounded, since they stay float32. Weights that are too small for float16
    are multiplied by a power of two, and the result is divided by it.

    Why legal: the operator adds a bias, activates, adds a residual, activates and shuffles, in this order.
    Only what follows in that order is folded in, and only where results in between have no other users. Sums
    are float32 and rounded once, at the end. On CUDA, infinity or NaN in one group of a grouped convolution
    may make the results of others NaN: small groups are computed together, with weights of 0 in between.

    >>> x = relay.var("x", shape=(1, 32, 32, 16), dtype="float16")
    >>> weight, bias = (relay.const(np.ones(shape, "float16")) for shape in ((3, 3, 16, 12), 12))
    >>> y = relay.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO")
    >>> y = relay.nn.depth_to_space(relay.nn.relu(y + bias), 2, "NHWC")
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.FuseConv2dNHWC()(mod)))
    def @main(%x: Tensor[(1, 32, 32, 16), float16]) -> Tensor[(1, 64, 64, 3), float16] {
      topi_ext.conv2d_nhwc(%x, const[(12, 3, 3, 16), float16], const[(12,), float16], 0f, 0f, 0f,
          activation="relu", activation_high=0f, activation_low=0f, block_size=2, dilation=[1, 1],
          final_activation="none", final_activation_high=0f, final_activation_low=0f, groups=1,
          has_bias=1, has_residual=0, has_scale=0, has_slope=0, out_dtype="", out_scale=1f,
          padding=[1, 1, 1, 1], residual_scale=1f, strides=[1, 1], weight_id="")
    }
    """

    GROWTH = (
        *(WithBias, WithActivation, WithSpelledActivation),
        *(WithResidual, WithResidualBefore, WithDepthToSpace),
    )

    def __init__(
        self,
        also_float32: bool = False,
        to_be: str | None = None,
        target: str | tvm.target.Target | None = None,
    ) -> None:
        if to_be is not None and to_be not in HALF:
            raise ValueError(f"FuseConv2dNHWC: to_be must be None or one of {', '.join(HALF)}, not {to_be!r}")
        taken = {None: (), "float16": (EnlargedForFloat16, ToBeFloat16), "bfloat16": (ToBeBfloat16,)}[to_be]
        target = target_or_current(target, type(self).__name__)
        first = [OfFloat if also_float32 else OfHalf, *taken]
        squashing = []
        if also_float32 and to_be is None:
            squashing = [WithSquashingActivation]
        elif has_onednn(target):  # which computes them in its convolution
            squashing = [WithSquashingActivationBetween]
        self.rules = (*(for_target(rule, target) for rule in first), *self.GROWTH, *squashing)
        super().__init__()


def _why_too_large(constant: np.ndarray, dtype: str) -> Refusal | None:
    """Why a constant cannot be folded in: a float32 result may yet be converted to half precision."""
    if np.abs(constant).max() > RANGES["float16"][1] and dtype == "float32":
        return Refusal("in float16 the result would be infinite")
    return None


def _of_filters(match: Match) -> np.ndarray | None:
    """The constant that is added, as a vector over the filters, or None."""
    if op_name(match.root) == "nn.bias_add":
        return constant(match.constant) if int(match.root.attrs.axis) % 4 == 3 else None
    if match.root.checked_type != match.conv.checked_type:
        return None
    vector = of_each_channel(match.constant, rank=4, axis=3)
    return None if vector is None else np.resize(vector, int(match.conv.checked_type.shape[-1]))
