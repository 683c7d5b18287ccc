"""Activations, elementwise and along an axis.

float16 is computed in float32 and rounded once, as in PyTorch; TVM computes most of these functions in
float16 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from tvm import relay
from tvm.relay.frontend import pytorch as stock

from .converter import SCALAR_TYPES, Convert, Converter, Inputs, InputTypes, NotConverted, bind

FUSED = ("float16", "float32")  # dtypes in which TVM's own operators fuse into convolutions
Activation = Callable[..., relay.Expr]  # of the data, a constructor of constants like it, and the arguments
Number = Callable[[float], relay.Expr]


def _activation(function: Activation) -> Convert:
    """Make a converter of a function of one tensor of any floating-point dtype."""

    @wraps(function)
    def convert(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
        data, *arguments = inputs
        if converter.is_quantized_tensor(data):
            return converter.stock[converter.current_op[-1].kind()](inputs, input_types)
        dtype = str(converter.infer_type(data).dtype)
        if "float" not in dtype:
            raise NotConverted(f"of {dtype} it is not supported, only of floating point")
        computed = "float32" if dtype == "float16" else dtype
        wide = relay.cast(data, computed) if computed != dtype else data
        result = function(wide, lambda value: relay.const(float(value), computed), *arguments)
        return relay.cast(result, dtype) if computed != dtype else result

    return convert


@_activation
def gelu(data: relay.Expr, number: Number, approximate: str = "none") -> relay.Expr:
    """TVM's own ignores `approximate`."""
    if approximate == "none":
        return data * (number(0.5) + relay.erf(data * number(0.5**0.5)) * number(0.5))
    inner = number(math.sqrt(2 / math.pi)) * (data + number(0.044715) * data * data * data)
    return number(0.5) * data * (number(1) + relay.tanh(inner))


@_activation
def elu(
    data: relay.Expr, number: Number, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> relay.Expr:
    """TVM's own ignores `scale` and `input_scale`, which selu passes, and loses a negative alpha."""
    # The exponential of the positive part, which is not used, would overflow; NaN is not negative.
    low = relay.exp(relay.minimum(data, number(0)) * number(input_scale)) - number(1)
    return relay.where(data < number(0), low * number(alpha * scale), data * number(scale))


@_activation
def celu(data: relay.Expr, number: Number, alpha: float = 1) -> relay.Expr:
    """TVM's own is wrong for negative alpha."""
    low = relay.exp(relay.minimum(data / number(alpha), number(0))) - number(1)
    low = low if alpha > 0 else relay.exp(data / number(alpha)) - number(1)
    return relay.where(data < number(0), low * number(alpha), data)


@_activation
def selu(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM's own overflows in float16, and gives NaN where the exponential is infinite."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    low = relay.exp(relay.minimum(data, number(0))) - number(1)
    return relay.where(data < number(0), low * number(alpha * scale), data * number(scale))


@_activation
def mish(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM lacks it. With e = exp(x), tanh(log(1 + e)) is e (e + 2) / (e (e + 2) + 2): 1 from x = 20 on."""
    e = relay.exp(relay.minimum(data, number(20)))
    product = e * (e + number(2))
    return data * (product / (product + number(2)))


@_activation
def softplus(data: relay.Expr, number: Number, beta: float = 1, threshold: float = 20) -> relay.Expr:
    """TVM's own truncates the threshold to an integer, and takes 0 for 20."""
    scaled = data * number(beta)
    return relay.where(scaled > number(threshold), data, _softplus(scaled, number) / number(beta))


@_activation
def log_sigmoid(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM's own computes float16 in float16."""
    return relay.negative(_softplus(relay.negative(data), number))


def _softplus(data: relay.Expr, number: Number) -> relay.Expr:
    return relay.maximum(data, number(0)) + relay.log(number(1) + relay.exp(relay.negative(relay.abs(data))))


@_activation
def silu(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM's own computes float16 in float16."""
    return data * relay.sigmoid(data)


@_activation
def hardsigmoid(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM's own adds float32 constants to data of any dtype."""
    return relay.clip(data + number(3), 0.0, 6.0) / number(6)


@_activation
def hardswish(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM's own adds float32 constants to data of any dtype."""
    return data * (relay.clip(data + number(3), 0.0, 6.0) / number(6))


@_activation
def hardshrink(data: relay.Expr, number: Number, bound: float = 0.5) -> relay.Expr:
    """TVM lacks it."""
    inside = relay.logical_and(data >= number(-bound), data <= number(bound))
    return relay.where(inside, number(0), data)


@_activation
def softshrink(data: relay.Expr, number: Number, bound: float = 0.5) -> relay.Expr:
    """TVM lacks it."""
    low = relay.where(data < number(-bound), data + number(bound), data * number(0))
    return relay.where(data > number(bound), data - number(bound), low)


@_activation
def softsign(data: relay.Expr, number: Number) -> relay.Expr:
    """TVM lacks it."""
    return data / (number(1) + relay.abs(data))


def hardtanh(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own clips integers by floats, and to NaN, which it cannot compile."""
    data, low, high = inputs
    dtype = str(converter.infer_type(data).dtype)
    if "float" in dtype and low <= high:
        return relay.clip(data, low, high)
    return relay.minimum(relay.maximum(data, relay.const(low, dtype)), relay.const(high, dtype))


def relu6(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own clips integers by floats."""
    return hardtanh(converter, [inputs[0], 0, 6], input_types)


def leaky_relu(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own needs a float slope; convolutions fuse with no other form."""
    data, slope = inputs[0], float(inputs[1])
    dtype = str(converter.infer_type(data).dtype)
    if dtype in FUSED:
        return relay.nn.leaky_relu(data, slope)
    return relay.where(data > relay.const(0, dtype), data, data * relay.const(slope, dtype))


def threshold(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own compares with float32 constants, whatever the dtype of the data."""
    data, bound, value = inputs
    dtype = str(converter.infer_type(data).dtype)
    if "int" in dtype and float(bound) != int(bound):
        bound = math.floor(bound)
    return relay.where(data <= relay.const(bound, dtype), relay.const(value, dtype), data)


def prelu(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own takes no 0-d tensors, and needs a static shape."""
    data, slope = inputs
    rank = len(converter.infer_shape(data))
    dtype = converter.infer_type(data).dtype
    shape = [-1 if axis == 1 else 1 for axis in range(rank)] if rank > 1 else [-1] * rank
    count = converter.infer_shape(slope)
    if rank > 1 and list(count) == [converter.infer_shape(data)[1]] and dtype in FUSED:
        return relay.nn.prelu(data, slope, 1)
    slope = relay.reshape(slope, shape) if rank else relay.reshape(slope, [])
    return relay.where(data > relay.const(0, dtype), data, data * slope)


def rrelu(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks it."""
    data, low, high, training, *_ = inputs
    if training:
        raise NotConverted("in training its slopes are random")
    return leaky_relu(converter, [data, (low + high) / 2], input_types)


def glu(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own computes float16 in float16."""
    data, axis = inputs
    value, gate = relay.split(data, 2, axis)
    return value * relay.sigmoid(gate)


def softmax(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own ignores `dtype`, and takes no 0-d tensors."""
    return _along_axis(converter, inputs, relay.nn.softmax)


def log_softmax(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own ignores `dtype`, and takes the last axis only."""
    return _along_axis(converter, inputs, relay.nn.log_softmax)


def of_core(whole: Convert, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks it: what `torch.export` decomposes a softmax to."""
    data, axis, in_float32 = inputs
    dtype = SCALAR_TYPES.index(torch.float32) if in_float32 else None
    return whole(converter, [data, axis, dtype], input_types)


def _along_axis(
    converter: Converter, inputs: Inputs, function: Callable[[relay.Expr, int], relay.Expr]
) -> relay.Expr:
    data, axis, *rest = inputs
    dtype = str(converter.infer_type(data).dtype)
    result_dtype = stock._convert_dtype_value(rest[0]) if rest and rest[0] is not None else dtype
    computed = "float32" if result_dtype == "float16" else result_dtype
    rank = len(converter.infer_shape(data))
    data = relay.cast(data, computed) if dtype != computed else data
    axis = int(axis) % max(rank, 1)
    if rank == 0:
        result = relay.reshape(function(relay.reshape(data, [1]), 0), [])
    elif axis == rank - 1 or function is relay.nn.softmax:
        result = function(data, axis)
    else:
        swapped = [
            rank - 1 if place == axis else axis if place == rank - 1 else place for place in range(rank)
        ]
        result = relay.transpose(function(relay.transpose(data, swapped), -1), swapped)
    return relay.cast(result, result_dtype) if computed != result_dtype else result


CONVERTERS: dict[str, Convert] = {
    "aten::gelu": gelu,
    "aten::elu": elu,
    "aten::celu": celu,
    "aten::selu": selu,
    "aten::mish": mish,
    "aten::softplus": softplus,
    "aten::log_sigmoid": log_sigmoid,
    "aten::silu": silu,
    "aten::hardsigmoid": hardsigmoid,
    "aten::hardswish": hardswish,
    "aten::hardshrink": hardshrink,
    "aten::softshrink": softshrink,
    "aten::softsign": softsign,
    "aten::hardtanh": hardtanh,
    "aten::relu6": relu6,
    "aten::leaky_relu": leaky_relu,
    "aten::threshold": threshold,
    "aten::prelu": prelu,
    "aten::rrelu": rrelu,
    "aten::glu": glu,
    "aten::softmax": softmax,
    "aten::_softmax": bind(of_core, softmax),
    "aten::_log_softmax": bind(of_core, log_softmax),
    "aten::log_softmax": log_softmax,
}
