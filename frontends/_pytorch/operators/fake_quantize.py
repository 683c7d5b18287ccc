"""Rounding of floats to the steps of integers, as networks do that are trained to be quantized (QAT)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay

from ..._quantized import along_axis, quantized
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted
from .quantized_decomposed import integer

MOST = 2**16  # with a zero point among them, no step is as far away as `quantized` clips at


def per_tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scale, zero, low, high = (inputs[place] for place in range(5))
    scale = relay.reshape(scale, []) if isinstance(scale, relay.Expr) else relay.const(np.float32(scale))
    return _rounded(converter, data, scale, relay.reshape(integer(converter, zero), []), (low, high))


def per_channel(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM has none."""
    data, scales, zeros, axis, low, high = (inputs[place] for place in range(6))
    rank = len(converter.infer_shape(data))
    scales, zeros = (along_axis(each, axis, rank) for each in (scales, integer(converter, zeros)))
    return _rounded(converter, data, scales, zeros, (low, high))


def _rounded(
    converter: Converter, data: relay.Expr, scale: relay.Expr, zero: relay.Expr, limits: tuple[int, int]
) -> relay.Expr:
    """torch multiplies by the inverse of the scale, and by the scale, in float32."""
    if max(map(abs, limits)) > MOST:
        raise NotConverted(f"steps from {limits[0]} to {limits[1]} are more than those of 16 bits")
    dtype = converter.infer_type(data).dtype
    inverse = relay.const(np.float32(1)) / scale
    steps: Any = quantized(relay.cast(data, "float32") * inverse, zero, "int32", limits) - zero
    return relay.cast(relay.cast(steps, "float32") * scale, dtype)


CONVERTERS: dict[str, Convert] = {
    "aten::fake_quantize_per_channel_affine": per_channel,
    "aten::fake_quantize_per_tensor_affine": per_tensor,
}
