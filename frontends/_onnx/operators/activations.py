"""Activations."""

from __future__ import annotations

import math
from types import ModuleType

from tvm import relay

from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    axis_of,
    dtype_of,
    in_float32,
    like,
    opset_of,
    rank_of,
    sizes_of,
    stock,
)


def gelu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores `approximate`."""
    if attrs.get("approximate", b"none") == b"none":
        return stock(importer, "Gelu")(inputs, attrs, params)
    x = inputs[0]
    inner = like(math.sqrt(2 / math.pi), x) * (x + like(0.044715, x) * x * x * x)
    return like(0.5, x) * x * (like(1, x) + relay.tanh(inner))


def softplus_of(x: relay.Expr) -> relay.Expr:
    """log(1 + exp(x)), without overflow, and accurate where exp(x) is far below 1."""
    e = relay.exp(like(0, x) - relay.abs(x))
    small = like(1e-4 if dtype_of(x) == "float64" else 0.02, x)
    series = e * (like(1, x) - e * (like(1 / 2, x) - e * (like(1 / 3, x) - e * like(1 / 4, x))))
    return relay.maximum(x, like(0, x)) + relay.where(e < small, series, relay.log(like(1, x) + e))


def softplus(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own overflows to infinity from 89 on."""
    return softplus_of(inputs[0])


def mish(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own overflows in the exponential, and loses precision in the logarithm far below zero.

    With e = exp(x) and n = e * (e + 2), tanh(log(1 + e)) is n / (n + 2), which is 1 before n overflows.
    """
    x = inputs[0]
    highest = 5 if dtype_of(x) == "float16" else 20
    e = relay.exp(relay.minimum(x, like(highest, x)))
    n = e * (e + like(2, x))
    return x * (n / (n + like(2, x)))


@in_float32
def softmax(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own sums float16 in float16, and merges no axes of unknown sizes, as opsets before 13 do."""
    data, rank = inputs[0], rank_of(inputs[0])
    axis = axis_of(attrs.get("axis", -1 if opset_of(importer) >= 13 else 1), rank)
    if opset_of(importer) >= 13 or axis == rank - 1 or None not in sizes_of(data):
        return stock(importer, "Softmax")(inputs, attrs, params)
    axes = list(range(axis, rank))
    exponentials = relay.exp(data - relay.max(data, axes, True))
    return exponentials / relay.sum(exponentials, axes, True)


@in_float32
def log_softmax(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the logarithm of a softmax that may be 0."""
    data, rank = inputs[0], rank_of(inputs[0])
    if opset_of(importer) >= 13:
        return relay.nn.log_softmax(data, axis_of(attrs.get("axis", -1), rank))
    axis = attrs.get("axis", 1)
    axes = list(range(axis + rank if axis < 0 else axis, rank))  # this axis and all after it count as one
    shifted = data - relay.max(data, axes, True)
    return shifted - relay.log(relay.sum(relay.exp(shifted), axes, True))


def elu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only."""
    x, alpha = inputs[0], attrs.get("alpha", 1.0)
    negative = relay.exp(relay.minimum(x, like(0, x))) - like(1, x)
    return relay.where(x < like(0, x), like(alpha, x) * negative, x)


def selu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only."""
    x = inputs[0]
    alpha = attrs.get("alpha", 1.67326319217681884765625)
    gamma = attrs.get("gamma", 1.05070102214813232421875)
    negative = relay.exp(relay.minimum(x, like(0, x))) - like(1, x)
    return like(gamma, x) * relay.where(x < like(0, x), like(alpha, x) * negative, x)


def prelu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not know that before opset 7 slopes are of the channels, not of the last axis."""
    x, slope = inputs
    if opset_of(importer) < 7 and rank_of(slope) == 1 and rank_of(x) > 2:
        slope = relay.expand_dims(slope, 1, rank_of(x) - 2)
    if None in (*sizes_of(x), *sizes_of(slope)):  # which TVM's own does not compile
        return relay.where(x < like(0, x), x * slope, x)
    return stock(importer, "Prelu")([x, slope], attrs, params)


def thresholded_relu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only, and gives NaN for minus infinity."""
    x = inputs[0]
    return relay.where(x > like(attrs.get("alpha", 1.0), x), x, like(0, x))


def hard_sigmoid(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only."""
    x = inputs[0]
    return relay.clip(x * like(attrs.get("alpha", 0.2), x) + like(attrs.get("beta", 0.5), x), 0, 1)


def hard_swish(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only."""
    x = inputs[0]
    return x * relay.clip(x * like(1 / 6, x) + like(0.5, x), 0, 1)


def quick_gelu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: x * sigmoid(alpha * x)."""
    x, alpha = inputs[0], attrs.get("alpha", 1.702)
    return x * relay.sigmoid(x if alpha == 1 else x * like(alpha, x))


def softsign(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports float32 only."""
    x = inputs[0]
    return x / (like(1, x) + relay.abs(x))


CONVERTERS: dict[str, Converter] = {
    "Elu": elu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LogSoftmax": log_softmax,
    "Mish": mish,
    "PRelu": prelu,
    "QuickGelu": quick_gelu,
    "Selu": selu,
    "Softmax": softmax,
    "Softplus": softplus,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded_relu,
}
