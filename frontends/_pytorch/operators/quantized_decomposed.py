"""Quantization as `torch.export` writes it (PT2E): numbers of int8 or uint8, and their scales beside them.

`convert_pt2e` leaves a network in float32 in which each tensor is quantized and dequantized, as QDQ does in
ONNX. torch multiplies by the inverse of a scale, where ONNX divides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tvm import relay

from ..._quantized import along_axis, quantized
from . import functions
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted, dtype_name, known_number

NAMESPACE = "quantized_decomposed"
DEFINED_IN = "torch.ao.quantization.fx._decomposed"  # which is imported before a model has such operators
# Of each token (the last axis), or of groups of channels: torch's own definitions are converted.
DEFINED = (
    *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"),
    *("quantize_per_token", "dequantize_per_token", "dequantize_per_channel_group"),
)
FEW_BITS = ("int8", "uint8", "int16", "uint16")


def definitions() -> dict[Any, Callable]:
    """torch's own, in Python, by the operators that they define."""
    module = sys.modules.get(DEFINED_IN)
    operators = getattr(torch.ops, NAMESPACE)
    return {
        getattr(operators, name).default: getattr(module, name) for name in DEFINED if hasattr(module, name)
    }


def quantize_per_tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scale, zero, low, high, dtype = (inputs[place] for place in range(6))
    if not isinstance(scale, relay.Expr):
        inverse = relay.const(np.float32(1.0 / scale))
    else:  # torch takes it for a number of Python
        inverse = relay.cast(relay.const(1.0, "float64") / _scalar(relay.cast(scale, "float64")), "float32")
    return _quantized(data, inverse, _scalar(integer(converter, zero)), (low, high), dtype)


def dequantize_per_tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scale, zero, dtype = *(inputs[place] for place in range(3)), _dtype_of_result(inputs[6])
    _ = inputs[3], inputs[4]  # the limits, which were those of quantizing
    scale = _scalar(scale if isinstance(scale, relay.Expr) else relay.const(scale, "float32"))
    return _dequantized(converter, data, scale, _scalar(integer(converter, zero)), None, dtype)


def quantize_per_channel(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scales, zeros, axis, low, high, dtype = (inputs[place] for place in range(7))
    rank = len(converter.infer_shape(data))
    one = relay.const(1.0, converter.infer_type(scales).dtype)
    inverses = _along(relay.cast(one / scales, "float32"), axis, rank)
    zeros = _along(integer(converter, zeros), axis, rank)
    return _quantized(data, inverses, zeros, (low, high), dtype)


def dequantize_per_channel(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scales, zeros, axis, dtype = *(inputs[place] for place in range(4)), _dtype_of_result(inputs[7])
    _ = inputs[4], inputs[5]  # the limits, which were those of quantizing
    zeros = relay.const(0) if zeros is None else integer(converter, zeros)
    return _dequantized(converter, data, scales, zeros, axis, dtype)


def choose_qparams(converter: Converter, inputs: Inputs, input_types: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM has none."""
    data, low, high, eps = (inputs[place] for place in range(4))
    least, most = _spread(relay.cast(data, "float32"))
    scale = _at_least(eps, _divided(most - least, float(high - low)))
    steps = relay.cast(functions.round_("float32", least / scale), "int32")
    zero = relay.clip(relay.const(low) - steps, low, high)
    return _as_parameters(scale, zero)


def choose_qparams_symmetric(
    converter: Converter, inputs: Inputs, input_types: InputTypes
) -> tuple[relay.Expr, ...]:
    """TVM has none."""
    data, low, high, eps, dtype = (inputs[place] for place in range(5))
    least, most = _spread(relay.cast(data, "float32"))
    scale = _at_least(eps, _divided(relay.maximum(-least, most), float(high - low) / 2))
    return _as_parameters(scale, relay.const([128 if dtype_name(dtype) == "uint8" else 0]))


def with_limits_as_tensors(convert: Convert) -> Convert:
    """Of torch's three overloads, one has also the limits as tensors."""

    def converted(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
        """TVM has none."""
        for place in (3, 4):
            if isinstance(inputs[place], relay.Expr):
                inputs[place] = known_number(inputs[place])
                if inputs[place] is None:
                    raise NotConverted("its limits are known only at run time: give them as numbers")
        return convert(converter, inputs, input_types)

    return converted


def _quantized(
    data: relay.Expr, inverse: relay.Expr, zero: relay.Expr, limits: tuple[int, int], dtype: int
) -> relay.Expr:
    name = dtype_name(dtype)
    if name not in FEW_BITS:
        raise NotConverted(
            f"quantizing to {name} is not supported: quantize tensors to int8, and let convert_pt2e fold "
            "those of weights and biases (fold_quantize=True)"
        )
    return quantized(relay.cast(data, "float32") * inverse, zero, name, limits)


def _dequantized(
    converter: Converter,
    data: relay.Expr,
    scale: relay.Expr,
    zero: relay.Expr,
    axis: int | None,
    dtype: str,
) -> relay.Expr:
    type_ = converter.infer_type(data)
    if (
        dtype == "float32"
        and type_.dtype in ("int8", "uint8")
        and converter.infer_type(scale).dtype == "float32"
    ):
        return relay.qnn.op.dequantize(data, scale, zero, -1 if axis is None else axis)
    if axis is not None:
        scale, zero = (_along(each, axis, len(type_.shape)) for each in (scale, zero))
    centred = relay.cast(data, dtype) - relay.cast(zero, dtype)
    exact = "float64" if dtype == "float64" else "float32"
    return relay.cast(relay.cast(centred, exact) * relay.cast(scale, exact), dtype)


def _dtype_of_result(number: int | None) -> str:
    return dtype_name(number) or "float32"


def integer(converter: Converter, zero_point: Any) -> relay.Expr:
    if not isinstance(zero_point, relay.Expr):
        return relay.const(int(zero_point))
    if converter.infer_type(zero_point).dtype.startswith("float"):
        raise NotConverted(
            "its zero points are floats, which would fall between two steps: make them integers"
        )
    return relay.cast(zero_point, "int32")


def _scalar(value: relay.Expr) -> relay.Expr:
    return value if isinstance(value, relay.Constant) and not value.data.shape else relay.reshape(value, [])


def _along(numbers: relay.Expr, axis: int, rank: int) -> relay.Expr:
    """One for each element of an axis, or one for all, so that they broadcast."""
    if isinstance(numbers, relay.Constant) and not numbers.data.shape:
        return numbers
    return along_axis(numbers, axis, rank)


def _spread(data: relay.Expr) -> tuple[relay.Expr, relay.Expr]:
    """The smallest and the largest element, or zero if that is beyond, as vectors of one element."""
    ends = relay.reshape(relay.min(data), [1]), relay.reshape(relay.max(data), [1])
    return relay.minimum(ends[0], relay.const(0.0)), relay.maximum(ends[1], relay.const(0.0))


def _at_least(eps: float, scale: relay.Expr) -> relay.Expr:
    return relay.maximum(scale, relay.const(np.float32(eps)))


def _divided(vector: relay.Expr, number: float) -> relay.Expr:
    """Divided by a vector, too: TVM multiplies by the inverse of a scalar, which is not exact."""
    return vector / relay.const(np.array([number], "float32"))


def _as_parameters(scale: relay.Expr, zero: relay.Expr) -> tuple[relay.Expr, ...]:
    return relay.cast(scale, "float64"), relay.cast(zero, "int64")


CONVERTERS: dict[str, Convert] = {
    f"{NAMESPACE}::{name}": convert
    for name, convert in {
        "choose_qparams": choose_qparams,
        "choose_qparams_symmetric": choose_qparams_symmetric,
        "dequantize_per_channel": dequantize_per_channel,
        "dequantize_per_tensor": with_limits_as_tensors(dequantize_per_tensor),
        "quantize_per_channel": quantize_per_channel,
        "quantize_per_tensor": with_limits_as_tensors(quantize_per_tensor),
    }.items()
}
