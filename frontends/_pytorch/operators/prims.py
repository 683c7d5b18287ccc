"""torch's `prims`, the closed set of operators into which it decomposes all others, in Relay.

Both operands of an elementwise one have the same dtype and shape, or one of them is a number. Functions of
float16 have already become functions of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tvm import relay

from . import functions
from .converter import NotConverted

Node = Any  # of torch.fx, whose arguments may be anything
Operand = Callable[[Any], Any]  # from an argument of a node to what it is in Relay
Prim = Callable[[Operand, Node], relay.Expr]


def _dtype(value: Any) -> str:
    """Relay's name for the dtype of a value of a traced graph."""
    return str(value.meta["val"].dtype).replace("torch.", "")


def _shape(node: Node) -> list[int]:
    return list(node.meta["val"].shape)


def _elementwise(function: Callable[..., relay.Expr], through_integers: bool = False) -> Prim:
    """Apply `function` to operands of one dtype; bool, which has no arithmetic in Relay, as int32."""

    def prim(operand: Operand, node: Node) -> relay.Expr:
        dtype = next(_dtype(arg) for arg in node.args if isinstance(arg, torch.fx.Node))
        operands = [
            operand(arg) if isinstance(arg, torch.fx.Node) else relay.const(arg, dtype) for arg in node.args
        ]
        if dtype == "bool" and through_integers:
            result = function(*(relay.cast(each, "int32") for each in operands))
            return functions.truth(result, "int32") if _dtype(node) == "bool" else result
        return function(*operands)

    return prim


def _typed(function: Callable[..., relay.Expr]) -> Prim:
    """Apply `function` to the operands' dtype and the operands."""

    def prim(operand: Operand, node: Node) -> relay.Expr:
        dtype = next(_dtype(arg) for arg in node.args if isinstance(arg, torch.fx.Node))
        through = "int32" if dtype == "bool" else dtype
        operands = [
            relay.cast(operand(arg), through)
            if isinstance(arg, torch.fx.Node) and dtype == "bool"
            else operand(arg)
            if isinstance(arg, torch.fx.Node)
            else relay.const(arg, through)
            for arg in node.args
        ]
        result = function(through, *operands)
        return functions.truth(result, through) if dtype == _dtype(node) == "bool" else result

    return prim


def _bitwise_not(operand: Operand, node: Node) -> relay.Expr:
    """Of a bool, whose bits are one."""
    negate = relay.logical_not if _dtype(node) == "bool" else relay.bitwise_not
    return negate(operand(node.args[0]))


def _where(operand: Operand, node: Node) -> relay.Expr:
    condition, *choices = node.args
    dtype = _dtype(node)
    taken = [
        operand(each) if isinstance(each, torch.fx.Node) else relay.const(each, dtype) for each in choices
    ]
    return relay.broadcast_to(relay.where(operand(condition), *taken), _shape(node))


def _reshape(operand: Operand, node: Node) -> relay.Expr:
    data = node.args[0]
    return operand(data) if _shape(data) == _shape(node) else relay.reshape(operand(data), _shape(node))


def _identity(operand: Operand, node: Node) -> relay.Expr:
    return operand(node.args[0])


def _broadcast_in_dim(operand: Operand, node: Node) -> relay.Expr:
    data, shape, places = node.args
    expanded = [1] * len(shape)
    for place, extent in zip(places, _shape(data)):
        expanded[place] = extent
    result = operand(data)
    if expanded != _shape(data):
        result = relay.reshape(result, expanded)
    return result if expanded == list(shape) else relay.broadcast_to(result, shape)


def _transpose(operand: Operand, node: Node) -> relay.Expr:
    return (
        relay.transpose(operand(node.args[0]), list(node.args[1])) if node.args[1] else operand(node.args[0])
    )


def _rev(operand: Operand, node: Node) -> relay.Expr:
    result = operand(node.args[0])
    for axis in node.args[1]:
        result = relay.reverse(result, axis)
    return result


def _cat(operand: Operand, node: Node) -> relay.Expr:
    parts = [part for part in node.args[0] if part.meta["val"].numel()]  # Relay has no empty tensors
    return operand(parts[0]) if len(parts) == 1 else relay.concatenate(operand(parts), node.args[1])


def _slice(operand: Operand, node: Node) -> relay.Expr:
    data, begin, end, *steps = node.args
    return relay.strided_slice(
        operand(data), list(begin), list(end), list(steps[0]) if steps and steps[0] else None
    )


def _slice_in_dim(operand: Operand, node: Node) -> relay.Expr:
    data, begin, end, *rest = node.args
    given = {**dict(zip(("stride", "axis"), rest)), **node.kwargs}
    step, axis = given.get("stride", 1), given.get("axis", 0)
    return relay.strided_slice(operand(data), [begin], [end], [step], axes=[axis])


def _as_strided(operand: Operand, node: Node) -> relay.Expr:
    data, shape, strides, *offset = node.args
    value = data.meta["val"]
    if not value.is_contiguous():
        raise NotConverted("it reads the memory of a tensor that is not contiguous")
    begin = offset[0] if offset and offset[0] is not None else 0
    if list(shape) == list(value.shape) and list(strides) == list(value.stride()) and begin == 0:
        return operand(data)
    places = np.full(tuple(shape), begin)
    for axis, (extent, stride) in enumerate(zip(shape, strides)):
        steps = np.arange(extent) * stride
        places += steps.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    return relay.take(relay.reshape(operand(data), [-1]), relay.const(places))


def _convert_element_type(operand: Operand, node: Node) -> relay.Expr:
    return functions.cast(operand(node.args[0]), _dtype(node.args[0]), _dtype(node))


def _iota(operand: Operand, node: Node) -> relay.Expr:
    start, step = node.kwargs["start"], node.kwargs["step"]
    return relay.const(start + step * np.arange(node.args[0]), _dtype(node))


def _full(value: Any) -> Prim:
    def prim(_: Operand, node: Node) -> relay.Expr:
        fill = value(node)
        if isinstance(fill, torch.fx.Node):
            raise NotConverted("it fills a tensor with a number that is known only at run time")
        return relay.full(relay.const(fill, _dtype(node)), _shape(node), _dtype(node))

    return prim


def _reduction(function: Callable[..., relay.Expr]) -> Prim:
    """Apply `function` to a tensor, its dtype, and axes; without axes there is nothing to do."""

    def prim(operand: Operand, node: Node) -> relay.Expr:
        data, axes = operand(node.args[0]), list(node.args[1])
        from_, to = _dtype(node.args[0]), _dtype(node)
        if from_ == "bool":
            data, from_ = relay.cast(data, "int32"), "int32"
        result = function(data, from_, axes) if axes else data
        return functions.cast(result, from_, to)

    return prim


def _var(operand: Operand, node: Node) -> relay.Expr:
    data, axes, *correction = node.args
    correction = correction[0] if correction else node.kwargs.get("correction", 1)
    return functions.variance(
        operand(data), _dtype(data), list(axes), [_shape(data)[axis] for axis in axes], correction
    )


def _signbit(operand: Operand, node: Node) -> relay.Expr:
    """The sign bit, with the dtype that torch traces: the operand's, though the result is bool."""
    return relay.cast(functions.signbit(_dtype(node.args[0]), operand(node.args[0])), _dtype(node))


def _number(value: Node) -> Any:
    return value.args[1] if len(value.args) > 1 else value.args[0]


_SAME_NAME = (
    *("abs", "acosh", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "floor"),
    *("isfinite", "log", "log2", "log10", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_RESHAPES = ("collapse", "collapse_view", "expand_dims", "reshape", "split_dim", "squeeze")
VIEWS = {
    *_RESHAPES,
    *("as_strided", "broadcast_in_dim", "conj", "select", "slice", "slice_in_dim", "transpose", "view_of"),
}
PRIMS: dict[str, Prim] = {
    **{name: _elementwise(getattr(relay, name)) for name in _SAME_NAME},
    **{name: _reshape for name in _RESHAPES},
    **{name: _identity for name in ("clone", "device_put", "view_of", "copy_strided")},
    "acos": _typed(functions.acos),
    "asin": _typed(functions.asin),
    "add": _elementwise(relay.add, through_integers=True),
    "amax": _reduction(functions.amax),
    "amin": _reduction(functions.amin),
    "as_strided": _as_strided,
    "atan2": _typed(functions.atan2),
    "bitwise_and": _elementwise(relay.bitwise_and, through_integers=True),
    "bitwise_not": _bitwise_not,
    "bitwise_or": _elementwise(relay.bitwise_or, through_integers=True),
    "bitwise_xor": _elementwise(relay.bitwise_xor, through_integers=True),
    "broadcast_in_dim": _broadcast_in_dim,
    "cat": _cat,
    "convert_element_type": _convert_element_type,
    "digamma": _typed(functions.digamma),
    "div": _typed(functions.divide),
    "empty_permuted": _full(lambda node: 0),
    "empty_strided": _full(lambda node: 0),
    "eq": _elementwise(functions.equal, through_integers=True),
    "erf": _typed(functions.erf),
    "erf_inv": _typed(functions.erf_inv),
    "erfc": _typed(functions.erfc),
    "exp2": _typed(lambda dtype, x: relay.power(relay.const(2, dtype), x)),
    "expm1": _typed(functions.expm1),
    "fill": _full(_number),
    "fmax": _typed(functions.fmax),
    "fmin": _typed(functions.fmin),
    "fmod": _typed(functions.fmod),
    "full_like": _full(_number),
    "ge": _elementwise(relay.greater_equal, through_integers=True),
    "gt": _elementwise(relay.greater, through_integers=True),
    "hypot": _typed(functions.hypot),
    "iota": _iota,
    "le": _elementwise(relay.less_equal, through_integers=True),
    "lgamma": _typed(functions.lgamma),
    "log1p": _typed(functions.log1p),
    "lt": _elementwise(relay.less, through_integers=True),
    "maximum": _typed(functions.maximum),
    "minimum": _typed(functions.minimum),
    "mul": _elementwise(relay.multiply, through_integers=True),
    "ne": _elementwise(functions.not_equal, through_integers=True),
    "neg": _elementwise(relay.negative),
    "pow": _typed(functions.power),
    "prod": _reduction(lambda data, dtype, axes: relay.prod(data, axes)),
    "reciprocal": _typed(lambda dtype, x: relay.divide(relay.const(1, dtype), x)),
    "remainder": _typed(functions.remainder),
    "rev": _rev,
    "round": _typed(functions.round_),
    "scalar_tensor": _full(_number),
    "shift_left": _typed(functions.shift_left),
    "shift_right_arithmetic": _typed(functions.shift_right),
    "signbit": _signbit,
    "slice": _slice,
    "slice_in_dim": _slice_in_dim,
    "sub": _elementwise(relay.subtract, through_integers=True),
    "sum": _reduction(lambda data, dtype, axes: relay.sum(data, axes)),
    "transpose": _transpose,
    "var": _var,
    "where": _where,
}
