"""Cumulative sums and products along an axis."""

from __future__ import annotations

from functools import partial

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, dtype_name


def cumulative(name: str, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own adds integers and bool in their own dtype, and has no product."""
    data, axis, dtype = inputs
    given = converter.infer_type(data).dtype
    result = dtype_name(dtype) or (given if functions.is_float(given) else "int64")
    within = "float32" if result == "float16" else result
    data = functions.cast(data, given, within)
    if converter.infer_shape_with_prelude(data):
        data = getattr(relay, name)(data, axis, within)
    return functions.cast(data, within, result)


CONVERTERS = {
    "aten::cumprod": partial(cumulative, "cumprod"),
    "aten::cumsum": partial(cumulative, "cumsum"),
}
