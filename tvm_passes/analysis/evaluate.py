"""Relay operators on constants, in NumPy.

A table, not a reimplementation of Relay: it has the operators of shape arithmetic, and those that lay out
weights, where NumPy's results are bit for bit those of compiled code. Everything else, and
every result whose type is not the one Relay infers, is `NotFolded` and left to TVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ..engine.expressions import constant, shape_of_type
from .layouts import order_of_transform


class NotFolded(Exception):
    """This table has no answer for the call."""


def evaluate(call: relay.Call, call_type: relay.Type) -> Any:
    """The value of a call on constants: an array, or a list of arrays if there are several results."""
    return apply(call, call_type, [_value(arg) for arg in call.args])


def apply(call: relay.Call, call_type: relay.Type, arrays: Sequence[Any]) -> Any:
    """The result of a call with these arrays as operands, of the type that Relay infers for it."""
    value = move(call, call_type, arrays)
    if not _has_type(value, call_type):
        raise NotFolded(f"{call.op.name}: NumPy's result differs in type from Relay's")
    return value


def move(call: relay.Call, call_type: relay.Type, arrays: Sequence[Any]) -> Any:
    """As `apply`, on arrays of any type."""
    compute = TABLE.get(call.op.name)
    if compute is None:
        raise NotFolded(call.op.name)
    try:
        with np.errstate(all="ignore"):
            return compute(call.attrs, call_type, *arrays)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise NotFolded(str(error)) from error


def value_of(expr: relay.Expr) -> np.ndarray | None:
    """The value of a typed expression of constants alone, or None if this table cannot tell it."""
    values: dict[relay.Expr, Any] = {}

    if not relay.analysis.free_vars(expr):
        relay.analysis.post_order_visit(expr, lambda node: add_value(node, values))
    return values.get(expr)


def add_value(node: relay.Expr, values: dict[relay.Expr, Any]) -> None:
    """Add the value of a node to those of the nodes before it, if it follows from them."""
    if isinstance(node, relay.Constant):
        values[node] = constant(node)
    elif isinstance(node, relay.Tuple) and all(field in values for field in node.fields):
        values[node] = [values[field] for field in node.fields]
    elif isinstance(node, relay.TupleGetItem) and node.tuple_value in values:
        values[node] = values[node.tuple_value][node.index]
    elif isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
        with contextlib.suppress(NotFolded, KeyError):
            values[node] = apply(node, node.checked_type, [values[arg] for arg in node.args])


def _value(arg: relay.Expr) -> Any:
    if isinstance(arg, relay.Tuple):
        return [_value(field) for field in arg.fields]
    return constant(arg)


def _has_type(value: Any, expected: relay.Type) -> bool:
    if isinstance(expected, relay.TupleType):
        return isinstance(value, list) and all(map(_has_type, value, expected.fields))
    if not isinstance(value, np.ndarray) or value.dtype.name != expected.dtype:
        return False
    if value.ndim != len(expected.shape):
        return False
    known = shape_of_type(expected)
    return known is None or value.shape == known


def _elementwise(ufunc: Callable) -> Callable:
    return lambda attrs, result, *arrays: np.asarray(ufunc(*arrays))


def _divide(attrs: tvm.ir.Attrs, result: relay.Type, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(np.floor_divide(a - np.fmod(a, b), b))  # towards zero, as C does


def _shape(result: relay.Type) -> tuple[int, ...]:
    shape = shape_of_type(result)
    if shape is None:
        raise NotFolded("a dynamic shape")
    return shape


def _reshape(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    return x.reshape(_shape(result))


def _broadcast(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, _shape(result))


def _cast(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    return x.astype(result.dtype)


def _clip(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> np.ndarray:
    if (
        x.dtype.kind != "f"
        and not np.iinfo(x.dtype).min <= attrs.a_min <= attrs.a_max <= np.iinfo(x.dtype).max
    ):
        raise NotFolded("a clip to ends that its dtype does not have")
    low, high = (np.asarray(end).astype(x.dtype) for end in (attrs.a_min, attrs.a_max))
    raised = np.where(x < low, low, x)  # NaN stays, and so does -0.0
    return np.where(raised > high, high, raised)


def _reinterpret(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> np.ndarray:
    return x.view(result.dtype)


def _fill(value: float) -> Callable:
    return lambda attrs, result, *_: np.full(_small_shape(result), value, result.dtype)


def _full(attrs: tvm.ir.Attrs, result: relay.Type, value: np.ndarray) -> np.ndarray:
    return np.full(_small_shape(result), value, result.dtype)


MAX_FILL = 4096  # elements: a shape or an index list; larger tensors are not folded


def _small_shape(result: relay.Type) -> tuple[int, ...]:
    shape = _shape(result)
    if np.prod(shape, dtype="int64") > MAX_FILL:
        raise NotFolded("a large tensor of one value")
    return shape


def _arange(
    attrs: tvm.ir.Attrs, result: relay.Type, start: np.ndarray, stop: np.ndarray, step: np.ndarray
) -> np.ndarray:
    if start.dtype.kind == "f":
        raise NotFolded("arange over floating-point numbers")
    return np.arange(start, stop, step, result.dtype)


def _take(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    if attrs.batch_dims or attrs.mode == "fast":
        raise NotFolded("take with batch dimensions, or without a bounds check")
    axis = None if attrs.axis is None else int(attrs.axis)
    mode: Any = str(attrs.mode)
    return np.asarray(np.take(x, indices, axis, mode=mode))


def _layout_transform(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> np.ndarray:
    order = order_of_transform(str(attrs.src_layout), str(attrs.dst_layout))
    if order is None or len(order) != x.ndim:
        raise NotFolded("a layout that splits axes")
    return x.transpose(order)


def _gather(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, indices, int(attrs.axis))


def _scatter_elements(
    attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    axis = int(attrs.axis)
    across = list(x.shape)
    across[axis] = indices.shape[axis]
    if attrs.reduction != "update" or list(indices.shape) != across:
        raise NotFolded("scatter that combines values, or into a part of the rows")
    result = x.copy()
    np.put_along_axis(result, indices, updates, axis)
    return result


def _strided_slice(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> np.ndarray:
    begin, end, strides = (_ints(values) for values in (attrs.begin, attrs.end, attrs.strides))
    if attrs.slice_mode != "end":
        raise NotFolded("slices by size")
    strides = strides * len(begin) if len(strides) == 1 else strides
    window = [slice(None)] * x.ndim
    axes = range(len(begin)) if attrs.axes is None else _ints(attrs.axes)
    for axis, parts in zip(axes, zip(begin, end, strides)):
        window[axis] = slice(*parts)
    return x[tuple(window)]


def _meshgrid(attrs: tvm.ir.Attrs, result: relay.Type, xs: list[np.ndarray]) -> list[np.ndarray]:
    return list(np.meshgrid(*xs, indexing="xy" if str(attrs.indexing) == "xy" else "ij"))


def _pad(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    if str(attrs.pad_mode) != "constant":
        raise NotFolded(f"nn.pad by {attrs.pad_mode}")
    return np.pad(x, [_ints(widths) for widths in attrs.pad_width], constant_values=value.item())


def _slice_like(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    window = tuple(map(slice, _shape(result)))
    return x[window]


def _split(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> list[np.ndarray]:
    parts = attrs.indices_or_sections
    return np.split(x, parts.value if hasattr(parts, "value") else _ints(parts), int(attrs.axis))


def _reduce(ufunc: np.ufunc) -> Callable:
    def compute(attrs: tvm.ir.Attrs, result: relay.Type, x: np.ndarray) -> np.ndarray:
        if attrs.exclude or (x.dtype.kind == "f" and ufunc in (np.add, np.multiply)):
            raise NotFolded("a sum whose order matters")
        axes = tuple(range(x.ndim) if attrs.axis is None else _ints(attrs.axis))
        return np.asarray(ufunc.reduce(x, axes, dtype=x.dtype, keepdims=bool(attrs.keepdims)))

    return compute


def _ints(values: Iterable[Any]) -> list[int]:
    return [int(value) for value in values]


TABLE: dict[str, Callable] = {
    "abs": _elementwise(np.abs),
    "add": _elementwise(np.add),
    # Parts that a network assigns are behind it: TVM would compile all that is computed of them.
    "annotation.stop_fusion": _reshape,
    "arange": _arange,
    "argwhere": lambda attrs, result, x: np.argwhere(x).astype(result.dtype),
    "broadcast_to": _broadcast,
    "broadcast_to_like": _broadcast,
    "cast": _cast,
    "cast_like": _cast,
    "ceil": _elementwise(np.ceil),
    "clip": _clip,
    "concatenate": lambda attrs, result, xs: np.concatenate(xs, int(attrs.axis)),
    "copy": _reshape,
    "divide": _divide,
    "equal": _elementwise(np.equal),
    "expand_dims": _reshape,
    "floor": _elementwise(np.floor),
    "floor_divide": _elementwise(np.floor_divide),
    "floor_mod": _elementwise(np.mod),
    "full": _full,
    "gather": _gather,
    "greater": _elementwise(np.greater),
    "greater_equal": _elementwise(np.greater_equal),
    "layout_transform": _layout_transform,
    "less": _elementwise(np.less),
    "less_equal": _elementwise(np.less_equal),
    "logical_and": _elementwise(np.logical_and),
    "logical_not": _elementwise(np.logical_not),
    "logical_or": _elementwise(np.logical_or),
    "logical_xor": _elementwise(np.logical_xor),
    "max": _reduce(np.maximum),
    "maximum": _elementwise(np.maximum),
    "meshgrid": _meshgrid,
    "min": _reduce(np.minimum),
    "minimum": _elementwise(np.minimum),
    "mod": _elementwise(np.fmod),
    "multiply": _elementwise(np.multiply),
    "negative": _elementwise(np.negative),
    "nn.pad": _pad,
    "not_equal": _elementwise(np.not_equal),
    "ones": _fill(1),
    "prod": _reduce(np.multiply),
    "reinterpret": _reinterpret,
    "repeat": lambda attrs, result, x: np.repeat(x, int(attrs.repeats), int(attrs.axis)),
    "reshape": _reshape,
    "reshape_like": _reshape,
    "scatter_elements": _scatter_elements,
    "slice_like": _slice_like,
    "split": _split,
    "sqrt": _elementwise(np.sqrt),
    "squeeze": _reshape,
    "stack": lambda attrs, result, xs: np.stack(xs, int(attrs.axis)),
    "strided_slice": _strided_slice,
    "subtract": _elementwise(np.subtract),
    "sum": _reduce(np.add),
    "take": _take,
    "tile": lambda attrs, result, x: np.tile(x, _ints(attrs.reps)),
    "transpose": lambda attrs, result, x: np.transpose(x, attrs.axes and _ints(attrs.axes)),
    "where": _elementwise(np.where),
    "zeros": _fill(0),
}
