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
    groups, shape = attrs["num_groups"], sizes_of(x)
    known = [size for size in shape[1:] if size is not None]
    size = int(np.prod(known)) // groups
    grouped = relay.reshape(x, [-1, groups, size] if len(known) == len(shape) - 1 else [0, groups, -1])
    mean = relay.mean(grouped, 2, True)
    deviation = relay.sqrt(relay.variance(grouped, 2, True) + like(attrs.get("epsilon", 1e-5), x))
    result = (grouped - mean) / deviation
    if opset_of(importer) < 21:  # one scale per group, from opset 21 on one per channel
        result = result * relay.reshape(scale, [1, -1, 1]) + relay.reshape(bias, [1, -1, 1])
        return _in_shape_of(x, result)
    result = _in_shape_of(x, result)
    return result * relay.expand_dims(scale, 1, len(shape) - 2) + relay.expand_dims(bias, 1, len(shape) - 2)


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
    """TVM's own needs both of the optional inputs."""
    data, skip, gamma, beta, bias = (inputs[place] for place in range(5))
    zeros = relay.zeros_like(gamma)
    given = [data, skip, gamma, zeros if beta is None else beta, zeros if bias is None else bias]
    return stock(importer, "SkipLayerNormalization")(given, attrs, params)


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
    "GroupNormalization": group_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
}
