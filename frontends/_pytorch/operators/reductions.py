"""Sums, means, and extremes of a tensor or along some of its axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tvm import relay

from . import functions, quantised
from .arithmetic import elementwise
from .converter import Converter, Inputs, InputTypes, dtype_name

Reduce = Callable[..., relay.Expr]


def total(reduce: Reduce, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own sums bool as bool, and ignores `dtype`."""
    data, dtype = inputs[0], inputs[-1]
    axes, keepdims = (inputs[1], inputs[2]) if len(inputs) > 2 else (None, False)
    given = converter.infer_type(data).dtype
    result = dtype_name(dtype) or (given if functions.is_float(given) else "int64")
    # torch adds float16 in float32 too
    within = "float32" if result == "float16" else result
    return functions.cast(
        _reduced(converter, reduce, functions.cast(data, given, within), axes, keepdims), within, result
    )


def mean(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `total`; of quantized numbers, to the nearest step."""
    data, *others = quantised.given(converter, inputs)

    def of(data: relay.Expr) -> relay.Expr:
        return total(relay.mean, converter, [data, *others], input_types)

    return quantised.to_nearest(of, data) if quantised.is_quantised(converter, inputs) else of(data)


def truth(reduce: Reduce, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes neither a list of axes nor a 0-d tensor."""
    data, axes, keepdims = inputs if len(inputs) == 3 else [inputs[0], None, False]
    dtype = converter.infer_type(data).dtype
    result = _reduced(converter, reduce, functions.truth(data, dtype), axes, keepdims)
    return relay.cast(result, dtype) if dtype == "uint8" else result


def extreme(reduce: Reduce, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own loses NaN, and does not support bool."""
    data, axes, keepdims = inputs
    return _extreme(converter, reduce, data, axes, keepdims)


def _extreme(converter: Converter, reduce: Reduce, data: relay.Expr, axes: Any, keepdims: bool) -> relay.Expr:
    dtype = converter.infer_type(data).dtype
    if dtype == "bool":
        data = relay.cast(data, "int32")
    whole = _reduced(converter, partial(_with_dtype, reduce, dtype), data, axes, keepdims)
    return functions.truth(whole, "int32") if dtype == "bool" else whole


def _with_dtype(reduce: Reduce, dtype: str, data: relay.Expr, axes: Any, keepdims: bool) -> relay.Expr:
    return reduce(data, dtype, axes, keepdims)


def index_of_extreme(name: str, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own needs `dim`."""
    data, axis, keepdims = inputs
    shape = converter.infer_shape_with_prelude(data)
    if axis is None:
        index = _index(converter, name, relay.reshape(data, [-1]), 0, False)
        return relay.reshape(index, [1] * len(shape)) if keepdims else index
    return _index(converter, name, data, axis, keepdims)


def _index(converter: Converter, name: str, data: relay.Expr, axis: int, keepdims: bool) -> relay.Expr:
    """The first index of the extreme, which NaN is for torch."""
    dtype = converter.infer_type(data).dtype
    if not converter.infer_shape_with_prelude(data):
        return relay.const(0, "int64")
    if dtype == "bool":
        data = relay.cast(data, "int32")
    index = getattr(relay, name)(data, axis, keepdims)
    if dtype == functions.LOST_NAN:
        unknown = relay.cast(relay.isnan(data), "int32")
        is_unknown = functions.truth(relay.max(unknown, axis, keepdims), "int32")
        index = relay.where(is_unknown, relay.argmax(unknown, axis, keepdims), index)
    return relay.cast(index, "int64")


def extreme_or_elementwise(
    name: str, converter: Converter, inputs: Inputs, input_types: InputTypes
) -> relay.Expr | tuple[relay.Expr, ...]:
    """TVM's own gives no indices, and loses NaN."""
    reduce = {"max": functions.amax, "min": functions.amin}[name]
    if len(inputs) == 1:
        data = inputs[0]
        if _is_offset(converter.current_op[-1]):
            return getattr(relay, name)(data)
        return _extreme(converter, reduce, data, None, False)
    if len(inputs) == 2:
        function = {"max": functions.maximum, "min": functions.minimum}[name]
        return elementwise(function, converter, inputs, input_types)
    data, axis, keepdims = inputs
    values = _extreme(converter, reduce, data, [axis], keepdims)
    return values, _index(converter, f"arg{name}", data, axis, keepdims)


def _is_offset(node: torch.Node) -> bool:
    """Whether it shifts boxes class by class for NMS, which passes recognize by TVM's own operator."""
    return all(use.user.kind() == "aten::add" for use in node.output().uses())


def _reduced(converter: Converter, reduce: Reduce, data: relay.Expr, axes: Any, keepdims: bool) -> relay.Expr:
    rank = len(converter.infer_shape_with_prelude(data))
    if not rank:
        return data
    axes = [axes] if isinstance(axes, int) else axes
    return reduce(data, [axis % rank for axis in axes] if axes else None, bool(keepdims))


CONVERTERS = {
    "aten::sum": partial(total, relay.sum),
    "aten::prod": partial(total, relay.prod),
    "aten::mean": mean,
    "aten::all": partial(truth, relay.all),
    "aten::any": partial(truth, relay.any),
    "aten::amax": partial(extreme, functions.amax),
    "aten::amin": partial(extreme, functions.amin),
    "aten::max": partial(extreme_or_elementwise, "max"),
    "aten::min": partial(extreme_or_elementwise, "min"),
    "aten::argmax": partial(index_of_extreme, "argmax"),
    "aten::argmin": partial(index_of_extreme, "argmin"),
}
