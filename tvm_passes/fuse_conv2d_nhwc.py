"""Fuse an NHWC convolution, and what follows it, into one `topi_ext.conv2d_nhwc`.

The operator grows: a rule makes it of nn.conv2d, and others take what comes next into it, as long as the
operator still does that in the same order: bias, activation, residual, final activation, depth to space.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc
from topi_ext.conv2d_nhwc.problem import GivenActivation

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard
from tvm.relay.transform.mixed_precision import MIXED_PRECISION_ALWAYS

from ._convolution import (
    Shuffle,
    as_constant,
    constant_weights,
    of_each_channel,
    pairs,
    values,
    why_not_plain,
    why_not_whole,
)
from ._matchers import op_name, static_shape
from ._rule import Match, Rule, RulePass
from .mixed_precision import RANGES, kind_of

HALF = ("float16", "bfloat16")
MOST_ELEMENTS = 2**31 - 1  # of a tensor: the kernels count in 32 bits


class OfHalf(Rule):
    """Replace nn.conv2d in NHWC with `topi_ext.conv2d_nhwc`, which tensor cores compute.

    Why legal: it is the same sum of products, accumulated in float32 and rounded once.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.conv2d")(data, weight)
    dtypes: tuple[str, ...] = HALF

    def where(self, match: Match) -> bool:
        return str(match.root.attrs.data_layout) == "NHWC"

    def check(self, match: Match) -> str | None:
        dtype = match.data.checked_type.dtype
        if dtype not in self.dtypes:
            return f"tensor cores do not multiply {dtype} in full precision"
        if match.root.checked_type.dtype != dtype:
            return f"the result is wanted as {match.root.checked_type.dtype}, not as {dtype}"
        shapes = static_shape(match.data), static_shape(match.root)
        if None in shapes:
            return "the shape is dynamic"
        if any(0 in shape for shape in shapes):
            return "the tensor is empty"
        if max(map(np.prod, shapes)) > MOST_ELEMENTS:
            return "the tensor has too many elements"
        reason = why_not_plain(match.root)
        if reason is not None:
            return reason
        if any(min(before, after) < 0 for _, _, before, after in pairs(match.root)):
            return "the padding is negative"

    def rewrite(self, match: Match) -> relay.Expr:
        strides, dilation, before, after = zip(*pairs(match.root))
        weights = constant_weights(match.root).transpose(0, 2, 3, 1)
        padding = (*before, *after)
        return conv2d_nhwc(
            match.data,
            as_constant(weights, match.data.checked_type.dtype),
            strides=strides,
            padding=padding,
            dilation=dilation,
        )


class OfFloat(OfHalf):
    """The same, in float32 too, which has kernels on LLVM only."""

    dtypes = (*HALF, "float32")


class ToBeFloat16(OfHalf):
    """The same, of float32 that InMixedPrecision is going to bring to half precision."""

    dtypes = ("float32",)
    half = "float16"

    def check(self, match: Match) -> str | None:
        if kind_of(match.root, self.half) != MIXED_PRECISION_ALWAYS:
            return f"float32 it stays, for not all of its constants are in the range of {self.half}"
        return super().check(match)


class ToBeBfloat16(ToBeFloat16):
    """The same for bfloat16."""

    half = "bfloat16"


class _Grow(Rule):
    conv = is_op("topi_ext.conv2d_nhwc")(None)

    def check(self, match: Match) -> str | None:
        if match.graph.users(match.conv) != [match.root]:  # also where what is added is made of it
            return "the result of the convolution has other users"
        if match.root.checked_type.dtype != match.conv.checked_type.dtype:
            return "the type changes"
        return self.check_order(match, Arguments(match.conv))

    def rewrite(self, match: Match) -> relay.Expr:
        arguments = Arguments(match.conv)
        self.grow(match, arguments)
        return conv2d_nhwc(**vars(arguments))

    def check_order(self, match: Match, arguments: Arguments) -> str | None:
        """As `check`, of what the convolution does already."""
        raise NotImplementedError

    def grow(self, match: Match, arguments: Arguments) -> None:
        """Take the root into the arguments."""
        raise NotImplementedError


class WithBias(_Grow):
    """Take in the addition of a constant for each channel."""

    constant = wildcard()
    pattern = is_op("add")(_Grow.conv, constant) | is_op("nn.bias_add")(_Grow.conv, constant)

    def where(self, match: Match) -> bool:
        return values(match.constant) is not None

    def check_order(self, match: Match, arguments: Arguments) -> str | None:
        # A residual may be there already: the two are added in whichever order.
        if arguments.activation or arguments.final_activation or arguments.block_size > 1:
            return "the constant is added after an activation or a shuffle"
        if arguments.bias is not None and values(arguments.bias) is None:
            return "the convolution has a bias that is not constant"
        if _of_filters(match.constant, match) is None:
            return "the constant is not one number for each channel"
        return _why_too_large(match.constant)

    def grow(self, match: Match, arguments: Arguments) -> None:
        bias = _of_filters(match.constant, match)
        if arguments.bias is not None:
            bias = bias.astype("float32") + values(arguments.bias).astype("float32")
        arguments.bias = relay.const(bias)  # of the type of the data or float32, and the operator takes both


class WithActivation(_Grow):
    """Take in an activation, as the first one or the final one."""

    pattern = reduce(
        lambda left, right: left | right,
        (is_op(name)(_Grow.conv) for name in ("nn.relu", "nn.leaky_relu", "clip")),
    ) | is_op("nn.prelu")(_Grow.conv, wildcard())

    def check_order(self, match: Match, arguments: Arguments) -> str | None:
        if arguments.block_size > 1:
            return "the activation comes after a shuffle"
        is_first = not arguments.activation and not arguments.residual
        if op_name(match.root) == "nn.prelu":
            if not is_first:
                return "slopes of each channel go with the first activation only"
            if int(match.root.attrs.axis) % 4 != 3:
                return "the slopes are not those of the channels"
            if values(match.root.args[1]) is None:
                return "the slopes are not constant"
            reason = _why_too_large(match.root.args[1])
            if reason is not None:
                return reason
        if op_name(match.root) == "clip" and not match.root.attrs.a_min <= match.root.attrs.a_max:
            return "the bounds of the clip are the wrong way round"
        if arguments.final_activation:
            return "the convolution has two activations already"

    def grow(self, match: Match, arguments: Arguments) -> None:
        attrs, name = match.root.attrs, op_name(match.root)
        activations: dict[str, Callable[[], GivenActivation]] = {
            "nn.relu": lambda: "relu",
            "nn.leaky_relu": lambda: ("leaky_relu", float(attrs.alpha)),
            "clip": lambda: ("clip", float(attrs.a_min), float(attrs.a_max)),
            "nn.prelu": lambda: "prelu",
        }
        activation = activations[name]()
        if name == "nn.prelu":
            arguments.slope = match.root.args[1]
        if arguments.activation or arguments.residual:
            arguments.final_activation = activation
        else:
            arguments.activation = activation


class WithResidual(_Grow):
    """Take in the addition of another tensor.

    Why legal: that tensor does not depend on the convolution, whose only user this is.
    """

    residual = wildcard()
    pattern = is_op("add")(_Grow.conv, residual)

    def where(self, match: Match) -> bool:
        return not isinstance(match.residual, relay.Constant)

    def check_order(self, match: Match, arguments: Arguments) -> str | None:
        if arguments.residual:
            return "the convolution has a residual already"
        if arguments.final_activation or arguments.block_size > 1:
            return "the tensor is added after the final activation or after a shuffle"
        if match.residual.checked_type != match.conv.checked_type:
            return "one of the tensors is broadcast to the other"

    def grow(self, match: Match, arguments: Arguments) -> None:
        arguments.residual = match.residual


class WithResidualBefore(WithResidual):
    """The same where the convolution is the second operand."""

    pattern = is_op("add")(WithResidual.residual, _Grow.conv)


class WithDepthToSpace(_Grow):
    """Take in nn.depth_to_space: the convolution writes each result to its shuffled place."""

    pattern = is_op("nn.depth_to_space")(_Grow.conv)

    def check_order(self, match: Match, arguments: Arguments) -> str | None:
        if str(match.root.attrs.layout) != "NHWC":
            return "the shuffle is not of NHWC"
        if why_not_whole(match.root) is not None:
            return why_not_whole(match.root)
        if Shuffle.of(match.root).mode != "DCR":
            return "the shuffle is in the order CRD"
        if arguments.residual:
            return "a residual is added before the shuffle"
        if arguments.block_size > 1:
            return "the convolution shuffles already"

    def grow(self, match: Match, arguments: Arguments) -> None:
        arguments.block_size = int(match.root.attrs.block_size)


class FuseConv2dNHWC(RulePass):
    """Fuse NHWC convolutions with their epilogues into `topi_ext.conv2d_nhwc`.

    `also_float32`: whether to take float32 too, which has kernels on LLVM only. `to_be`: the type that
    `InMixedPrecision` is going to give to float32, which is then taken as well: in this order, bias and
    slopes are not rounded, for they stay float32.

    Why legal: the operator adds a bias, activates, adds a residual, activates and shuffles, in this order. It
    takes in what still comes in that order, where nothing else uses what lies between. Sums are float32 and
    rounded once, at the end.

    >>> x = relay.var("x", shape=(1, 32, 32, 16), dtype="float16")
    >>> weight, bias = (relay.const(np.ones(shape, "float16")) for shape in ((3, 3, 16, 12), 12))
    >>> y = relay.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO")
    >>> y = relay.nn.depth_to_space(relay.nn.relu(y + bias), 2, "NHWC")
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.FuseConv2dNHWC()(mod)))
    def @main(%x: Tensor[(1, 32, 32, 16), float16]) -> Tensor[(1, 64, 64, 3), float16] {
      topi_ext.conv2d_nhwc(%x, const[(12, 3, 3, 16), float16], const[(12,), float16], 0f, 0f,
          activation="relu", activation_high=0f, activation_low=0f, block_size=2, dilation=[1, 1],
          final_activation="none", final_activation_high=0f, final_activation_low=0f, has_bias=1,
          has_residual=0, has_slope=0, padding=[1, 1, 1, 1], strides=[1, 1])
    }
    """

    GROWTH = (WithBias, WithActivation, WithResidual, WithResidualBefore, WithDepthToSpace)

    def __init__(self, also_float32: bool = False, to_be: str | None = None) -> None:
        if to_be is not None and to_be not in HALF:
            raise ValueError(f"FuseConv2dNHWC: to_be is None or one of {', '.join(HALF)}, not {to_be!r}")
        taken = {None: (), "float16": (ToBeFloat16,), "bfloat16": (ToBeBfloat16,)}[to_be]
        self.rules = (OfFloat if also_float32 else OfHalf, *taken, *self.GROWTH)
        super().__init__()


class Arguments:
    """What `conv2d_nhwc` was called with, by name, to be changed."""

    def __init__(self, call: relay.Call) -> None:
        attrs = call.attrs
        names = ("bias", "residual", "slope")
        optional = [value if attrs[f"has_{name}"] else None for name, value in zip(names, call.args[2:])]
        self.data, self.weight = call.args[:2]
        self.bias, self.residual, self.slope = optional
        self.strides, self.padding, self.dilation = (
            tuple(map(int, attrs[name])) for name in ("strides", "padding", "dilation")
        )
        self.activation: GivenActivation = _activation(attrs, "activation")
        self.final_activation: GivenActivation = _activation(attrs, "final_activation")
        self.block_size = int(attrs["block_size"])


def _activation(attrs: tvm.ir.Attrs, which: str) -> tuple[Any, ...] | None:
    name = str(attrs[which])
    constants = [float(attrs[f"{which}_{bound}"]) for bound in ("low", "high")]
    count = {"leaky_relu": 1, "clip": 2}.get(name, 0)
    return None if name == "none" else (name, *constants[:count])


def _why_too_large(constant: relay.Expr) -> str | None:
    """A result in float32 may become one in half precision, with what was taken in."""
    if np.abs(values(constant)).max() > RANGES["float16"][1] and constant.checked_type.dtype == "float32":
        return "in float16 the result would be infinite"


def _of_filters(expr: relay.Expr, match: Match) -> np.ndarray | None:
    """A constant as a vector over the filters, or None."""
    if op_name(match.root) == "nn.bias_add":
        return values(expr) if int(match.root.attrs.axis) % 4 == 3 else None
    if match.root.checked_type != match.conv.checked_type:
        return None
    vector = of_each_channel(expr, rank=4, axis=3)
    return None if vector is None else np.resize(vector, static_shape(match.conv)[-1])
