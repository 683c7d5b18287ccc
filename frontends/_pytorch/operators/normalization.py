"""Normalization, and distances."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvm_passes.engine.expressions import op_name

from tvm import relay

from .converter import Convert, Converter, Inputs, InputTypes
from .shapes import are_integers


def layer_norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own normalizes the last axis only, and needs a weight and a bias."""
    data, shape, weight, bias, epsilon, *_ = inputs
    if len(shape) == 1 and weight is not None and bias is not None and _dtype(converter, data) != "float16":
        return converter.stock["aten::layer_norm"](inputs, input_types)
    return native_layer_norm(converter, [data, shape, weight, bias, epsilon], input_types)[0]


def native_layer_norm(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, shape, weight, bias, epsilon = inputs
    normalized, mean, scale = _normalize(converter, data, _last(len(shape)), epsilon)
    return _affine(normalized, weight, bias, _dtype(converter, data)), mean, scale


def rms_norm(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, shape, weight, epsilon = inputs
    dtype = _dtype(converter, data)
    epsilon = float(np.finfo(dtype).eps) if epsilon is None else epsilon
    wide = _widened(data, dtype)
    square = relay.mean(wide * wide, axis=_last(len(shape)), keepdims=True)
    return _affine(wide * relay.rsqrt(square + _like(epsilon, dtype)), weight, None, dtype)


def group_norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own needs a weight, a bias and sizes that are known: without these it ends the process."""
    data, groups, weight, bias, epsilon, *_ = inputs
    dtype, shape = _dtype(converter, data), converter.infer_shape(data)
    is_known = are_integers(*shape)
    if is_known and weight is not None and bias is not None and dtype != "float16":
        return converter.stock["aten::group_norm"](inputs, input_types)
    if is_known:
        grouped, axes, ungrouped = [shape[0], groups, -1], [-1], shape
    else:  # channels are split and joined again; all other sizes are copied
        grouped, axes, ungrouped = [0, -4, groups, -1, -2], list(range(2, len(shape) + 1)), [0, -3, -2]
    normalized, *_ = _normalize(converter, relay.reshape(data, grouped), axes, epsilon)
    return _affine(relay.reshape(normalized, ungrouped), weight, bias, dtype, _channels(shape))


def native_group_norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks it: what `torch.export` decomposes a group norm to."""
    data, weight, bias, images, _channels_of_all, _pixels, groups, epsilon = inputs
    result = group_norm(converter, [data, groups, weight, bias, epsilon], input_types)
    _, mean, scale = _normalize(converter, relay.reshape(data, [images, groups, -1]), [-1], epsilon)
    return result, *(relay.reshape(each, [images, groups]) for each in (mean, scale))


def batch_norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own normalizes by the running statistics even in training."""
    data, weight, bias, mean, variance, training, _, epsilon, *_ = inputs
    if not training and mean is not None:
        if _dtype(converter, data) == "float32":
            return converter.stock["aten::batch_norm"](inputs, input_types)
        statistics = _Statistics(weight, bias, mean, variance, epsilon)
        if _dtype(converter, data) == "float16" and _is_convolved(data):
            return _to_fold(converter, data, statistics)
        return _by_statistics(converter, data, statistics)
    shape = converter.infer_shape(data)
    others = [axis for axis in range(len(shape)) if axis != 1]
    normalized, *_ = _normalize(converter, data, others, epsilon)
    return _affine(normalized, weight, bias, _dtype(converter, data), _channels(shape))


def native_batch_norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks it; without running statistics it is what `torch.export` decomposes an instance norm to."""
    if len(inputs) == 6:
        inputs = [*inputs[:3], None, None, *inputs[3:]]
    data, training, epsilon = inputs[0], inputs[5], inputs[7]
    dtype = _dtype(converter, data)
    result = batch_norm(converter, inputs, input_types)
    if not training:
        empty = relay.zeros([0], dtype)
        return result, empty, empty
    shape = converter.infer_shape(data)
    others = [axis for axis in range(len(shape)) if axis != 1]
    _, mean, scale = _normalize(converter, data, others, epsilon)
    return result, relay.reshape(mean, [shape[1]]), relay.reshape(scale, [shape[1]])


def instance_norm(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own takes a bias only with a weight, and vice versa."""
    data, weight, bias, mean, variance, use_input_stats, _, epsilon, *_ = inputs
    if not use_input_stats:
        return _by_statistics(converter, data, _Statistics(weight, bias, mean, variance, epsilon))
    shape = converter.infer_shape(data)
    normalized, *_ = _normalize(converter, data, list(range(2, len(shape))), epsilon)
    return _affine(normalized, weight, bias, _dtype(converter, data), _channels(shape))


def weight_norm(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own takes the norm of the whole weight for any negative axis."""
    weight, gain, axis = inputs
    rank = len(converter.infer_shape(weight))
    others = [other for other in range(rank) if axis == -1 or other != axis % rank]
    norm = relay.sqrt(relay.sum(weight * weight, axis=others, keepdims=True))
    return weight * (gain / norm)


def cosine_similarity(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    left, right, axis, epsilon = inputs
    dtype = _dtype(converter, left)
    rank = max(len(converter.infer_shape(side)) for side in (left, right))
    if rank == 0:
        left, right, axis = relay.reshape(left, [1]), relay.reshape(right, [1]), 0
    left, right = (_widened(side, dtype) for side in (left, right))
    dtype = "float32" if dtype == "float16" else dtype
    # An axis of 1 that is summed over is as long as the other's: a vector of that many equal numbers.
    shapes = [[*map(str, converter.infer_shape(side))] for side in (left, right)]
    is_broadcast = shapes[0] != shapes[1]

    def unit(side: relay.Expr) -> relay.Expr:
        missing = max(rank, 1) - max(len(converter.infer_shape(side)), 1)
        side = relay.expand_dims(side, 0, missing) if missing else side
        side = relay.broadcast_to_like(side, left * right) if is_broadcast else side
        norm = relay.sqrt(relay.sum(side * side, axis=axis, keepdims=True))
        return side / relay.maximum(norm, relay.const(epsilon, dtype))

    result = relay.sum(unit(left) * unit(right), axis=axis)
    return relay.cast(result, _dtype(converter, inputs[0]))


def pairwise_distance(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    left, right, order, epsilon, keepdim = inputs
    dtype = _dtype(converter, left)
    return _norm(left - right + relay.const(epsilon, dtype), order, dtype, keepdim)


def _norm(data: relay.Expr, order: float, dtype: str, keepdim: bool) -> relay.Expr:
    """The norm along the last axis."""
    size = relay.abs(data)
    if abs(order) == float("inf"):
        return (relay.max if order > 0 else relay.min)(size, axis=-1, keepdims=keepdim)
    if order == 0:
        counted = relay.cast(relay.not_equal(size, relay.const(0, dtype)), dtype)
        return relay.sum(counted, axis=-1, keepdims=keepdim)
    if order == 1:
        return relay.sum(size, axis=-1, keepdims=keepdim)
    if order == 2:
        return relay.sqrt(relay.sum(data * data, axis=-1, keepdims=keepdim))
    total = relay.sum(relay.power(size, relay.const(order, dtype)), axis=-1, keepdims=keepdim)
    return relay.power(total, relay.const(1.0 / order, dtype))


def _normalize(
    converter: Converter, data: relay.Expr, axes: list[int], epsilon: float
) -> tuple[relay.Expr, relay.Expr, relay.Expr]:
    """The data with mean 0 and variance 1 along `axes`, the mean, and one over the standard deviation.

    float16 is computed in float32, as in PyTorch.
    """
    dtype = _dtype(converter, data)
    wide = _widened(data, dtype)
    mean = relay.mean(wide, axis=axes, keepdims=True)
    centered = wide - mean
    variance = relay.mean(centered * centered, axis=axes, keepdims=True)
    scale = relay.const(1.0, _wider(dtype)) / relay.sqrt(variance + _like(epsilon, dtype))
    return centered * scale, mean, scale


class _Statistics(NamedTuple):
    weight: relay.Expr | None
    bias: relay.Expr | None
    mean: relay.Expr
    variance: relay.Expr
    epsilon: float


def _by_statistics(converter: Converter, data: relay.Expr, statistics: _Statistics) -> relay.Expr:
    weight, bias, mean, variance, epsilon = statistics
    dtype, shape = _dtype(converter, data), converter.infer_shape(data)
    mean, variance = (_widened(relay.reshape(each, _channels(shape)), "float16") for each in (mean, variance))
    if dtype == "float64":
        mean, variance = relay.cast(mean, dtype), relay.cast(variance, dtype)
    normalized = (_widened(data, dtype) - mean) / relay.sqrt(variance + _like(epsilon, dtype))
    return _affine(normalized, weight, bias, dtype, _channels(shape))


def _is_convolved(data: relay.Expr) -> bool:
    """Whether it is the result of a convolution, with or without bias."""
    while op_name(data) in ("add", "nn.bias_add"):
        data = data.args[0]
    return (op_name(data) or "").startswith("nn.conv")


def _to_fold(converter: Converter, data: relay.Expr, statistics: _Statistics) -> relay.Expr:
    """Apply a factor and a term in float16, which fold into weights and bias of a float16 convolution."""
    weight, bias, mean, variance, epsilon = statistics
    factor = relay.rsqrt(relay.cast(variance, "float32") + _like(epsilon, "float32"))
    if weight is not None:
        factor = factor * relay.cast(weight, "float32")
    term = relay.negative(relay.cast(mean, "float32")) * factor
    if bias is not None:
        term = term + relay.cast(bias, "float32")
    shape = _channels(converter.infer_shape(data))
    factor, term = (relay.cast(relay.reshape(each, shape), "float16") for each in (factor, term))
    return data * factor + term


def _affine(
    normalized: relay.Expr,
    weight: relay.Expr | None,
    bias: relay.Expr | None,
    dtype: str,
    shape: list[int] | None = None,
) -> relay.Expr:
    """Scale and shift, then return to the dtype of the data; `shape` makes both broadcast."""
    for operand, combine in ((weight, relay.multiply), (bias, relay.add)):
        if operand is not None:
            operand = relay.cast(operand, _wider(dtype))
            normalized = combine(normalized, relay.reshape(operand, shape) if shape else operand)
    return relay.cast(normalized, dtype) if _wider(dtype) != dtype else normalized


def _channels(shape: Any) -> list[int]:
    return [-1 if axis == 1 else 1 for axis in range(len(shape))]


def _last(count: int) -> list[int]:
    return list(range(-count, 0))


def _wider(dtype: str) -> str:
    return "float32" if dtype == "float16" else dtype


def _widened(data: relay.Expr, dtype: str) -> relay.Expr:
    return relay.cast(data, _wider(dtype)) if _wider(dtype) != dtype else data


def _like(value: float, dtype: str) -> relay.Expr:
    return relay.const(float(value), _wider(dtype))


def _dtype(converter: Converter, data: relay.Expr) -> str:
    return str(converter.infer_type(data).dtype)


CONVERTERS: dict[str, Convert] = {
    "aten::layer_norm": layer_norm,
    "aten::native_layer_norm": native_layer_norm,
    "aten::rms_norm": rms_norm,
    "aten::group_norm": group_norm,
    "aten::native_group_norm": native_group_norm,
    "aten::batch_norm": batch_norm,
    "aten::native_batch_norm": native_batch_norm,
    "aten::_native_batch_norm_legit": native_batch_norm,
    "aten::instance_norm": instance_norm,
    "aten::_weight_norm": weight_norm,
    "aten::cosine_similarity": cosine_similarity,
    "aten::pairwise_distance": pairwise_distance,
}
