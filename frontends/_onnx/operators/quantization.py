"""QuantizeLinear and others."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ._common import Attrs, Converter, Inputs, Params, axis_of, dtype_of, rank_of, stock
from .arithmetic import matmul, round_half_even


def _by_axis(vector: relay.Expr, axis: int, rank: int) -> relay.Expr:
    """Reshape a scale or zero point, one per element of an axis or one for all, so that it broadcasts."""
    if rank_of(vector) == 0:
        return vector
    if rank_of(vector) != 1:
        raise NotImplementedError("its scale is neither one for all nor one for each element of an axis")
    return relay.reshape(vector, [-1] + [1] * (rank - axis - 1)) if rank else relay.reshape(vector, [])


def _quantized(data: relay.Expr, zero_point: relay.Expr | None, dtype: str) -> relay.Expr:
    """Round scaled floats, add the zero point, and clip to the range of the dtype."""
    limits = np.iinfo(dtype)
    result = round_half_even(data)
    if zero_point is not None:
        result = result + relay.cast(zero_point, dtype_of(data))
    return relay.cast(relay.clip(result, float(limits.min), float(limits.max)), dtype)


def quantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own rounds halves away from zero, in float32 whatever the dtype, and needs a zero point."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    rank = rank_of(data)
    axis = axis_of(attrs.get("axis", 1), rank) if rank > 1 else 0
    dtype = dtype_of(zero_point) if zero_point is not None else "uint8"
    if zero_point is None and attrs.get("output_dtype", 0):
        dtype = importer.get_type(attrs["output_dtype"])
    if np.dtype(dtype).kind not in "iu" or np.dtype(dtype).itemsize > 2:
        raise NotImplementedError(f"quantizing to {dtype} is not supported")
    scale = _by_axis(scale, axis, rank)
    zero_point = None if zero_point is None else _by_axis(zero_point, axis, rank)
    return _quantized(relay.cast(data, "float32") / relay.cast(scale, "float32"), zero_point, dtype)


def dequantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a zero point, and gives float32 only."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    dtype = dtype_of(scale)
    if zero_point is not None and dtype == "float32" and dtype_of(data) in ("int8", "uint8"):
        return stock(importer, "DequantizeLinear")(inputs, attrs, params)
    rank = rank_of(data)
    axis = axis_of(attrs.get("axis", 1), rank) if rank > 1 else 0
    result = relay.cast(data, "int32")
    if zero_point is not None:
        result = result - _by_axis(relay.cast(zero_point, "int32"), axis, rank)
    return relay.cast(result, dtype) * _by_axis(scale, axis, rank)


def qlinear_matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not clip to the range of the dtype, and supports float32 scales only."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs

    def scalar(expr: relay.Expr) -> relay.Expr:
        if rank_of(expr) > 1 or (rank_of(expr) == 1 and importer.infer_shape(expr) != (1,)):
            raise NotImplementedError("its scales and zero points must be scalars")
        return relay.reshape(expr, []) if rank_of(expr) else expr

    def centred(expr: relay.Expr, zero: relay.Expr) -> relay.Expr:
        return relay.cast(expr, "int32") - relay.cast(scalar(zero), "int32")

    product = matmul(importer, [centred(a, a_zero), centred(b, b_zero)], {}, params)
    scale = scalar(relay.cast(a_scale, "float32")) * scalar(relay.cast(b_scale, "float32"))
    scaled = relay.cast(product, "float32") * (scale / scalar(relay.cast(y_scale, "float32")))
    return _quantized(scaled, scalar(y_zero), dtype_of(y_zero))


CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": dequantize_linear,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
