"""Sorting, and what is found by sorting."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted
from .shapes import are_integers


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


def nanmedian(
    converter: Converter, inputs: Inputs, input_types: InputTypes
) -> relay.Expr | tuple[relay.Expr, ...]:
    """TVM lacks it: the lower of the two elements in the middle of those that are not NaN."""
    data, axis, keepdims = inputs if len(inputs) == 3 else (relay.reshape(inputs[0], [-1]), 0, False)
    dtype = converter.infer_type(data).dtype
    if not functions.is_float(dtype) or not converter.infer_shape_with_prelude(data):
        return median(converter, inputs, input_types)
    ordered, order = _sorted(converter, data, axis, False)  # with NaN last
    known = relay.cast(relay.logical_not(relay.isnan(data)), "int64")
    last = relay.subtract(relay.sum(known, axis, keepdims=True), relay.const(1, "int64"))
    middle = relay.right_shift(relay.maximum(last, relay.const(0, "int64")), relay.const(1, "int64"))
    found = [relay.gather(each, axis % len(converter.infer_shape(data)), middle) for each in (ordered, order)]
    values, indices = found if keepdims else [relay.squeeze(each, [axis]) for each in found]
    return (values, indices) if len(inputs) == 3 else values


def quantile(skips_nan: bool, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it, and torch's own definition looks at the numbers."""
    data, q, axis, keepdims, interpolation = inputs
    dtype = converter.infer_type(data).dtype
    shape = list(converter.infer_shape_with_prelude(data))
    if not are_integers(*shape):
        raise NotConverted("it takes a tensor whose shape is known only at run time")
    if axis is None or not shape:
        rows, rest, kept = relay.reshape(data, [-1]), [], [1] * len(shape)
    else:
        others = [each for each in range(len(shape)) if each != axis % len(shape)]
        rows, rest = relay.transpose(data, [*others, axis % len(shape)]), [shape[each] for each in others]
        kept = [size if each in others else 1 for each, size in enumerate(shape)]
    rows, _ = _sorted(converter, rows, -1, False)  # with NaN last
    q = q if isinstance(q, relay.Expr) else relay.const(q, dtype)
    places = _places_of_quantiles(converter, rows, dtype, relay.reshape(q, [-1]), skips_nan)
    found = _between(dtype, rows, places, interpolation, len(rest))
    found = relay.transpose(found, [len(rest), *range(len(rest))])
    return relay.reshape(found, [*converter.infer_shape_with_prelude(q), *(kept if keepdims else rest)])


def _places_of_quantiles(
    converter: Converter, rows: relay.Expr, dtype: str, q: relay.Expr, skips_nan: bool
) -> relay.Expr:
    """Where the quantiles are in sorted rows: that of a row with NaN is NaN, unless these are skipped."""
    last = relay.const(converter.infer_shape_with_prelude(rows)[-1] - 1, dtype)
    unknown = relay.sum(relay.cast(relay.isnan(rows), dtype), -1, keepdims=True)
    if skips_nan:
        known = relay.maximum(relay.subtract(last, unknown), relay.const(0, dtype))
        return relay.multiply(q, known)
    return relay.where(functions.truth(unknown, dtype), last, relay.multiply(q, last))


def _between(dtype: str, rows: relay.Expr, places: relay.Expr, interpolation: str, axis: int) -> relay.Expr:
    """The elements at places between whole numbers."""

    def at(whole: relay.Expr) -> relay.Expr:
        return relay.gather(rows, axis, relay.cast(whole, "int64"))

    below, above = relay.floor(places), relay.ceil(places)
    if interpolation not in ("linear", "midpoint"):
        nearest = functions.round_(dtype, places)
        return at({"lower": below, "higher": above, "nearest": nearest}[interpolation])
    half, one = relay.const(0.5, dtype), relay.const(1, dtype)
    weight = relay.subtract(places, below) if interpolation == "linear" else relay.full_like(places, half)
    low, high = at(below), at(above)
    apart = relay.subtract(high, low)
    from_low = relay.add(low, relay.multiply(weight, apart))
    from_high = relay.subtract(high, relay.multiply(relay.subtract(one, weight), apart))
    return relay.where(relay.less(weight, half), from_low, from_high)


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
    "aten::nanmedian": nanmedian,
    "aten::nanquantile": partial(quantile, True),
    "aten::quantile": partial(quantile, False),
    "aten::sort": sort,
    "aten::topk": topk,
}
