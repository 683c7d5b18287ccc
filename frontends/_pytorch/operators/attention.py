"""Attention, dense layers and embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvm import relay

from .converter import Convert, Converter, Inputs, InputTypes, NotConverted


def scaled_dot_product_attention(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own supports few masks, no float16, and no batches that broadcast."""
    query, key, value, mask, dropout, is_causal, *scale = inputs
    if dropout:
        raise NotConverted("with dropout its result is random")
    shapes = [list(converter.infer_shape(each)) for each in (query, key, value)]
    dtype = str(converter.infer_type(query).dtype)
    computed = "float32" if dtype == "float16" else dtype
    factor = scale[0] if scale and scale[0] is not None else 1 / math.sqrt(shapes[0][-1])
    masks = [] if mask is None else [list(converter.infer_shape(mask))[:-2]]
    lead = _broadcast(*(shape[:-2] for shape in shapes), *masks)
    batch = int(np.prod(lead))
    rows, columns = shapes[0][-2], shapes[1][-2]

    def flat(data: relay.Expr, shape: list[int]) -> relay.Expr:
        data = relay.cast(data, computed) if dtype != computed else data
        data = relay.broadcast_to(data, [*lead, *shape[-2:]]) if shape[:-2] != lead else data
        return data if len(lead) == 1 else relay.reshape(data, [batch, *shape[-2:]])

    query, key, value = (flat(each, shape) for each, shape in zip((query, key, value), shapes))
    scores = relay.nn.batch_matmul(query, key) * relay.const(float(factor), computed)
    if is_causal:
        allowed = np.tril(np.ones((1, rows, columns), bool))
        bias = relay.const(np.where(allowed, 0, -np.inf), computed)
        scores = scores + bias
    if mask is not None:
        if str(converter.infer_type(mask).dtype) == "bool":
            zero, least = relay.const(0.0, computed), relay.const(-np.inf, computed)
            mask = relay.where(mask, zero, least)
        mask = relay.cast(mask, computed) if dtype != computed else mask
        split = relay.reshape(scores, [*lead, rows, columns]) if len(lead) != 1 else scores
        scores = split + mask
        scores = relay.reshape(scores, [batch, rows, columns]) if len(lead) != 1 else scores
    result = relay.nn.batch_matmul(relay.nn.softmax(scores), value, transpose_b=False)
    result = result if len(lead) == 1 else relay.reshape(result, [*lead, rows, shapes[2][-1]])
    return relay.cast(result, dtype) if dtype != computed else result


def _broadcast(*shapes: list[int]) -> list[int]:
    return [int(extent) for extent in np.broadcast_shapes(*map(tuple, shapes))]


def linear(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no vectors, and multiplies by a transposed copy of the weight in higher ranks."""
    data, weight, bias = inputs
    shape, weight_shape = converter.infer_shape(data), converter.infer_shape(weight)
    if len(weight_shape) == 2 and len(shape) >= 2:
        return converter.stock["aten::linear"](inputs, input_types)
    rows = [int(extent) for extent in shape[:-1]]
    matrix = relay.reshape(data, [-1, shape[-1]])
    result = relay.nn.dense(matrix, relay.reshape(weight, [-1, shape[-1]]))
    result = relay.reshape(result, [*rows, *weight_shape[:-1]])
    return result if bias is None else result + bias


def bilinear(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    left, right, weight, bias = inputs
    lead = [int(extent) for extent in converter.infer_shape(left)[:-1]]
    outputs, m, n = (int(extent) for extent in converter.infer_shape(weight))
    left, right = relay.reshape(left, [-1, m]), relay.reshape(right, [-1, n])
    # By rows and outputs: the weight times the left side, then the dot product with the right.
    by_left = relay.nn.dense(left, relay.reshape(relay.transpose(weight, [0, 2, 1]), [-1, m]))
    by_left = relay.reshape(by_left, [-1, outputs, n])
    result = relay.sum(by_left * relay.expand_dims(right, 1), axis=-1)
    result = relay.reshape(result, [*lead, outputs])
    return result if bias is None else result + bias


def embedding(_converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own truncates indices to int32."""
    weight, indices = inputs[:2]
    return relay.take(weight, indices, axis=0)


def one_hot(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own gives int32, and needs the number of classes; else the greatest index tells it."""
    indices, classes = inputs
    if classes == -1:
        kind = converter.infer_type(indices).dtype
        end = relay.add(relay.max(indices), relay.const(1, kind))
        numbers = relay.arange(relay.const(0, kind), end, relay.const(1, kind), kind)
        return relay.cast(relay.equal(relay.expand_dims(indices, -1), numbers), "int64")
    on, off = relay.const(1, "int64"), relay.const(0, "int64")
    return relay.one_hot(indices, on, off, classes, -1, "int64")


CONVERTERS: dict[str, Convert] = {
    "aten::scaled_dot_product_attention": scaled_dot_product_attention,
    "aten::linear": linear,
    "aten::bilinear": bilinear,
    "aten::embedding": embedding,
    "aten::one_hot": one_hot,
}
