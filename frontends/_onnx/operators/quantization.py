"""QuantizeLinear and others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import numpy as np

from tvm import relay

from ..._quantized import along_axis, quantized
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    axis_of,
    channels_first,
    channels_last,
    dtype_of,
    like,
    rank_of,
    several,
    sizes_of,
    stock,
)
from .arithmetic import matmul, round_half_even
from .pooling import average_pool, pooled_axes


def _by_axis(vector: relay.Expr, axis: int, rank: int) -> relay.Expr:
    """Reshape a scale or zero point, one per element of an axis or one for all, so that it broadcasts."""
    if rank_of(vector) == 0:
        return vector
    if rank_of(vector) != 1:
        raise NotImplementedError("its scale is neither one for all nor one for each element of an axis")
    return along_axis(vector, axis, rank) if rank else relay.reshape(vector, [])


def _of_each(numbers: relay.Expr, data: relay.Expr, axis: int, block: int) -> relay.Expr:
    """As `_by_axis`, or one for each block of elements along the axis, the last of which may be shorter."""
    if not block:
        return _by_axis(numbers, axis, rank_of(data))
    if rank_of(numbers) != rank_of(data):
        raise NotImplementedError(
            "its scale and zero point need as many axes as its data, one number a block"
        )
    repeated, size = relay.repeat(numbers, block, axis), sizes_of(data)[axis]
    if sizes_of(repeated)[axis] == size:
        return repeated
    if size is None:
        raise NotImplementedError("its blocks need an axis whose size is known")
    return relay.strided_slice(repeated, [0], [size], axes=[axis])


def quantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own rounds halves away from zero, in float32 whatever the dtype, and needs a zero point."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    rank, axis = rank_of(data), attrs.get("axis", 1)
    axis = axis_of(axis, rank) if rank > 1 else 0
    dtype = dtype_of(zero_point) if zero_point is not None else "uint8"
    if zero_point is None and attrs.get("output_dtype", 0):
        dtype = importer.get_type(attrs["output_dtype"])
    if dtype.startswith("float"):  # as what NumPy has no type for is read
        raise NotImplementedError(
            "quantizing to 4 bits or to float8 is not supported: quantize tensors to int8 or uint8 "
            "(constants may be of those types)"
        )
    if np.dtype(dtype).kind not in "iu" or np.dtype(dtype).itemsize > 2:
        raise NotImplementedError(f"quantizing to {dtype} is not supported")
    block = attrs.get("block_size", 0)
    scale = _of_each(scale, data, axis, block)
    zero_point = None if zero_point is None else _of_each(zero_point, data, axis, block)
    return quantized(relay.cast(data, "float32") / relay.cast(scale, "float32"), zero_point, dtype)


def dequantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a zero point, gives float32 only, and before opset 13 has no axis."""
    data, scale, zero_point = inputs[0], inputs[1], inputs[2]
    dtype, rank, axis = dtype_of(scale), rank_of(data), attrs.get("axis", 1)
    axis = axis_of(axis, rank) if rank > 1 else 0
    block = attrs.get("block_size", 0)
    if zero_point is not None and dtype == "float32" and dtype_of(data) in ("int8", "uint8") and not block:
        return relay.qnn.op.dequantize(data, scale, relay.cast(zero_point, "int32"), axis)
    # What NumPy has no type for, such as float8 and 4 bits, is read as floats.
    exact = "float32" if dtype_of(data).startswith("float") else "int32"
    result = relay.cast(data, exact)
    if zero_point is not None:
        result = result - _of_each(relay.cast(zero_point, exact), data, axis, block)
    # In float32, since float16 has no numbers above 65,504, such as those of a bias.
    scale = _of_each(relay.cast(scale, "float32"), data, axis, block)
    return relay.cast(relay.cast(result, "float32") * scale, dtype)


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


def conv_integer(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes images only."""
    x, w, x_zero, w_zero = inputs[0], inputs[1], inputs[2], inputs[3]
    if rank_of(x) == 4:
        return stock(importer, "ConvInteger")([x, w, x_zero, w_zero], attrs, params)
    return _convolved(importer, _centred(x, x_zero), w, w_zero, attrs, params)


def qlinear_conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes images only, and both scales and zero points of filters, or neither."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (inputs[place] for place in range(9))
    rank, filters = rank_of(x), sizes_of(w)[:1]
    if (1,) in (sizes_of(w_scale), sizes_of(w_zero)) or rank_of(w_scale) != rank_of(w_zero):
        w_scale, w_zero = (
            importer.fold_constant(relay.broadcast_to(each, filters)) for each in (w_scale, w_zero)
        )
    if rank == 4:
        given = [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero]
        return stock(importer, "QLinearConv")(given if bias is None else [*given, bias], attrs, params)
    result = _convolved(importer, _centred(x, x_zero), w, w_zero, attrs, params)
    result = result if bias is None else relay.nn.bias_add(result, bias)
    scale = _by_axis(x_scale, 1, rank) * _by_axis(w_scale, 1, rank) / _by_axis(y_scale, 1, rank)
    scaled = relay.cast(result, "float32") * importer.fold_constant(scale)
    return quantized(scaled, _by_axis(y_zero, 1, rank), dtype_of(y_zero))


def _convolved(
    importer: ModuleType, x: relay.Expr, w: relay.Expr, zero: relay.Expr | None, attrs: Attrs, params: Params
) -> relay.Expr:
    """Integers convolved; the zero point may be one for each filter."""
    zero = None if zero is None else _by_axis(zero, 0, rank_of(w))
    return stock(importer, "Conv")(importer.onnx_input.of([x, _centred(w, zero)]), attrs, params)


def qlinear_matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not clip to the range of the dtype, and supports float32 scales, one for all, only."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs

    # Of the second matrix each column may have its own, which broadcast as they are.
    b_scale, b_zero = (
        each if sizes_of(each) == sizes_of(b)[-1:] else _scalar(each) for each in (b_scale, b_zero)
    )
    product = matmul(importer, [_centred(a, _scalar(a_zero)), _centred(b, b_zero)], {}, params)
    scale = _scalar(relay.cast(a_scale, "float32")) * relay.cast(b_scale, "float32")
    scaled = relay.cast(product, "float32") * (scale / _scalar(relay.cast(y_scale, "float32")))
    return quantized(scaled, _scalar(y_zero), dtype_of(y_zero))


def qgemm(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own gives no floats, and rounds halves up."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (inputs[place] for place in range(9))
    a, b = (
        relay.transpose(each) if attrs.get(name, 0) else each for each, name in ((a, "transA"), (b, "transB"))
    )
    # Of the second matrix each column may have its own scale and zero point, which broadcast as they are.
    result = matmul(importer, [_centred(a, _scalar(a_zero)), _centred(b, b_zero)], {}, params)
    result = relay.cast(result if c is None else result + c, "float32")
    scale = _scalar(a_scale) * b_scale * like(attrs.get("alpha", 1.0), a_scale)
    if y_scale is None:
        return result * scale
    dtype = dtype_of(a if y_zero is None else y_zero)
    return quantized(result * (scale / _scalar(y_scale)), y_zero, dtype)


def _scalar(expr: relay.Expr) -> relay.Expr:
    if rank_of(expr) > 1 or (rank_of(expr) == 1 and sizes_of(expr) != (1,)):
        raise NotImplementedError("scales and zero points, but those of its columns, must be scalars")
    return relay.reshape(expr, []) if rank_of(expr) else expr


def _in_floats(compute: Callable[..., relay.Expr], operands: int) -> Converter:
    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own rounds halves away from zero, and needs zero points."""
        floats = [_dequantized(importer, *inputs[3 * place : 3 * place + 3]) for place in range(operands)]
        y_scale, y_zero = inputs[3 * operands], inputs[3 * operands + 1]
        dtype = dtype_of(inputs[0])
        return quantized(compute(*floats, attrs) / _scalar(y_scale), _scalar_or_none(y_zero), dtype)

    return convert


def _dequantized(
    importer: ModuleType, data: relay.Expr, scale: relay.Expr, zero: relay.Expr | None
) -> relay.Expr:
    return dequantize_linear(importer, importer.onnx_input.of([data, scale, zero]), {}, {})


def _scalar_or_none(expr: relay.Expr | None) -> relay.Expr | None:
    return None if expr is None else _scalar(expr)


def _leaky_relu(x: relay.Expr, attrs: Attrs) -> relay.Expr:
    return relay.nn.leaky_relu(x, attrs.get("alpha", 0.01))  # TVM's own has another default


def qlinear_where(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    condition, *given = inputs
    one, other = (_dequantized(importer, *given[place : place + 3]) for place in (0, 3))
    chosen = relay.where(condition, one, other) / _scalar(given[6])
    return quantized(chosen, _scalar_or_none(given[7]), dtype_of(given[0]))


def matmul_integer_to_float(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """What ONNX Runtime makes of a MatMulInteger, the scales, and a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (inputs[place] for place in range(7))
    product = matmul_integer(importer, importer.onnx_input.of([a, b, a_zero, b_zero]), {}, params)
    dtype = dtype_of(a_scale)
    # In float32, since float16 has no numbers above 65,504, which the product of integers is in no time.
    a_scale, b_scale = (relay.cast(each, "float32") for each in (a_scale, b_scale))
    result = relay.cast(product, "float32") * (_scalar(a_scale) * b_scale)
    return relay.cast(result if bias is None else result + relay.cast(bias, "float32"), dtype)


def matmul_n_bits(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """What ONNX Runtime makes of a product with weights of few bits, a scale for each block of a column."""
    data, packed, scales, zeros, order, bias = (inputs[place] for place in range(6))
    bits, block, length, columns = attrs.get("bits", 4), attrs["block_size"], attrs["K"], attrs["N"]
    attrs.get("accuracy_level")  # how much less exact than float32 ONNX Runtime may be
    if order is not None:
        raise NotImplementedError("its blocks are in another order (g_idx): quantize without act_order")
    if bits not in (2, 4, 8):
        raise NotImplementedError(f"weights of {bits} bits are not supported: quantize to 2, 4 or 8")
    blocks = -(-length // block)
    whole, of_blocks = (columns, blocks * block), (columns, blocks, 1)
    steps = relay.reshape(_unpacked(packed, columns, bits), (columns, blocks, block))
    if zeros is None:
        zero = relay.const(2.0 ** (bits - 1), "float32")
    elif dtype_of(zeros) == "uint8":
        of_column = relay.strided_slice(_unpacked(zeros, columns, bits), [0], [blocks], axes=[1])
        zero = relay.reshape(of_column, of_blocks)
    else:
        zero = relay.reshape(relay.cast(zeros, "float32"), of_blocks)
    weights = (steps - zero) * relay.reshape(relay.cast(scales, "float32"), of_blocks)
    weights = relay.strided_slice(relay.reshape(weights, whole), [0], [length], axes=[1])
    weights = importer.fold_constant(relay.cast(relay.transpose(weights), dtype_of(data)))
    result = matmul(importer, [data, weights], {}, params)
    return result if bias is None else result + bias


def _unpacked(packed: relay.Expr, rows: int, bits: int) -> relay.Expr:
    """Numbers of few bits in float32, of which the first in a byte are its lowest bits."""
    number = relay.reshape(packed, [rows, -1])
    parts = [
        relay.bitwise_and(relay.right_shift(number, relay.const(shift, "uint8")), _mask(bits))
        for shift in range(0, 8, bits)
    ]
    return relay.cast(relay.reshape(relay.stack(parts, 2), [rows, -1]), "float32")


def _mask(bits: int) -> relay.Constant:
    return relay.const(2**bits - 1, "uint8")


def dynamic_quantize_matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """What ONNX Runtime makes of a DynamicQuantizeLinear and what follows it."""
    a, b, b_scale, b_zero, bias = (inputs[place] for place in range(5))
    quantized, scale, zero = dynamic_quantize_linear(importer, importer.onnx_input.of([a]), {}, params)
    given = importer.onnx_input.of([quantized, b, scale, b_scale, zero, b_zero, bias])
    return matmul_integer_to_float(importer, given, {}, params)


def qlinear_concat(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own rounds in fixed point."""
    y_scale, y_zero, *given = inputs
    parts = [_dequantized(importer, *given[place : place + 3]) for place in range(0, len(given), 3)]
    joined = relay.concatenate(parts, axis_of(attrs["axis"], rank_of(parts[0])))
    return quantized(joined / _scalar(y_scale), _scalar(y_zero), dtype_of(y_zero))


def dynamic_quantize_linear(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own divides by zero where all is zero, and rounds halves away from zero."""
    x = inputs[0]
    zero, one, steps = (relay.const(value) for value in (0.0, 1.0, 255.0))
    lowest, highest = relay.minimum(relay.min(x), zero), relay.maximum(relay.max(x), zero)
    spread = highest - lowest
    scale = relay.where(relay.equal(spread, zero), one, spread / steps)
    zero_point = round_half_even(relay.clip(zero - lowest / scale, 0, 255))
    return several(quantized(x / scale, zero_point, "uint8"), scale, relay.cast(zero_point, "uint8"))


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
    """Of a converter for channels in the second place, one for either; weights are as ONNX has them."""

    @functools.wraps(convert)
    def converted(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        if not attrs.get("channels_last", 0):
            return convert(importer, inputs, attrs, params)
        inputs[0] = channels_first(inputs[0])
        return channels_last(convert(importer, inputs, attrs, params))

    return converted


def _qlinear_average_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own lacks `channels_last`, and rounds halves away from zero."""
    data, x_scale, x_zero, y_scale, y_zero = (inputs[place] for place in range(5))
    floats = importer.onnx_input.of([_dequantized(importer, data, x_scale, x_zero)])
    result = average_pool(importer, floats, attrs, params) / _scalar(y_scale)
    return quantized(result, _scalar_or_none(y_zero), dtype_of(data))


def _qlinear_global_average_pool(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """TVM's own lacks `channels_last`, and rounds halves away from zero.

    The sum is of integers, as in ONNX Runtime: its mean may lie in the middle of two steps.
    """
    data, x_scale, x_zero, y_scale, y_zero = (inputs[place] for place in range(5))
    total = relay.sum(_centred(data, x_zero), pooled_axes(data), True)
    count = relay.prod(relay.strided_slice(relay.shape_of(data, "int64"), [2], [rank_of(data)]))
    scale = importer.fold_constant(_scalar(x_scale) / (_scalar(y_scale) * relay.cast(count, "float32")))
    return quantized(relay.cast(total, "float32") * scale, _scalar_or_none(y_zero), dtype_of(data))


CONVERTERS: dict[str, Converter] = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "MatMulInteger": matmul_integer,
    "MatMulNBits": matmul_n_bits,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "QGemm": qgemm,
    "QLinearAdd": _in_floats(lambda a, b, attrs: a + b, 2),
    "QLinearAveragePool": _channels_first(_qlinear_average_pool),
    "QLinearConcat": qlinear_concat,
    "QLinearConv": _channels_first(qlinear_conv),
    "QLinearGlobalAveragePool": _channels_first(_qlinear_global_average_pool),
    "QLinearLeakyRelu": _in_floats(_leaky_relu, 1),
    "QLinearMatMul": qlinear_matmul,
    "QLinearMul": _in_floats(lambda a, b, attrs: a * b, 2),
    "QLinearSigmoid": _in_floats(lambda x, attrs: relay.sigmoid(x), 1),
    "QLinearSoftmax": qlinear_softmax,
    "QLinearWhere": qlinear_where,
    "QuantizeLinear": quantize_linear,
}
