"""What is known about a small tensor at compile time, element by element.

Imported graphs compute slice bounds and reshape targets with ordinary operators on `shape_of`. Most
elements of such tensors are known even where a dimension is not: `concatenate(take(shape_of(x), 0), [364])`
is (the first dimension of x, 364). Here each element is a number, a `Dim`, a `Clamped`, a `Total`, a
`Minimum` or UNKNOWN.

Operators that move elements move any of these; a few compute with lengths (`_WITH_LENGTHS`); any other result
is known if NumPy has the operator and all inputs are numbers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvm import relay

from ..engine.expressions import constant, op_name, shape_of_type, type_of
from ..engine.graph import Graph
from .elements import array_of
from .evaluate import TABLE, NotFolded, apply, move
from .operators import Elements, known_of

MAX_ELEMENTS = 64
TO_THE_END = 2**31 - 1  # a bound of a slice that stands for the end of the axis
INTEGERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
NUMBERS = (*INTEGERS, "float16", "float32", "float64")
UNKNOWN = None
Element = Any  # an int, a float, a `Dim`, a `Clamped`, a `Total`, a `Minimum` or UNKNOWN
Values = dict[relay.Expr, Any]  # an array of elements, a tuple of arrays, or None for too many elements


class Dim(NamedTuple):
    """A dynamic dimension of a tensor; it is never negative."""

    tensor: relay.Expr
    axis: int


class Clamped(NamedTuple):
    """The lesser of a known bound above 0 and a dimension: a bound that stays inside the axis."""

    bound: int
    dim: Dim


class Total(NamedTuple):
    """The sum of several dimensions: how many rows tensors have together, which never overflows."""

    dims: tuple[Dim, ...]


class Minimum(NamedTuple):
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
    """An array of elements in the shape of `expr`, or None if it has too many."""
    return values_of(expr, graph.notes.setdefault(shape_values, {}), INTEGERS)


def values_of(expr: relay.Expr, known: Values, dtypes: tuple[str, ...] = NUMBERS) -> Any:
    """What is known about an expression, through tensors of these types; cached in `known`."""
    stack = [expr]
    while stack:  # no recursion: shape arithmetic can be as deep as the network
        node = stack[-1]
        inputs = _inputs(node, dtypes)
        waiting = [arg for arg in inputs if arg not in known] if node not in known else []
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        if node not in known:
            known[node] = _values(node, [known[arg] for arg in inputs], dtypes)
    return known[expr]


def dims_in(value: Element) -> tuple[Dim, ...]:
    """The dimensions that an element is computed from."""
    if isinstance(value, Minimum):
        return (*dims_in(value.left), *dims_in(value.right))
    if isinstance(value, Total):
        return value.dims
    if isinstance(value, Clamped):
        return (value.dim,)
    return (value,) if isinstance(value, Dim) else ()


def length(tensor: relay.Expr, axis: int) -> int | Dim:
    """The length of an axis; if dynamic, and of a row that was made a column, that of the row."""
    dims = type_of(tensor).shape
    if hasattr(dims[axis], "value"):
        return int(dims[axis])
    while op_name(tensor) in ("reshape", "expand_dims") and len(type_of(tensor.args[0]).shape) == 1:
        others = [dim for other, dim in enumerate(type_of(tensor).shape) if other != axis]
        if any(getattr(dim, "value", None) != 1 for dim in others):
            break
        tensor, axis = tensor.args[0], 0
    return Dim(tensor, axis)


def all_known(values: np.ndarray) -> bool:
    """Whether every element is an int."""
    return all(isinstance(value, int) for value in values.flat)


def all_equal(graph: Graph, expr: relay.Expr, element: Element) -> bool:
    """Whether every element of a small integer tensor is this number or length."""
    values = shape_values(graph, expr)
    return values is not None and all(value == element for value in values.flat)


def _inputs(node: relay.Expr, dtypes: tuple[str, ...]) -> list[relay.Expr]:
    """The arguments whose values matter; for `shape_of` and the like only the type does."""
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    name = op_name(node)
    if name in _BY_TYPE or not (name in TABLE or name in _WITH_LENGTHS) or _small_shape(node, dtypes) is None:
        return []
    return list(node.args[:1] if known_of(node).lends_type else node.args)


def _small_shape(node: relay.Expr, dtypes: tuple[str, ...]) -> tuple[int, ...] | None:
    """The shape of a tensor whose elements are tracked, or None for any other."""
    type_ = type_of(node)
    shape = shape_of_type(type_)
    if shape is None or type_.dtype not in dtypes or np.prod(shape, dtype="int64") > MAX_ELEMENTS:
        return None
    return shape


def _values(node: relay.Expr, inputs: list[Any], dtypes: tuple[str, ...]) -> Any:
    if isinstance(node, relay.Tuple):
        return None if any(field is None for field in inputs) else tuple(inputs)
    shape = _small_shape(node, dtypes)
    if shape is None:
        return None
    value = constant(node)
    if value is not None:
        return array_of(value.ravel().tolist(), shape)
    result = _result(node, inputs) if isinstance(node, relay.Call) else None
    if result is None or result.size != int(np.prod(shape)):
        result = array_of([UNKNOWN] * int(np.prod(shape)))
    return result.reshape(shape)


def _result(call: relay.Call, inputs: list[Any]) -> np.ndarray | None:
    name = op_name(call)
    if name in _BY_TYPE:
        return _BY_TYPE[name](call)
    if not inputs or any(value is None for value in inputs):
        return None
    elements = known_of(call).elements
    try:
        if name == "where" or (name in _WITH_LENGTHS and _is_of_integers(call)):
            return _without_overflow(_WITH_LENGTHS[name](call, *inputs), type_of(call).dtype)
        if name in _MOVED_OPERANDS or elements in (Elements.SAME, Elements.MOVED, Elements.TAKEN):
            return _moved(call, inputs)
        return _computed(call, inputs, one_by_one=elements is Elements.EACH)
    except NotFolded:
        return None


def _is_of_integers(call: relay.Call) -> bool:
    args = call.args[:1] if known_of(call).lends_type else call.args
    return all(getattr(type_of(expr), "dtype", None) in INTEGERS for expr in (call, *args))


def _without_overflow(values: np.ndarray | None, dtype: str) -> np.ndarray | None:
    if values is None or dtype not in INTEGERS:
        return values
    limits = np.iinfo(dtype) if dtype != "bool" else _BOOL
    fits = (not isinstance(value, int) or limits.min <= value <= limits.max for value in values.flat)
    return array_of((value if fit else UNKNOWN for value, fit in zip(values.flat, fits)), values.shape)


def _moved(call: relay.Call, inputs: list[Any]) -> np.ndarray:
    """The elements where the call puts them: NumPy moves indices that stand for them."""
    elements: list[Element] = []

    def numbered(values: Any) -> Any:
        if isinstance(values, tuple):
            return [numbered(field) for field in values]
        elements.extend(values.flat)
        return np.arange(len(elements) - values.size, len(elements)).reshape(values.shape)

    moved = _MOVED_OPERANDS.get(call.op.name, (0,))
    parts = [
        numbered(values) if place in moved else _all_numbers(arg, values)
        for place, (arg, values) in enumerate(zip(call.args, inputs))
    ]
    places = move(call, type_of(call), parts)
    return array_of((elements[place] for place in places.flat), places.shape)


def _computed(call: relay.Call, inputs: list[Any], one_by_one: bool) -> np.ndarray:
    """NumPy's result. If `one_by_one`, an element is known where those it is computed from are."""
    if one_by_one:
        arrays, known = zip(*map(_numbers, call.args, inputs))
    else:
        arrays, known = tuple(map(_all_numbers, call.args, inputs)), (np.True_,)
    result = apply(call, type_of(call), arrays)
    is_known = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*known)), result.shape)
    pairs = zip(result.ravel().tolist(), is_known.flat)
    return array_of((value if known else UNKNOWN for value, known in pairs), result.shape)


def _numbers(arg: relay.Expr, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An operand, and which of its elements are numbers; the others are 1, which every operator accepts."""
    known = np.array([isinstance(value, (int, float)) for value in values.flat], bool)
    numbers = [value if is_number else 1 for value, is_number in zip(values.flat, known)]
    return np.array(numbers, type_of(arg).dtype).reshape(values.shape), known.reshape(values.shape)


def _all_numbers(arg: relay.Expr, values: Any) -> Any:
    if isinstance(values, tuple):
        return [_all_numbers(field, value) for field, value in zip(arg.fields, values)]
    numbers, known = _numbers(arg, values)
    if not known.all():
        raise NotFolded("the result depends on unknown elements")
    return numbers


def _shape_of(node: relay.Expr) -> np.ndarray | None:
    tensor = node.args[0]
    return array_of(length(tensor, axis) for axis in range(len(type_of(tensor).shape)))


def _ndarray_size(node: relay.Expr) -> np.ndarray | None:
    shape = shape_of_type(type_of(node.args[0]))
    return None if shape is None else array_of([int(np.prod(shape))], ())


def _elementwise(function: Callable[..., Element]) -> Callable:
    def handler(_: relay.Expr, *values: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(*(value.shape for value in values))
        columns = [np.broadcast_to(value, shape).ravel() for value in values]
        return array_of((function(*row) for row in zip(*columns)), shape)

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
    return Minimum(left, right) if both else UNKNOWN


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


def _size(call: relay.Call) -> int:
    return int(np.prod(shape_of_type(type_of(call)) or ()))


def _filled(value: int) -> Callable:
    return lambda call: array_of(np.full(_size(call), value, type_of(call).dtype).tolist())


def _full(call: relay.Call, value: np.ndarray) -> np.ndarray:
    return array_of(list(value.flat) * _size(call))


def _cast(call: relay.Call, data: np.ndarray) -> np.ndarray:
    is_wide = type_of(call).dtype in ("int32", "int64")  # a length fits
    return data.copy() if is_wide else _computed(call, [data], one_by_one=True)


def _reduced(function: Callable[[Element, Element], Element]) -> Callable:
    return lambda _, data: array_of([functools.reduce(function, data.flat)]) if data.size else None


_MOVED_OPERANDS = {"copy": (0,), "scatter_elements": (0, 2)}  # for all others, the first
_BY_TYPE: dict[str | None, Callable] = {  # operators that read only the shape of their argument
    "shape_of": _shape_of,
    "vm.shape_of": _shape_of,
    "ndarray_size": _ndarray_size,
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled(0),
    "ones_like": _filled(1),
}
_WITH_LENGTHS: dict[str | None, Callable] = {  # on integers
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
    "min": _reduced(_minimum),
    "max": _reduced(_maximum),
    "where": _elementwise(_where),
    "full": _full,
    "cast": _cast,
    "cast_like": _cast,
    "logical_and": _of_ints(operator.and_, neutral_right=1, neutral_left=1),
    "logical_or": _of_ints(operator.or_, neutral_right=0, neutral_left=0),
}
