"""Elementwise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, dtype_name, known_number

Function = Callable[..., relay.Expr]  # of a dtype and operands that have it
SMALLEST, GREATEST = float(np.finfo("float16").tiny), float(np.finfo("float16").max)


def elementwise(
    function: Function, converter: Converter, inputs: Inputs, input_types: InputTypes
) -> relay.Expr:
    """TVM's own lacks arithmetic of bool, and gives other results for integers or NaN."""
    operands = converter.pytorch_promote_types(inputs, input_types)
    dtype = converter.infer_type(operands[0]).dtype
    if dtype != "bool":
        return function(dtype, *operands)
    result = function("int32", *(relay.cast(each, "int32") for each in operands))
    return functions.truth(result, "int32")


def scaled(function: Function, converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `elementwise`, but torch does not round a number to float16 by which it multiplies or divides."""
    operands = converter.pytorch_promote_types(inputs, input_types)
    number = inputs[1]
    is_rounded = number is not operands[1] and converter.infer_type(operands[0]).dtype == "float16"
    if not is_rounded or _is_in_range(number):
        return elementwise(function, converter, inputs, input_types)
    exact = number if isinstance(number, relay.Expr) else relay.const(float(number), "float32")
    return relay.cast(
        function("float32", relay.cast(operands[0], "float32"), relay.cast(exact, "float32")), "float16"
    )


def _is_in_range(value: Any) -> bool:
    """Whether a number is not rounded to an infinity in float16, nor to one with few digits."""
    known = known_number(value)
    if known is None:
        return False
    return known == 0 or not math.isfinite(known) or SMALLEST <= abs(known) <= GREATEST


def in_place(
    convert: Callable[..., relay.Expr], converter: Converter, inputs: Inputs, input_types: InputTypes
) -> relay.Expr:
    """TVM's own gives a bool, but `masks.gt_(0.5)` keeps the dtype of the masks."""
    dtype = converter.infer_type(inputs[0]).dtype
    return functions.cast(convert(converter, inputs, input_types), "bool", dtype)


def compared(function: Function, converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own compares bool as if true were -1."""
    left, right = converter.pytorch_promote_types(inputs, input_types)
    if converter.infer_type(left).dtype == "bool":
        left, right = relay.cast(left, "int32"), relay.cast(right, "int32")
    return function(left, right)


def added(sign: Function, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own ignores `alpha`, by which torch multiplies in the dtype of the result."""
    if input_types[0] == "ListType":
        return converter.stock["aten::add"](inputs, input_types)
    left, right, *alpha = inputs
    if alpha and alpha[0] != 1:
        left, right = converter.pytorch_promote_types([left, right], input_types[:2])
        factor = relay.const(alpha[0], converter.infer_type(right).dtype)
        right = elementwise(_multiply, converter, [right, factor], input_types[:2])
    return elementwise(sign, converter, [left, right], input_types[:2])


def subtracted_from(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """As `added`."""
    left, right, *alpha = inputs
    swapped = [input_types[1], input_types[0], *input_types[2:]]
    return added(_subtract, converter, [right, left, *alpha], swapped)


def div(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own ignores `rounding_mode`, and divides a bool and an integer as integers."""
    mode = inputs[2] if len(inputs) > 2 else None
    operands = converter.pytorch_promote_types(inputs[:2], input_types[:2])
    dtype = converter.infer_type(operands[0]).dtype
    if functions.is_float(dtype):
        return scaled(partial(_quotient, mode), converter, inputs[:2], input_types[:2])
    if mode is None:
        return relay.divide(*(functions.cast(each, dtype, "float32") for each in operands))
    if dtype == "bool":
        operands, dtype = [relay.cast(each, "int32") for each in operands], "int64"
    return _quotient(mode, dtype, *operands)


def _quotient(mode: str | None, dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    if mode == "floor":
        return functions.floor_divide(dtype, x, y)
    if mode is None:
        return relay.divide(x, y)
    return relay.trunc(relay.divide(x, y)) if functions.is_float(dtype) else relay.trunc_divide(x, y)


def round_(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own rounds halves away from zero, and ignores `decimals`."""
    data = inputs[0]
    dtype = converter.infer_type(data).dtype
    decimals = inputs[1] if len(inputs) > 1 else 0
    if decimals == 0:
        return functions.round_(dtype, data)
    scale = relay.const(10.0 ** abs(decimals), dtype)
    there, back = (relay.multiply, relay.divide) if decimals > 0 else (relay.divide, relay.multiply)
    return back(functions.round_(dtype, there(data, scale)), scale)


def clamp(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes no tensors as bounds, rounds integer bounds to float, and makes infinity finite."""
    data, *bounds = inputs
    dtype = converter.infer_type(data).dtype
    if functions.is_float(dtype) and all(map(_is_finite, bounds)) and bounds[0] <= bounds[1]:
        return relay.clip(data, *map(float, bounds))
    given = [(bound, kind) for bound, kind in zip(bounds, input_types[1:]) if bound is not None]
    operands = converter.pytorch_promote_types(
        [data, *(bound for bound, _ in given)], [input_types[0], *(kind for _, kind in given)]
    )
    data, *limits = operands
    for limiting, bound in zip((relay.maximum, relay.minimum), bounds):
        data = data if bound is None else limiting(data, limits.pop(0))
    return data


def _is_finite(bound: Any) -> bool:
    return isinstance(bound, (int, float)) and math.isfinite(bound)


def clamp_min(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `clamp`."""
    return clamp(converter, [*inputs, None], [*input_types, "float32"])


def clamp_max(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `clamp`."""
    return clamp(converter, [inputs[0], None, inputs[1]], [input_types[0], "float32", input_types[1]])


def unary(
    function: Callable[..., relay.Expr], converter: Converter, inputs: Inputs, _: InputTypes
) -> relay.Expr:
    """TVM's own has no kernel for integers, nor for float16 on all targets."""
    dtype = converter.infer_type(inputs[0]).dtype
    within = dtype if dtype in ("float32", "float64") else "float32"
    result = function(within, functions.cast(inputs[0], dtype, within))
    return relay.cast(result, dtype) if dtype == "float16" else result


def of_floats(
    function: Callable[..., relay.Expr], converter: Converter, inputs: Inputs, _: InputTypes
) -> relay.Expr:
    """TVM's own has no kernel for integers, which stay as they are."""
    dtype = converter.infer_type(inputs[0]).dtype
    return function(inputs[0]) if functions.is_float(dtype) else inputs[0]


def question(name: str, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own has no kernel for integers, all of which are finite."""
    data = inputs[0]
    if functions.is_float(converter.infer_type(data).dtype):
        return getattr(relay, name)(data)
    function = relay.ones_like if name == "isfinite" else relay.zeros_like
    return relay.cast(function(data), "bool")


def sign(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own makes -1 of an unsigned dtype, and does not compile."""
    dtype = converter.infer_type(inputs[0]).dtype
    if dtype in ("bool", "uint8"):
        return relay.cast(relay.cast(inputs[0], "bool"), dtype)
    return relay.sign(inputs[0])


def sigmoid(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `unary`."""
    if len(inputs) > 1:  # with the scales of a quantized tensor
        return converter.stock["aten::sigmoid"](inputs, input_types)
    return unary(_same("sigmoid"), converter, inputs, input_types)


def square(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes powers of integers, which Relay lacks."""
    dtype = converter.infer_type(inputs[0]).dtype
    data = functions.cast(inputs[0], dtype, "int64") if dtype == "bool" else inputs[0]
    return relay.multiply(data, data)


def bits(name: str, converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own turns integers into bool, or wider ones into int32."""
    operands = converter.pytorch_promote_types(inputs, input_types)
    is_bool = converter.infer_type(operands[0]).dtype == "bool"
    return getattr(relay, f"{'logical' if is_bool else 'bitwise'}_{name}")(*operands)


def logic(name: str, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own casts to bool, which makes NaN false."""
    operands = [each if isinstance(each, relay.Expr) else relay.const(each) for each in inputs]
    truths = [functions.truth(each, converter.infer_type(each).dtype) for each in operands]
    return getattr(relay, f"logical_{name}")(*truths)


def to(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own ignores conversions to bool, int8, uint8 and int16."""
    data, *others = inputs
    dtype = others[0] if others[0] is not None and not isinstance(others[0], str) else others[1]
    if not isinstance(data, relay.Expr) or dtype is None:
        return converter.stock["aten::to"](inputs, input_types)
    given = converter.infer_type(data).dtype
    wanted = converter.infer_type(dtype).dtype if isinstance(dtype, relay.Expr) else dtype_name(dtype)
    return functions.cast(data, given, wanted or given)


def _add(_: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.add(x, y)


def _subtract(_: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.subtract(x, y)


def _multiply(_: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.multiply(x, y)


def _same(name: str) -> Callable[..., relay.Expr]:
    return lambda dtype, x: getattr(relay, name)(x)


FLOATS = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "exp",
        "log",
        "log10",
        "log2",
        "rsqrt",
    ),
    *("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
COMPARISONS = {
    "eq": functions.equal,
    "ge": relay.greater_equal,
    "gt": relay.greater,
    "le": relay.less_equal,
    "lt": relay.less,
    "ne": functions.not_equal,
}
TRUTHS = {
    **{f"aten::{name}": partial(compared, function) for name, function in COMPARISONS.items()},
    **{f"aten::logical_{name}": partial(logic, name) for name in ("and", "not", "or", "xor")},
}
CONVERTERS = {
    **TRUTHS,
    **{f"{name}_": partial(in_place, convert) for name, convert in TRUTHS.items()},
    **{f"aten::{name}": partial(unary, _same(name)) for name in FLOATS},
    **{f"aten::{name}": partial(of_floats, getattr(relay, name)) for name in ("ceil", "floor", "trunc")},
    **{f"aten::{name}": partial(question, name) for name in ("isfinite", "isinf", "isnan")},
    **{f"aten::bitwise_{name}": partial(bits, name) for name in ("and", "not", "or", "xor")},
    **{f"aten::__{name}__": partial(bits, name) for name in ("and", "or", "xor")},
    **{f"aten::__i{name}__": partial(bits, name) for name in ("and", "or", "xor")},
    "aten::add": partial(added, _add),
    "aten::__lshift__": partial(elementwise, functions.shift_left),
    "aten::__rshift__": partial(elementwise, functions.shift_right),
    "aten::bitwise_left_shift": partial(elementwise, functions.shift_left),
    "aten::bitwise_right_shift": partial(elementwise, functions.shift_right),
    "aten::clamp": clamp,
    "aten::clip": clamp,
    "aten::clamp_max": clamp_max,
    "aten::clamp_min": clamp_min,
    "aten::div": div,
    "aten::erf": partial(unary, functions.erf),
    "aten::expm1": partial(unary, functions.expm1),
    "aten::floor_divide": partial(scaled, functions.floor_divide),
    "aten::fmod": partial(elementwise, functions.fmod),
    "aten::log1p": partial(unary, functions.log1p),
    "aten::maximum": partial(elementwise, functions.maximum),
    "aten::minimum": partial(elementwise, functions.minimum),
    "aten::mul": partial(scaled, _multiply),
    "aten::pow": partial(elementwise, functions.power),
    "aten::reciprocal": partial(unary, lambda dtype, x: relay.divide(relay.const(1, dtype), x)),
    "aten::remainder": partial(elementwise, functions.remainder),
    "aten::round": round_,
    "aten::rsub": subtracted_from,
    "aten::sgn": sign,
    "aten::sigmoid": sigmoid,
    "aten::sign": sign,
    "aten::square": square,
    "aten::sub": partial(added, _subtract),
    "aten::to": to,
    "aten::true_divide": div,
}
