"""Operators that find equal elements, and count them."""

from __future__ import annotations

import math
from typing import Any

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted
from .shapes import are_integers

MAX_COLUMNS = 64  # of rows that are compared: each is sorted for itself


def bincount(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own ignores `minlength`, and counts in int32."""
    data, weights, minlength = inputs
    dtype = "int64"
    if weights is None:
        weights = relay.ones_like(relay.cast(data, dtype))
    else:
        given = converter.infer_type(weights).dtype
        dtype = given if given == "float32" else "float64"
        weights = functions.cast(weights, given, dtype)
    data = relay.cast(data, "int64")
    needed = relay.add(relay.max(data), relay.const(1, "int64"))
    length = relay.maximum(needed, relay.const(minlength, "int64"))
    zeros = relay.full(relay.const(0, dtype), relay.reshape(length, [1]), dtype)
    return relay.scatter_elements(zeros, data, weights, 0, "add")


def histc(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it. If the limits are equal, they are the least and the greatest number."""
    data, bins, low, high = inputs
    dtype = converter.infer_type(data).dtype
    data = relay.reshape(data, [-1])
    if low == high:
        least, greatest = relay.min(data), relay.max(data)
        wider = relay.cast(relay.equal(least, greatest), dtype)
        least, greatest = relay.subtract(least, wider), relay.add(greatest, wider)
    else:
        least, greatest = relay.const(low, dtype), relay.const(high, dtype)
    # as torch multiplies and divides, so that rounding moves the same numbers into the next bin
    scaled = relay.multiply(relay.subtract(data, least), relay.const(bins, dtype))
    place = relay.cast(relay.divide(scaled, relay.subtract(greatest, least)), "int64")
    place = relay.minimum(place, relay.const(bins - 1, "int64"))
    within = relay.logical_and(relay.greater_equal(data, least), relay.less_equal(data, greatest))
    place = relay.where(within, place, relay.const(bins, "int64"))  # a bin more takes all others
    counts = relay.scatter_elements(relay.zeros([bins + 1], "int64"), place, relay.ones_like(place), 0, "add")
    return relay.cast(relay.strided_slice(counts, [0], [bins]), dtype)


def unique(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM's own takes vectors of int32 and int64 only."""
    data, _sorted, return_inverse, return_counts = inputs  # sorted is one of the orders that torch may give
    shape, flat = _flat(converter, data)
    order = relay.argsort(flat, 0, dtype="int64")
    flat = relay.take(flat, order, 0)
    first, number, counts = _runs(converter, [flat])
    inverse = relay.scatter_elements(number, order, number, 0, "update")
    return relay.take(flat, first, 0), *_asked_for(shape, (inverse, return_inverse), (counts, return_counts))


def unique_dim(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM lacks it: slices are sorted by their elements, the last first, since `argsort` is stable."""
    data, axis, _sorted, _inverse, _counts = inputs  # torch gives both whether asked for or not
    shape = list(converter.infer_shape_with_prelude(data))
    of_slice = [size for place, size in enumerate(shape) if place != axis % len(shape)]
    if not are_integers(*of_slice) or math.prod(of_slice) > MAX_COLUMNS:
        raise NotConverted(f"it compares slices of more than {MAX_COLUMNS} numbers")
    moved = _to_front(data, axis % len(shape), len(shape))
    rows = relay.reshape(moved, [-1, math.prod(of_slice)])
    columns = [relay.take(rows, relay.const(place), 1) for place in range(math.prod(of_slice))]
    order = relay.argsort(columns[-1], 0, dtype="int64")
    for column in columns[-2::-1]:
        order = relay.take(order, relay.argsort(relay.take(column, order, 0), 0, dtype="int64"), 0)
    first, number, counts = _runs(converter, [relay.take(column, order, 0) for column in columns])
    inverse = relay.scatter_elements(number, order, number, 0, "update")
    return relay.take(data, relay.take(order, first, 0), axis % len(shape)), inverse, counts


def unique_consecutive(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM lacks it."""
    data, return_inverse, return_counts, axis = inputs
    shape, flat = _flat(converter, data)
    if axis is not None and len(shape) != 1:
        raise NotConverted("it compares rows, and not numbers")
    first, number, counts = _runs(converter, [flat])
    return relay.take(flat, first, 0), *_asked_for(shape, (number, return_inverse), (counts, return_counts))


def _flat(converter: Converter, data: relay.Expr) -> tuple[list[Any], relay.Expr]:
    shape = list(converter.infer_shape_with_prelude(data))
    if len(shape) != 1 and not are_integers(*shape):
        raise NotConverted("it takes a tensor of several axes whose shape is known only at run time")
    return shape, data if len(shape) == 1 else relay.reshape(data, [-1])


def _runs(converter: Converter, columns: list[relay.Expr]) -> tuple[relay.Expr, ...]:
    """Of runs of equal rows: the first of each, of each row the number of its run, and the runs' lengths."""
    zero, one = relay.const(0, "int64"), relay.const(1, "int64")
    ones = relay.ones_like(relay.cast(columns[0], "int64"))
    places = relay.subtract(relay.cumsum(ones, 0), one)
    is_first = relay.equal(places, zero)
    for column in columns:
        numbers = relay.cast(column, "int32") if converter.infer_type(column).dtype == "bool" else column
        before = relay.take(numbers, relay.maximum(relay.subtract(places, one), zero), 0)
        is_first = relay.logical_or(is_first, relay.not_equal(numbers, before))
    first = relay.reshape(relay.argwhere(is_first), [-1])
    number = relay.subtract(relay.cumsum(relay.cast(is_first, "int64"), 0), one)
    none = relay.zeros_like(relay.cast(first, "int64"))
    return first, number, relay.scatter_elements(none, number, ones, 0, "add")


def _to_front(data: relay.Expr, axis: int, rank: int) -> relay.Expr:
    return (
        data if axis == 0 else relay.transpose(data, [axis, *(each for each in range(rank) if each != axis)])
    )


def _asked_for(
    shape: list[Any], inverse: tuple[relay.Expr, bool], counts: tuple[relay.Expr, bool]
) -> tuple[relay.Expr, relay.Expr]:
    """The inverse and the counts; an empty tensor stands for what is not asked for, as in torch."""
    none = relay.zeros([0], "int64")
    of_shape = inverse[0] if len(shape) == 1 else relay.reshape(inverse[0], shape)
    return of_shape if inverse[1] else none, counts[0] if counts[1] else none


CONVERTERS = {
    "aten::_unique2": unique,
    "aten::bincount": bincount,
    "aten::histc": histc,
    "aten::unique_dim": unique_dim,
    "aten::unique_consecutive": unique_consecutive,
}
