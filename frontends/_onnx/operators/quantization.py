"""QuantizeLinear and others."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    axis_of,
    dtype_of,
    like,
    rank_of,
    sizes_of,
)
from .arithmetic import matmul
from .pooling import average_pool, pooled_axes

FAR = 2.0**17  # outside the range of 16 bits, whatever the zero point
INTEGERS = 1.5 * 2**23  # of float32, around which integers are all the numbers that there are


def _by_axis(vector: relay.Expr, axis: int, rank: int) -> relay.Expr:
    """Reshape a scale or zero point, one per element of an axis or one for all, so that it broadcasts."""
    if rank_of(vector) == 0:
        return vector
    if rank_of(vector) != 1:
        raise NotImplementedError("its scale is neither one for all nor one for each element of an axis")
    return relay.reshape(vector, [-1] + [1] * (rank - axis - 1)) if rank else relay.reshape(vector, [])


def _quantized(data: relay.Expr, zero_point: relay.Expr | None, dtype: str) -> relay.Expr:
    """Round scaled floats of float32, add the zero point, and clip to the range of the dtype.

    `round_half_even` reads its data nine times, and TVM inlines it: what is quantised again and again would
    not compile in a minute. This reads them once: in a sum with `INTEGERS` the last bit is worth 1.
    """
    limits = np.iinfo(dtype)
    bits = relay.reinterpret(relay.clip(data, -FAR, FAR) + like(INTEGERS, data), "int32")
    result = bits - relay.const(int(np.float32(INTEGERS).view("int32")))
    if zero_point is not None:
        result = result + relay.cast(zero_point, "int32")
    return relay.cast(relay.clip(result, int(limits.min), int(limits.max)), dtype)


def quantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own rounds halves away from zero, in float32 whatever the dtype, and needs a zero point."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    rank, axis = rank_of(data), attrs.get("axis", 1)
    axis = axis_of(axis, rank) if rank > 1 else 0
    dtype = dtype_of(zero_point) if zero_point is not None else "uint8"
    if zero_point is None and attrs.get("output_dtype", 0):
        dtype = importer.get_type(attrs["output_dtype"])
    if np.dtype(dtype).kind not in "iu" or np.dtype(dtype).itemsize > 2:
        raise NotImplementedError(f"quantizing to {dtype} is not supported")
    scale = _by_axis(scale, axis, rank)
    zero_point = None if zero_point is None else _by_axis(zero_point, axis, rank)
    return _quantized(relay.cast(data, "float32") / relay.cast(scale, "float32"), zero_point, dtype)


def dequantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a zero point, gives float32 only, and before opset 13 has no axis."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    dtype, rank, axis = dtype_of(scale), rank_of(data), attrs.get("axis", 1)
    axis = axis_of(axis, rank) if rank > 1 else 0
    if zero_point is not None and dtype == "float32" and dtype_of(data) in ("int8", "uint8"):
        return relay.qnn.op.dequantize(data, scale, relay.cast(zero_point, "int32"), axis)
    result = relay.cast(data, "int32")
    if zero_point is not None:
        result = result - _by_axis(relay.cast(zero_point, "int32"), axis, rank)
    return relay.cast(result, dtype) * _by_axis(scale, axis, rank)


def _centred(data: relay.Expr, zero: relay.Expr | None) -> relay.Expr:
    """What quantized numbers stand for, in units of their scale."""
    data = relay.cast(data, "int32")
    return data if zero is None else data - relay.cast(zero, "int32")


def matmul_integer(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs operands of one type, both zero points or none, and one for all rows or columns."""
    a, b, a_zero, b_zero = inputs[0], inputs[1], inputs[2], inputs[3]
    if a_zero is not None and rank_of(a_zero) == 1 and rank_of(a) > 1:
        a_zero = relay.reshape(a_zero, [-1, 1])  # one for each row
    return matmul(importer, [_centred(a, a_zero), _centred(b, b_zero)], {}, params)


def qlinear_matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not clip to the range of the dtype, and supports float32 scales, one for all, only."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs

    def scalar(expr: relay.Expr) -> relay.Expr:
        if rank_of(expr) > 1 or (rank_of(expr) == 1 and importer.infer_shape(expr) != (1,)):
            raise NotImplementedError("scales and zero points, but those of its columns, must be scalars")
        return relay.reshape(expr, []) if rank_of(expr) else expr

    # Of the second matrix each column may have its own, which broadcast as they are.
    b_scale, b_zero = (
        each if sizes_of(each) == sizes_of(b)[-1:] else scalar(each) for each in (b_scale, b_zero)
    )
    product = matmul(importer, [_centred(a, scalar(a_zero)), _centred(b, b_zero)], {}, params)
    scale = scalar(relay.cast(a_scale, "float32")) * relay.cast(b_scale, "float32")
    scaled = relay.cast(product, "float32") * (scale / scalar(relay.cast(y_scale, "float32")))
    return _quantized(scaled, scalar(y_zero), dtype_of(y_zero))


def qlinear_softmax(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not know that before opset 13 all axes from the given one on are one."""
    data, x_scale, x_zero, y_scale, y_zero = inputs
    rank = rank_of(data)
    axis = axis_of(attrs.get("axis", -1), rank)
    result = dequantize_linear(importer, importer.onnx_input.of([data, x_scale, x_zero]), {}, params)
    if attrs.get("opset", 13) < 13 and axis < rank - 1:
        shape = all_sizes_of(data)
        result = relay.reshape(result, [*shape[:axis], -1])
        result = relay.reshape(relay.nn.softmax(result, axis), shape)
    else:
        result = relay.nn.softmax(result, axis)
    return quantize_linear(importer, importer.onnx_input.of([result, y_scale, y_zero]), {}, params)


def _channels_first(convert: Converter) -> Converter:
    """A converter for channels in either place of one for those in the second."""

    def converted(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own lacks `channels_last`, and rounds halves away from zero."""
        if not attrs.get("channels_last", 0):
            return convert(importer, inputs, attrs, params)
        rank = rank_of(inputs[0])
        inputs[0] = relay.transpose(inputs[0], [0, rank - 1, *range(1, rank - 1)])
        return relay.transpose(convert(importer, inputs, attrs, params), [0, *range(2, rank), 1])

    return converted


def _qlinear_average_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    data, x_scale, x_zero, y_scale, y_zero = (inputs[place] for place in range(5))
    of = importer.onnx_input.of
    floats = dequantize_linear(importer, of([data, x_scale, x_zero]), {}, params)
    result = average_pool(importer, of([floats]), attrs, params)
    y_zero = like(0, data) if y_zero is None else y_zero
    return quantize_linear(importer, of([result, y_scale, y_zero]), {}, params)


def _qlinear_global_average_pool(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """The sum is of integers, as in ONNX Runtime: its mean may lie in the middle of two steps."""
    data, x_scale, x_zero, y_scale, y_zero = (inputs[place] for place in range(5))
    total = relay.sum(_centred(data, x_zero), pooled_axes(data), True)
    count = relay.prod(relay.strided_slice(relay.shape_of(data, "int64"), [2], [rank_of(data)]))
    x_scale, y_scale = (relay.reshape(each, []) for each in (x_scale, y_scale))
    scale = importer.fold_constant(x_scale / (y_scale * relay.cast(count, "float32")))
    y_zero = None if y_zero is None else relay.reshape(y_zero, [])
    return _quantized(relay.cast(total, "float32") * scale, y_zero, dtype_of(data))


CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": dequantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearAveragePool": _channels_first(_qlinear_average_pool),
    "QLinearGlobalAveragePool": _channels_first(_qlinear_global_average_pool),
    "QLinearMatMul": qlinear_matmul,
    "QLinearSoftmax": qlinear_softmax,
    "QuantizeLinear": quantize_linear,
}
