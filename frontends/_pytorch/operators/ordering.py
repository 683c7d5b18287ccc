"""Sorting, and what is found by sorting."""

from __future__ import annotations

import math
from typing import Any

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes


def sort(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, relay.Expr]:
    """TVM's own takes `stable` for the axis, and takes no 0-d tensors."""
    data, *_stable, axis, descending = inputs  # this sort is stable whether that is asked for or not
    return _sorted(converter, data, axis, descending)


def argsort(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `sort`."""
    return sort(converter, inputs, input_types)[1]


def msort(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    return _sorted(converter, inputs[0], 0, False)[0]


def topk(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own refuses `sorted=False`, which any order satisfies, and takes no 0-d tensors."""
    data, k, axis, largest, _ = inputs
    if not converter.infer_shape_with_prelude(data):
        return data, relay.const(0, "int64")
    return converter.stock["aten::topk"]([data, k, axis, largest, True], input_types)


def kthvalue(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM lacks it."""
    data, k, axis, keepdims = inputs
    return _at(converter, data, k - 1, axis, keepdims)


def median(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr | tuple[relay.Expr, ...]:
    """TVM lacks it: the lower of the two elements in the middle, or NaN if there is any."""
    data, axis, keepdims = inputs if len(inputs) == 3 else (relay.reshape(inputs[0], [-1]), 0, False)
    shape = converter.infer_shape_with_prelude(data)
    values, indices = _at(converter, data, (shape[axis] - 1) // 2 if shape else 0, axis, keepdims)
    if shape and functions.is_float(converter.infer_type(data).dtype):
        unknown = relay.cast(relay.isnan(data), "int32")
        is_unknown = functions.truth(relay.max(unknown, axis, keepdims), "int32")
        nan = relay.const(math.nan, converter.infer_type(data).dtype)
        values = relay.where(is_unknown, nan, values)
        first = relay.cast(relay.argmax(unknown, axis, keepdims), "int64")
        indices = relay.where(is_unknown, first, indices)
    return (values, indices) if len(inputs) == 3 else values


def _at(
    converter: Converter, data: relay.Expr, place: int, axis: int, keepdims: bool
) -> tuple[relay.Expr, ...]:
    """The element at that place in ascending order, and its index."""
    both = _sorted(converter, data, axis, False)
    if not converter.infer_shape_with_prelude(data):
        return both
    found = [relay.take(each, relay.const(place), axis) for each in both]
    return tuple(relay.expand_dims(each, axis) if keepdims else each for each in found)


def _sorted(
    converter: Converter, data: relay.Expr, axis: int, descending: bool
) -> tuple[relay.Expr, relay.Expr]:
    """Sort stably; return the elements and their indices."""
    rank = len(converter.infer_shape_with_prelude(data))
    if not rank:
        return data, relay.const(0, "int64")
    indices = relay.argsort(data, axis % rank, not descending, dtype="int64")
    return relay.gather(data, axis % rank, indices), indices


CONVERTERS = {
    "aten::argsort": argsort,
    "aten::kthvalue": kthvalue,
    "aten::median": median,
    "aten::msort": msort,
    "aten::sort": sort,
    "aten::topk": topk,
}
