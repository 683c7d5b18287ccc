"""A call of `topi_ext.conv2d_nhwc` that rules can read, change and rebuild."""

from __future__ import annotations

from typing import Any

from topi_ext.conv2d_nhwc import conv2d_nhwc
from topi_ext.conv2d_nhwc.problem import INT8, GivenActivation

from tvm.ir import Attrs

from ..analysis.half_precision import RANGES
from ..engine.contract import Expr, Refusal

QUANTIZED = "the convolution has scaled and rounded its result to int8"  # why nothing can follow


class FusedCall:
    """The arguments of a call of `conv2d_nhwc` by name, to be changed."""

    def __init__(self, call: Expr) -> None:
        attrs = call.attrs
        names = ("bias", "residual", "slope", "scale")
        optional = [value if attrs[f"has_{name}"] else None for name, value in zip(names, call.args[2:])]
        self.data, self.weight = call.args[:2]
        self.bias, self.residual, self.slope, self.scale = optional
        self.strides, self.padding, self.dilation = (
            tuple(map(int, attrs[name])) for name in ("strides", "padding", "dilation")
        )
        self.activation: GivenActivation = given_activation(attrs, "activation")
        self.final_activation: GivenActivation = given_activation(attrs, "final_activation")
        self.weight_id = ""  # of the weights as they will be, which may be others
        self.block_size, self.groups = int(attrs["block_size"]), int(attrs["groups"])
        self.residual_scale, self.out_scale = float(attrs["residual_scale"]), float(attrs["out_scale"])
        self.out_dtype = str(attrs["out_dtype"])

    def by_filter(self) -> dict[str, Expr]:
        """The arguments with a part for each filter, which is along their first axis."""
        names = "weight", "bias", "slope", "scale"
        return {name: given for name in names if (given := getattr(self, name)) is not None}

    @property
    def is_quantizing(self) -> bool:
        """Whether its result is scaled or rounded to int8, so that the operator can do nothing after that."""
        return self.out_scale != 1 or self.out_dtype == INT8

    def activate(self, activation: GivenActivation) -> None:
        """Activate the result, for the first time or for the second, which comes after a residual."""
        is_first = not self.activation and self.residual is None
        setattr(self, "activation" if is_first else "final_activation", activation)

    def call(self) -> Expr:
        """The call with the changed arguments."""
        return conv2d_nhwc(**vars(self))


def why_no_activation(call: FusedCall) -> Refusal | None:
    """Why the operator does not activate its result once more, or None."""
    return Refusal("the convolution has two activations already") if call.final_activation else None


def why_no_residual(call: FusedCall) -> Refusal | None:
    """Why the operator does not add a tensor to its result, or None."""
    if call.residual is not None:
        return Refusal("the convolution has a residual already")
    if call.final_activation:
        return Refusal("the tensor is added after the final activation")
    if call.block_size > 1:
        return Refusal("the tensor is added after a shuffle")
    return None


def why_no_shuffle(call: FusedCall) -> Refusal | None:
    """Why the operator does not shuffle its result, or None."""
    if call.residual is not None:
        return Refusal("a residual is added before the shuffle")
    if call.block_size > 1:
        return Refusal("the convolution shuffles already")
    return None


def why_not_taken_in(activation: GivenActivation) -> Refusal | None:
    """Why the operators of `topi_ext` do not take in an activation, in any type; or None."""
    name, *bounds = activation if isinstance(activation, tuple) else (activation,)
    if name != "clip":
        return None
    if not bounds[0] <= bounds[1]:
        return Refusal("the bounds of the clip are the wrong way round")
    if any(0 < abs(bound) < RANGES["float16"][0] for bound in bounds):
        return Refusal("a bound of the clip is too small for half precision, where it may become 0")
    return None


def given_activation(attrs: Attrs, which: str) -> tuple[Any, ...] | None:
    """What the caller of an operator wrote as one of its activations."""
    name = str(attrs[which])
    constants = [float(attrs[f"{which}_{bound}"]) for bound in ("low", "high")]
    count = {"leaky_relu": 1, "clip": 2}.get(name, 0)
    return None if name == "none" else (name, *constants[:count])


def activation_as_given(call: Expr) -> GivenActivation:
    """An activation of Relay in the operator's notation."""
    name, attrs = str(call.op.name), call.attrs
    if name == "nn.leaky_relu":
        return "leaky_relu", float(attrs.alpha)
    if name == "clip":
        return "clip", float(attrs.a_min), float(attrs.a_max)
    return "prelu" if name == "nn.prelu" else "relu"
