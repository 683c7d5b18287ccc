"""Operators that find equal elements, and count them."""

from __future__ import annotations

from typing import Any

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted
from .shapes import are_integers


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


def unique(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM's own takes vectors of int32 and int64 only."""
    data, _sorted, return_inverse, return_counts = inputs  # sorted is one of the orders that torch may give
    shape, flat = _flat(converter, data)
    order = relay.argsort(flat, 0, dtype="int64")
    values, number, counts = _runs(converter, relay.take(flat, order, 0))
    inverse = relay.scatter_elements(number, order, number, 0, "update")
    return values, *_asked_for(shape, (inverse, return_inverse), (counts, return_counts))


def unique_consecutive(converter: Converter, inputs: Inputs, _: InputTypes) -> tuple[relay.Expr, ...]:
    """TVM lacks it."""
    data, return_inverse, return_counts, axis = inputs
    shape, flat = _flat(converter, data)
    if axis is not None and len(shape) != 1:
        raise NotConverted("it compares rows, and not numbers")
    values, number, counts = _runs(converter, flat)
    return values, *_asked_for(shape, (number, return_inverse), (counts, return_counts))


def _flat(converter: Converter, data: relay.Expr) -> tuple[list[Any], relay.Expr]:
    shape = list(converter.infer_shape_with_prelude(data))
    if len(shape) != 1 and not are_integers(*shape):
        raise NotConverted("it takes a tensor of several axes whose shape is known only at run time")
    return shape, data if len(shape) == 1 else relay.reshape(data, [-1])


def _runs(converter: Converter, data: relay.Expr) -> tuple[relay.Expr, ...]:
    """The values of runs of equal elements, of each element the number of its run, and the runs' lengths."""
    zero, one = relay.const(0, "int64"), relay.const(1, "int64")
    ones = relay.ones_like(relay.cast(data, "int64"))
    places = relay.subtract(relay.cumsum(ones, 0), one)
    numbers = relay.cast(data, "int32") if converter.infer_type(data).dtype == "bool" else data
    before = relay.take(numbers, relay.maximum(relay.subtract(places, one), zero), 0)
    is_first = relay.logical_or(relay.equal(places, zero), relay.not_equal(numbers, before))
    first = relay.reshape(relay.argwhere(is_first), [-1])
    number = relay.subtract(relay.cumsum(relay.cast(is_first, "int64"), 0), one)
    none = relay.zeros_like(relay.cast(first, "int64"))
    return relay.take(data, first, 0), number, relay.scatter_elements(none, number, ones, 0, "add")


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
    "aten::unique_consecutive": unique_consecutive,
}
