"""Cumulative sums, products and extremes along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted, dtype_name

Combine = Callable[[list[relay.Expr], list[relay.Expr]], list[relay.Expr]]  # of later and earlier elements


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


def logcumsumexp(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    data, axis = inputs
    dtype = converter.infer_type(data).dtype
    within = "float32" if dtype == "float16" else dtype

    def added(later: list[relay.Expr], earlier: list[relay.Expr]) -> list[relay.Expr]:
        return [_logaddexp(within, later[0], earlier[0])]

    (result,) = _combined(added, converter, [functions.cast(data, dtype, within)], axis)
    return functions.cast(result, within, dtype)


def _logaddexp(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """log(exp(x) + exp(y)); two infinities have no difference."""
    apart = relay.negative(relay.abs(relay.subtract(x, y)))
    more = functions.log1p(dtype, relay.exp(apart))
    more = relay.where(relay.equal(x, y), relay.const(math.log(2), dtype), more)
    return relay.add(functions.maximum(dtype, x, y), more)


def extreme_so_far(
    compare: Callable[..., relay.Expr], converter: Converter, inputs: Inputs, _: InputTypes
) -> tuple[relay.Expr, relay.Expr]:
    """TVM lacks it: the extreme, which NaN is for torch, and the last of its indices."""
    data, axis = inputs
    dtype = converter.infer_type(data).dtype
    shape = converter.infer_shape_with_prelude(data)
    if not shape:
        return data, relay.const(0, "int64")
    within = "int32" if dtype == "bool" else dtype

    def taken(later: list[relay.Expr], earlier: list[relay.Expr]) -> list[relay.Expr]:
        is_later = compare(later[0], earlier[0])
        if functions.is_float(dtype):
            is_known = relay.logical_not(relay.isnan(earlier[0]))
            is_later = relay.logical_or(relay.isnan(later[0]), relay.logical_and(is_known, is_later))
        return [relay.where(is_later, *both) for both in zip(later, earlier)]

    along = [-1 if each == axis % len(shape) else 1 for each in range(len(shape))]
    count = relay.const(shape[axis], "int64")
    indices = relay.reshape(relay.arange(count, dtype="int64"), along)
    indices = relay.broadcast_to(indices, shape)
    values, indices = _combined(taken, converter, [functions.cast(data, dtype, within), indices], axis)
    return functions.cast(values, within, dtype), indices


def _combined(
    combine: Combine, converter: Converter, tensors: list[relay.Expr], axis: int
) -> list[relay.Expr]:
    """Combine each element with all before it: with one, then two, four, ... that are combined already."""
    shape = converter.infer_shape_with_prelude(tensors[0])
    if not shape:
        return tensors
    axis, extent = axis % len(shape), shape[axis]
    if not isinstance(extent, int):
        raise NotConverted("it goes along an axis whose length is known only at run time")

    def part(tensor: relay.Expr, begin: int, end: int) -> relay.Expr:
        return relay.strided_slice(tensor, [begin], [end], axes=[axis])

    step = 1
    while step < extent:
        later = [part(each, step, extent) for each in tensors]
        earlier = [part(each, 0, extent - step) for each in tensors]
        tensors = [
            # Fused, each step would be computed anew for all that read it.
            relay.annotation.stop_fusion(relay.concatenate([part(each, 0, step), rest], axis))
            for each, rest in zip(tensors, combine(later, earlier))
        ]
        step *= 2
    return tensors


CONVERTERS = {
    "aten::cummax": partial(extreme_so_far, relay.greater_equal),
    "aten::cummin": partial(extreme_so_far, relay.less_equal),
    "aten::cumprod": partial(cumulative, "cumprod"),
    "aten::cumsum": partial(cumulative, "cumsum"),
    "aten::logcumsumexp": logcumsumexp,
}
