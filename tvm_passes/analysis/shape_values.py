"""What is known of a small integer tensor at compile time, element by element.

Imported graphs compute slice bounds and reshape targets with ordinary operators on `shape_of`. Most
elements of such tensors are known even where a dimension is not: `concatenate(take(shape_of(x), 0), [364])`
is (the first dimension of x, 364). Here each element is an int, a `Dim`, a `Clamped`, a `Total`, a `Least` or
UNKNOWN.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tvm import relay

from ..engine.expressions import constant, known_shape, op_name, static_shape
from ..engine.graph import Graph

MAX_ELEMENTS = 64
TO_THE_END = 2**31 - 1  # a bound of a slice that is no bound
INTEGERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
UNKNOWN = None
Element = Any  # an int, a `Dim`, a `Clamped`, a `Total`, a `Least` or UNKNOWN


class Dim(NamedTuple):
    """A dimension of a tensor that is known only at run time; it is never negative."""

    tensor: relay.Expr
    axis: int


class Clamped(NamedTuple):
    """The lesser of a known bound above 0 and a dimension: a bound that stays inside the axis."""

    bound: int
    dim: Dim


class Total(NamedTuple):
    """The sum of several dimensions: how many rows tensors have together, which no type is too small for."""

    dims: tuple[Dim, ...]


class Least(NamedTuple):
    """The lesser of two, each a dimension or a total: a bound, and the length of the axis that it cuts."""

    left: Element
    right: Element


class _Limits(NamedTuple):
    min: int
    max: int


_BOOL = _Limits(0, 1)


class _AtLeast(NamedTuple):
    """The truth of left >= right, kept for the `where` that clamps a bound with it."""

    left: Element
    right: Element


def shape_values(graph: Graph, expr: relay.Expr) -> np.ndarray | None:
    """An array of int, Dim, Clamped and UNKNOWN in the shape of `expr`, or None if nothing is known."""
    known = graph.notes.setdefault(shape_values, {})
    stack = [expr]
    while stack:  # no recursion: shape arithmetic can be as deep as the network
        node = stack[-1]
        if node in known:
            stack.pop()
            continue
        handler = _handler(node)
        waiting = [arg for arg in _inputs(node) if arg not in known] if handler else []
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        known[node] = _evaluate(handler, node, [known[arg] for arg in _inputs(node)]) if handler else None
    return known[expr]


def dims_in(value: Element) -> tuple[Dim, ...]:
    """The dimensions that an element is computed from."""
    if isinstance(value, Least):
        return (*dims_in(value.left), *dims_in(value.right))
    if isinstance(value, Total):
        return value.dims
    if isinstance(value, Clamped):
        return (value.dim,)
    return (value,) if isinstance(value, Dim) else ()


def all_known(values: np.ndarray) -> bool:
    """Whether every element is an int."""
    return all(isinstance(value, int) for value in values.flat)


def all_equal(graph: Graph, expr: relay.Expr, number: int) -> bool:
    """Whether a small integer tensor holds nothing but this number."""
    values = shape_values(graph, expr)
    return values is not None and all(value == number for value in values.flat)


def _inputs(node: relay.Expr) -> list[relay.Expr]:
    """The arguments whose values count; of `shape_of` and the like only the type does."""
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    if isinstance(node, relay.Call) and op_name(node) not in _BY_TYPE:
        args = list(node.args)
        return args[:1] if op_name(node) in _FIRST_ARGUMENT_ONLY else args
    return []


def _handler(node: relay.Expr) -> Callable | None:
    if isinstance(node, relay.Constant):
        return _constant
    if isinstance(node, relay.Tuple):
        return lambda _, *fields: fields
    name = op_name(node) or ""
    return (_BY_TYPE.get(name) or _BY_VALUE.get(name)) if _is_small_integer(node) else None


def _is_small_integer(node: relay.Expr) -> bool:
    shape = static_shape(node)
    return shape is not None and node.checked_type.dtype in INTEGERS and int(np.prod(shape)) <= MAX_ELEMENTS


def _evaluate(handler: Callable, node: relay.Expr, values: list[Any]) -> Any:
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    if any(value is None for value in flat):
        return None
    result = handler(node, *values)
    if isinstance(result, tuple) or result is None:
        return result
    shape = known_shape(node)
    if result.size != int(np.prod(shape)):
        return None
    limits = np.iinfo(node.checked_type.dtype) if node.checked_type.dtype != "bool" else _BOOL
    for place, value in enumerate(result.flat):
        if isinstance(value, int) and not limits.min <= value <= limits.max:
            result.flat[place] = UNKNOWN  # it would wrap around
    return result.reshape(shape)


def _array(values: Iterable[Element], shape: tuple[int, ...] | None = None) -> np.ndarray:
    values = list(values)
    result = np.empty(len(values), object)
    for place, value in enumerate(values):  # at once, numpy would take a Dim apart: it is a tuple
        result[place] = value
    return result if shape is None else result.reshape(shape)


def _constant(node: relay.Expr) -> np.ndarray | None:
    value = constant(node)
    if value is None or value.size > MAX_ELEMENTS or value.dtype.kind not in "iub":
        return None
    return _array((int(element) for element in value.flat), value.shape)


def _shape_of(node: relay.Expr) -> np.ndarray | None:
    tensor = node.args[0]
    dims = enumerate(tensor.checked_type.shape)
    return _array(int(dim) if hasattr(dim, "value") else Dim(tensor, axis) for axis, dim in dims)


def _ndarray_size(node: relay.Expr) -> np.ndarray | None:
    shape = static_shape(node.args[0])
    return None if shape is None else _array([int(np.prod(shape))], ())


def _elementwise(function: Callable[..., Element]) -> Callable:
    def handler(_: relay.Expr, *values: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(*(value.shape for value in values))
        columns = [np.broadcast_to(value, shape).ravel() for value in values]
        return _array((function(*row) for row in zip(*columns)), shape)

    return handler


def _of_ints(
    function: Callable[[int, int], Any], neutral_right: int | None = None, neutral_left: int | None = None
) -> Callable:
    def on_elements(left: Element, right: Element) -> Element:
        if isinstance(left, int) and isinstance(right, int):
            return int(function(left, right))
        if neutral_right is not None and isinstance(right, int) and right == neutral_right:
            return left
        if neutral_left is not None and isinstance(left, int) and left == neutral_left:
            return right
        return UNKNOWN

    return _elementwise(on_elements)


def _add(left: Element, right: Element) -> Element:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    for length, number in ((left, right), (right, left)):
        if number == 0:
            return length
    both = all(isinstance(length, (Dim, Total)) for length in (left, right))
    return Total((*dims_in(left), *dims_in(right))) if both else UNKNOWN


def _equal(left: Element, right: Element) -> Element:
    for length, number in ((left, right), (right, left)):
        if dims_in(length) and isinstance(number, int) and number < 0:
            return 0  # a length is never negative
    both = isinstance(left, int) and isinstance(right, int)
    return int(left == right) if both else UNKNOWN


def _less(left: Element, right: Element) -> Element:
    if dims_in(left) and isinstance(right, int) and right <= 0:
        return 0  # a length is never negative
    both = isinstance(left, int) and isinstance(right, int)
    return int(left < right) if both else UNKNOWN


def _at_least(left: Element, right: Element) -> Element:
    if isinstance(left, int) and isinstance(right, int):
        return int(left >= right)
    return UNKNOWN if UNKNOWN in (left, right) else _AtLeast(left, right)


def _minimum(left: Element, right: Element) -> Element:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    if isinstance(left, Dim):
        left, right = right, left
    if isinstance(left, int) and isinstance(right, Dim):
        return left if left <= 0 else Clamped(left, right)
    for clamped, dim in ((left, right), (right, left)):
        if isinstance(clamped, Clamped) and clamped.dim == dim:
            return clamped
    if left == right:
        return left
    both = all(isinstance(length, (Dim, Total)) for length in (left, right))
    return Least(left, right) if both else UNKNOWN


def _maximum(left: Element, right: Element) -> Element:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int):
        return left if right <= 0 else UNKNOWN  # a length is never negative
    if left == right or left == getattr(right, "dim", None):
        return left
    if right == getattr(left, "dim", None):
        return right
    of_one_dim = isinstance(left, Clamped) and isinstance(right, Clamped) and left.dim == right.dim
    return Clamped(max(left.bound, right.bound), left.dim) if of_one_dim else UNKNOWN


def _where(condition: Element, true: Element, false: Element) -> Element:
    if isinstance(condition, int):
        return true if condition else false
    if isinstance(condition, _AtLeast) and condition == (false, true):
        return _minimum(true, false)
    return true if true is not UNKNOWN and true == false else UNKNOWN


def _floor_divide(left: Element, right: Element) -> Element:
    return left // right if right else UNKNOWN


def _take(node: relay.Expr, data: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    axis = node.attrs.axis
    if not all_known(indices) or (axis is not None and data.ndim != 1) or str(node.attrs.mode) == "fast":
        return None
    flat = data.ravel()
    wraps = str(node.attrs.mode) == "wrap"  # the other mode clips, where an index is negative too
    wanted = [index + flat.size if index < 0 and wraps else index for index in indices.flat]
    if any(not 0 <= index < flat.size for index in wanted):
        return None
    return _array((flat[index] for index in wanted), indices.shape)


def _strided_slice(node: relay.Expr, data: np.ndarray) -> np.ndarray | None:
    attrs = node.attrs
    if data.ndim != 1 or attrs.axes is not None or str(attrs.slice_mode) != "end":
        return None
    stride = int(attrs.strides[0]) if attrs.strides else 1
    return data[int(attrs.begin[0]) : int(attrs.end[0]) : stride].copy()


def _slice_like(node: relay.Expr, data: np.ndarray, _like: np.ndarray) -> np.ndarray | None:
    return data[: known_shape(node)[0]].copy() if data.ndim == 1 else None


def _scatter_elements(
    node: relay.Expr, data: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray | None:
    if data.ndim != 1 or not all_known(indices) or str(node.attrs.reduction) != "update":
        return None
    if any(not -data.size <= index < data.size for index in indices):
        return None
    result = data.copy()
    for index, update in zip(indices, updates):
        result[index] = update
    return result


def _filled(value: int) -> Callable:
    return lambda node, *_: _array([value] * int(np.prod(known_shape(node))), known_shape(node))


def _full(node: relay.Expr, value: np.ndarray) -> np.ndarray | None:
    return _array([value.flat[0]] * int(np.prod(known_shape(node))), known_shape(node))


def _arange(_: relay.Expr, start: np.ndarray, stop: np.ndarray, step: np.ndarray) -> np.ndarray | None:
    if not (all_known(start) and all_known(stop) and all_known(step)):
        return None
    return _array(range(start.flat[0], stop.flat[0], step.flat[0]))


def _product(_: relay.Expr, data: np.ndarray) -> np.ndarray | None:
    return _array([int(np.prod(data))], ()) if all_known(data) else None


def _same_elements(node: relay.Expr, data: np.ndarray, *_: np.ndarray) -> np.ndarray | None:
    return data.copy().reshape(known_shape(node))


def _cast(node: relay.Expr, data: np.ndarray, *_: np.ndarray) -> np.ndarray | None:
    if node.checked_type.dtype == "bool" and not _is_bool(node.args[0]):
        return None
    if node.checked_type.dtype in ("int32", "int64"):
        return data.copy()
    return _array((value if isinstance(value, int) else UNKNOWN for value in data.flat), data.shape)


def _is_bool(node: relay.Expr) -> bool:
    return node.checked_type.dtype == "bool"


_FIRST_ARGUMENT_ONLY = {"cast_like"}
_BY_TYPE: dict[str, Callable] = {  # operators that read only the shape of their argument
    "shape_of": _shape_of,
    "ndarray_size": _ndarray_size,
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled(0),
    "ones_like": _filled(1),
}
_BY_VALUE: dict[str, Callable] = {
    "add": _elementwise(_add),
    "subtract": _of_ints(operator.sub, neutral_right=0),
    "multiply": _of_ints(operator.mul, neutral_right=1, neutral_left=1),
    "floor_divide": _of_ints(_floor_divide, neutral_right=1),
    "equal": _elementwise(_equal),
    "greater_equal": _elementwise(_at_least),
    "less": _elementwise(_less),
    "less_equal": _elementwise(lambda left, right: _at_least(right, left)),
    "greater": _elementwise(lambda left, right: _less(right, left)),
    "minimum": _elementwise(_minimum),
    "maximum": _elementwise(_maximum),
    "min": lambda _, data: _array([functools.reduce(_minimum, data.flat)], ()) if data.size else None,
    "max": lambda _, data: _array([functools.reduce(_maximum, data.flat)], ()) if data.size else None,
    "where": _elementwise(_where),
    "take": _take,
    "strided_slice": _strided_slice,
    "slice_like": _slice_like,
    "scatter_elements": _scatter_elements,
    "full": _full,
    "arange": _arange,
    "prod": _product,
    "concatenate": lambda _, parts: np.concatenate(parts) if all(p.ndim == 1 for p in parts) else None,
    "stack": lambda _, parts: np.stack(parts) if all(p.ndim == 0 for p in parts) else None,
    "cast": _cast,
    "cast_like": _cast,
    "logical_and": _of_ints(operator.and_, neutral_right=1, neutral_left=1),
    "logical_or": _of_ints(operator.or_, neutral_right=0, neutral_left=0),
    "reshape": _same_elements,
    "expand_dims": _same_elements,
    "squeeze": _same_elements,
}
