"""What ONNX Runtime's optimizer makes of several operators of ONNX, in its domain com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from tvm import relay

from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    axis_of,
    channels_first,
    channels_last,
    in_float32,
    known,
    like,
    opset_of,
    rank_of,
    sizes_of,
)
from .arithmetic import gemm, matmul
from .convolution import conv, conv_transpose
from .normalization import dropout
from .pooling import max_pool

# The parameters of activations, in the order in which a convolution has them as a list.
PARAMETERS: dict[str, Sequence[str]] = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "ThresholdedRelu": ("alpha",),
    **dict.fromkeys(("Gelu", "HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
}


def _activated(
    importer: ModuleType, data: relay.Expr, name: str, parameters: Attrs, params: Params
) -> relay.Expr:
    """Apply the activation of this name, as ONNX has it."""
    if name in ("", "None"):
        return data
    if name == "Silu":
        return data * relay.sigmoid(data)
    if name not in PARAMETERS:
        raise NotImplementedError(f"its activation {name} is not supported")
    convert = importer._get_convert_map(opset_of(importer))[name]
    return convert(importer.onnx_input.of([data]), parameters, params)


def fused_conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a convolution, what is added to it, and its activation."""
    data, weight, bias, added = (inputs[place] for place in range(4))
    name, numbers = attrs.pop("activation", b"").decode(), attrs.pop("activation_params", ())
    names = PARAMETERS.get(name, ())
    if len(numbers) != len(names):
        raise NotImplementedError(f"its activation {name} has {len(names)} parameters, not {len(numbers)}")
    given = [data, weight] if bias is None else [data, weight, bias]
    result = conv(importer, importer.onnx_input.of(given), attrs, params)
    result = result if added is None else result + added
    return _activated(importer, result, name, dict(zip(names, numbers)), params)


def nhwc_conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: of images whose channels come last, and so do those of the weights."""
    inputs[1] = importer.fold_constant(channels_first(inputs[1]))
    return nhwc_fused_conv(importer, inputs, attrs, params)


def nhwc_fused_conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: of images whose channels come last, and so do those of what is added."""
    for place in (0, 3):
        if inputs[place] is not None:
            inputs[place] = channels_first(inputs[place])
    return channels_last(fused_conv(importer, inputs, attrs, params))


def nhwc_max_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: of images whose channels come last."""
    inputs[0] = channels_first(inputs[0])
    return channels_last(max_pool(importer, inputs, attrs, params))


def conv_transpose_with_dynamic_pads(
    importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params
) -> relay.Expr:
    """TVM has none: the pads are an input."""
    data, weight, pads, bias = (inputs[place] for place in range(4))
    numbers = known(pads, "input Pads")
    if numbers is not None:
        attrs["pads"] = numbers.tolist()
    given = [data, weight] if bias is None else [data, weight, bias]
    return conv_transpose(importer, importer.onnx_input.of(given), attrs, params)


def fused_gemm(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a Gemm and its activation."""
    name, parameters = attrs.pop("activation", b"").decode(), _parameters(attrs)
    return _activated(importer, gemm(importer, inputs, attrs, params), name, parameters, params)


def _parameters(attrs: Attrs) -> Attrs:
    """The parameters of an activation that are attributes of their own."""
    names = ("alpha", "beta", "gamma")
    return {name: attrs.pop(f"activation_{name}") for name in names if f"activation_{name}" in attrs}


def fused_matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a product of matrices that may be transposed, and a factor."""
    left, right = (
        _transposed(inputs[place], attrs.get(f"trans{side}", 0), attrs.get(f"transBatch{side}", 0))
        for place, side in enumerate("AB")
    )
    product, alpha = matmul(importer, [left, right], {}, params), attrs.get("alpha", 1.0)
    return product if alpha == 1 else product * like(alpha, product)


def _transposed(data: relay.Expr, of_matrices: int, of_batch: int) -> relay.Expr:
    """With the first axis behind those of the batch; and then with the last two swapped."""
    axes = list(range(rank_of(data)))
    if of_batch:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if of_matrices and len(axes) > 1:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    return data if axes == sorted(axes) else relay.transpose(data, axes)


def fused_matmul_activation(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """As `FusedMatMul`, with an activation."""
    name, parameters = attrs["activation"].decode(), _parameters(attrs)
    product = fused_matmul(importer, inputs, attrs, params)
    return _activated(importer, product, name, parameters, params)


def gemm_fast_gelu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a product of matrices, a bias, and the approximate Gelu."""
    product = matmul(importer, [inputs[0], inputs[1]], {}, params)
    product = product if inputs[2] is None else product + inputs[2]
    return _activated(importer, product, "Gelu", {"approximate": b"tanh"}, params)


def bias_softmax(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a softmax of a sum, over all axes from the given one on."""
    attrs.get("is_inner_broadcast")  # which axes of the bias have one element, as its shape says
    return _softmax(importer, [inputs[0] + inputs[1]], attrs, params)


@in_float32
def _softmax(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    x, rank = inputs[0], rank_of(inputs[0])
    axis = axis_of(attrs.get("axis", 1), rank)
    if axis == rank - 1:
        return relay.nn.softmax(x, axis)
    axes = list(range(axis, rank))
    exponentials = relay.exp(x - relay.max(x, axes, True))
    return exponentials / relay.sum(exponentials, axes, True)


def bias_dropout(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: what is dropped of a sum, and what is added to the rest."""
    data, bias, residual, ratio, training = (inputs[place] for place in range(5))
    given = importer.onnx_input.of([data + bias, ratio, training])
    result = dropout(importer, given, attrs, params)
    if residual is None:
        return result
    if isinstance(result, relay.TupleWrapper):
        return relay.TupleWrapper(relay.Tuple([result[0] + residual, result[1]]), 2)
    return result + residual


def bias_add(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: a bias, and what else is added."""
    return inputs[0] + inputs[1] + inputs[2]


def bias_split_gelu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: one half of a sum, times the Gelu of the other."""
    total = inputs[0] + inputs[1]
    if sizes_of(total)[-1] is None:
        raise NotImplementedError("it needs to know the length of its rows")
    left, right = relay.split(total, 2, axis=-1)
    return left * _activated(importer, right, "Gelu", {}, params)


def cdist(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: distances of all pairs of rows."""
    metric = attrs.get("metric", b"sqeuclidean").decode()
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotImplementedError(f"its metric {metric} is not supported, nor by ONNX Runtime")
    difference = relay.expand_dims(inputs[0], 1) - relay.expand_dims(inputs[1], 0)
    squares = relay.sum(difference * difference, -1)
    return squares if metric == "sqeuclidean" else relay.sqrt(squares)


def expand_dims(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: `Unsqueeze` of one axis."""
    axis = known(inputs[1], "axis")
    return relay.expand_dims(inputs[0], int(np.asarray(axis).item()))


CONVERTERS: dict[str, Converter] = {
    "BiasAdd": bias_add,
    "BiasDropout": bias_dropout,
    "BiasSoftmax": bias_softmax,
    "BiasSplitGelu": bias_split_gelu,
    "CDist": cdist,
    "ConvTransposeWithDynamicPads": conv_transpose_with_dynamic_pads,
    "ExpandDims": expand_dims,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "FusedMatMulActivation": fused_matmul_activation,
    "GemmFastGelu": gemm_fast_gelu,
    "NhwcConv": nhwc_conv,
    "NhwcFusedConv": nhwc_fused_conv,
    "NhwcMaxPool": nhwc_max_pool,
    "TransposeMatMul": fused_matmul,
}
