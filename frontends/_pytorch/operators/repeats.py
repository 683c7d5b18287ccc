"""Operators that repeat elements, also as often as only the runtime knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm import relay

from .converter import Converter, Inputs, InputTypes, NotConverted, known_value
from .shapes import as_length, as_numbers, expand, size


def repeat(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no 0-d tensors, and only numbers."""
    data, repeats = inputs
    if not repeats:
        return data
    shape = converter.infer_shape_with_prelude(data)
    added = len(repeats) - len(shape)
    if added > 0:
        data, shape = relay.expand_dims(data, 0, added), [*[1] * added, *shape]
    numbers = as_numbers(repeats)
    late = [axis for axis, number in enumerate(numbers) if not isinstance(number, int)]
    known = [1 if axis in late else number for axis, number in enumerate(numbers)]
    if set(known) != {1}:
        data = converter.stock["aten::repeat"]([data, known], input_types)
    single = [axis for axis in late if shape[axis] == 1]
    if single:  # expanded, as passes know it of detections
        sizes = [repeats[axis] if axis in single else -1 for axis in range(len(shape))]
        data = expand(converter, [data, sizes, False], input_types)
    for axis in late:
        if axis not in single:
            data = _taken(converter, data, repeats[axis], axis, relay.mod)
    return data


def repeat_interleave(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes only a single number of repeats."""
    if len(inputs) == 2:  # how often the place of each is repeated
        given, _output_size = inputs
        length = as_length(size(converter, [given, 0], []))
        inputs = [relay.cast(_places(length), converter.infer_type(given).dtype), given, 0]
    data, given, axis, *_rest = inputs
    repeats = known_value(given)
    if axis is None:
        data, axis = relay.reshape(data, [-1]), 0
    if repeats is None:
        if converter.infer_shape_with_prelude(given) not in ((), (1,)):
            raise NotConverted("how often it repeats each element is known only at run time")
        each = as_length(given)
        return _taken(converter, data, given, axis, lambda places, _: relay.floor_divide(places, each))
    if isinstance(repeats, list) and len(repeats) == 1:
        repeats = repeats[0]
    if isinstance(repeats, int) and repeats > 0:
        return relay.repeat(data, repeats, axis)
    if isinstance(repeats, int):  # of which TVM's makes no empty tensor
        return relay.take(data, relay.const(np.zeros(0, "int64")), axis)
    return relay.take(data, relay.const(np.repeat(np.arange(len(repeats)), repeats)), axis)


def _taken(
    converter: Converter,
    data: relay.Expr,
    repeats: relay.Expr,
    axis: int,
    place_of: Callable[..., relay.Expr],
) -> relay.Expr:
    """Repeated along an axis; `place_of` says by its place now, and the length before, where each was."""
    length = as_length(size(converter, [data, axis], []))
    places = _places(length * as_length(repeats))
    return relay.take(data, place_of(places, length), axis)


def _places(length: relay.Expr) -> relay.Expr:
    zero, one = (relay.const(number, "int64") for number in (0, 1))
    return relay.arange(zero, length, one, "int64")


CONVERTERS = {"aten::repeat": repeat, "aten::repeat_interleave": repeat_interleave}
