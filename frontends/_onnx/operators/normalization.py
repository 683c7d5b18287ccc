"""BatchNormalization and its kin, Dropout."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant, keep_known
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
    in_float32,
    like,
    opset_of,
    rank_of,
    several,
    sizes_of,
    stock,
)


def batch_normalization(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores `training_mode`, and takes no data of one axis."""
    momentum = attrs.get("momentum", 0.9)
    attrs.get("is_test")  # before opset 7; imported models are not trained
    if not attrs.get("training_mode", 0):
        if rank_of(inputs[0]) == 1:  # one channel
            column = importer.onnx_input.of([relay.expand_dims(inputs[0], 1), *inputs[1:5]])
            return relay.squeeze(stock(importer, "BatchNorm")(column, attrs, params)[0], [1])
        return stock(importer, "BatchNorm")(inputs, attrs, params)
    x, scale, bias, mean, variance = inputs
    rank = rank_of(x)
    axes = [axis for axis in range(rank) if axis != 1]
    now, spread = relay.mean(x, axes), relay.variance(x, axes)

    def by_channel(vector: relay.Expr) -> relay.Expr:
        return relay.expand_dims(vector, 1, rank - 2)

    deviation = relay.sqrt(by_channel(spread) + like(attrs.get("epsilon", 1e-5), x))
    result = (x - by_channel(now)) / deviation * by_channel(scale) + by_channel(bias)
    kept, new = like(momentum, mean), like(1 - momentum, mean)
    return several(result, mean * kept + now * new, variance * kept + spread * new)


def group_normalization(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has no converter."""
    x, scale, bias = inputs
    grouped = _of_groups(x, attrs["num_groups"], attrs.get("epsilon", 1e-5))
    if opset_of(importer) < 21:  # one scale per group, from opset 21 on one per channel
        result = grouped * relay.reshape(scale, [1, -1, 1]) + relay.reshape(bias, [1, -1, 1])
        return _in_shape_of(x, result)
    return _scaled(_in_shape_of(x, grouped), scale, bias)


def _of_groups(x: relay.Expr, groups: int, epsilon: float) -> relay.Expr:
    """Normalized over the elements of each group: (batch, groups, elements)."""
    shape = sizes_of(x)
    known = [size for size in shape[1:] if size is not None]
    size = int(np.prod(known)) // groups
    grouped = relay.reshape(x, [-1, groups, size] if len(known) == len(shape) - 1 else [0, groups, -1])
    mean = relay.mean(grouped, 2, True)
    deviation = relay.sqrt(relay.variance(grouped, 2, True) + like(epsilon, x))
    return (grouped - mean) / deviation


def _scaled(images: relay.Expr, scale: relay.Expr, bias: relay.Expr) -> relay.Expr:
    """By a factor and an addend for each channel."""
    scale, bias = (relay.expand_dims(each, 1, rank_of(images) - 2) for each in (scale, bias))
    return images * scale + bias


def group_norm(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: ONNX Runtime's, of images in NHWC, with what is added before and an activation behind."""
    x, gamma, beta, *more = (inputs[place] for place in range(5))
    is_last = attrs.get("channels_last", 1)
    activation = attrs.get("activation", 0)
    if activation not in (0, 1):
        raise NotImplementedError(f"its activation {activation} is not known")
    for added in more:
        if added is not None:
            x = x + _like_images(added, is_last)
    dtype = dtype_of(x)
    images = _wide(channels_first(x) if is_last else x)
    normalized = _in_shape_of(images, _of_groups(images, attrs["groups"], attrs.get("epsilon", 1e-5)))
    result = _scaled(normalized, _wide(gamma), _wide(beta))
    result = result * relay.sigmoid(result) if activation else result
    result = result if dtype == "float32" else relay.cast(result, dtype)
    return several(channels_last(result) if is_last else result, x)


def _like_images(added: relay.Expr, is_last: bool) -> relay.Expr:
    """What is added for each channel, (C,) or (N, C), as images of one pixel; images as they are."""
    if rank_of(added) == 4:
        return added
    if is_last:
        return relay.expand_dims(added, 1, 2) if rank_of(added) == 2 else added
    return relay.expand_dims(added, rank_of(added), 2)


def _in_shape_of(x: relay.Expr, result: relay.Expr) -> relay.Expr:
    shape = sizes_of(x)
    if None in shape[1:]:
        return keep_known(relay.reshape(result, relay.shape_of(x, "int64")), shape)
    return relay.reshape(result, [-1, *shape[1:]])


def lp_normalization(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has no converter."""
    x, axis = inputs[0], axis_of(attrs.get("axis", -1), rank_of(inputs[0]))
    is_l1 = attrs.get("p", 2) == 1
    norm = relay.sum(relay.abs(x), axis, True) if is_l1 else relay.sqrt(relay.sum(x * x, axis, True))
    return relay.where(relay.equal(norm, like(0, x)), like(0, x), x / norm)


def mean_variance_normalization(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """TVM's own subtracts squares, which loses precision, and divides by zero if all elements are equal."""
    x, axes = inputs[0], list(attrs.get("axes", (0, 2, 3)))
    mean = relay.mean(x, axes, True)
    return (x - mean) / (relay.sqrt(relay.variance(x, axes, True, with_mean=mean)) + like(1e-9, x))


def layer_normalization(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes an axis that the data do not have."""
    axis = axis_of(attrs.get("axis", -1), rank_of(inputs[0]))
    given = {"axis": axis, "epsilon": attrs.get("epsilon", 1e-5)}
    return stock(importer, "LayerNormalization")(inputs, given, params)


def skip_layer_normalization(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """TVM's own needs both of the optional inputs, and has one result of four."""
    data, skip, gamma, beta, bias = (inputs[place] for place in range(5))
    total = _sum(data, skip, bias)
    given = importer.onnx_input.of([total, gamma, beta])
    normalized = layer_normalization(importer, given, {"epsilon": attrs.get("epsilon", 1e-12)}, params)
    return several(*normalized, total)


def simplified_layer_normalization(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """TVM has none: the quotient by the root of the mean of squares, for which ONNX has RMSNormalization."""
    axis = axis_of(attrs.get("axis", -1), rank_of(inputs[0]))
    return several(*_by_root_of_squares(inputs[0], inputs[1], axis, attrs.get("epsilon", 1e-5)))


def skip_simplified_layer_normalization(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """As `SimplifiedLayerNormalization`, of a sum."""
    data, skip, gamma, bias = (inputs[place] for place in range(4))
    total = _sum(data, skip, bias)
    result, inverse = _by_root_of_squares(total, gamma, rank_of(total) - 1, attrs.get("epsilon", 1e-12))
    return several(result, relay.zeros_like(inverse), inverse, total)  # there is no mean


def _sum(data: relay.Expr, skip: relay.Expr, bias: relay.Expr | None) -> relay.Expr:
    return data + skip if bias is None else data + skip + bias


def _by_root_of_squares(
    x: relay.Expr, scale: relay.Expr, axis: int, epsilon: float
) -> tuple[relay.Expr, relay.Expr]:
    """The result, and the factor in float32: squares of float16 are beyond its range."""
    wide = _wide(x)
    axes = list(range(axis, rank_of(x)))
    inverse = like(1, wide) / relay.sqrt(relay.mean(wide * wide, axes, True) + like(epsilon, wide))
    result = wide * inverse * _wide(scale)
    return result if dtype_of(x) != "float16" else relay.cast(result, "float16"), inverse


def _wide(x: relay.Expr) -> relay.Expr:
    return relay.cast(x, "float32") if dtype_of(x) == "float16" else x


@in_float32
def lrn(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes odd sizes of images of float32 only, and does not compile for unknown sizes."""
    x, size = inputs[0], attrs["size"]
    alpha, beta, bias = (attrs.get(*each) for each in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    if rank_of(x) == 4 and size % 2 and dtype_of(x) == "float32" and None not in sizes_of(x):
        return relay.nn.lrn(x, size, 1, bias, alpha, beta)
    channels = sizes_of(x)[1]
    if channels is None:
        raise NotImplementedError("it needs to know how many channels it has")
    columns = relay.reshape(x * x, [0, 1, channels, -1])
    padding = ((size - 1) // 2, 0, size // 2, 0)
    means = relay.nn.avg_pool2d(columns, (size, 1), padding=padding, count_include_pad=True)
    means = relay.reshape_like(means, x)
    return x / relay.power(like(bias, x) + like(alpha, x) * means, like(beta, x))


def dropout(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own fails on `seed`, and returns no mask."""
    data, _, training = inputs[0], inputs[1], inputs[2]
    for name in ("is_test", "ratio", "seed"):
        attrs.get(name)  # these matter only in training
    if training is not None and not isinstance(training, relay.Constant):
        raise NotImplementedError("it is known only at run time whether it is for training")
    if training is not None and training.data.numpy().item():
        raise NotImplementedError("its result in training is random, on which no two runtimes agree")
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return data
    if None in sizes_of(data):
        return several(data, relay.full(relay.const(True), relay.shape_of(data, "int64"), "bool"))
    return several(data, constant(np.ones(all_sizes_of(data), bool)))


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "Dropout": dropout,
    "GroupNorm": group_norm,
    "GroupNormalization": group_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipGroupNorm": group_norm,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
}
