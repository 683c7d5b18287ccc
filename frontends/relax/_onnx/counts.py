"""How many rows there are, in what ONNX computes with shapes.

An array of objects has such a `Count` in place of each number that depends on data, and `IsNone` in place of
whether it is 0. Where a node takes the array for a shape, its numbers are those of all rows that can be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from .node import Node
from .rows import Selection
from .sizes import INSTEAD, Size


@dataclass(frozen=True)
class Count:
    """How many rows a selection has, times a number, or that many at most."""

    of: Selection
    times: int = 1
    most: int | None = None

    @property
    def extent(self) -> int:
        extent = self.of.extent * self.times
        return extent if self.most is None else min(extent, self.most)

    @property
    def is_plain(self) -> bool:
        return self.times == 1 and self.most is None


@dataclass(frozen=True)
class IsNone:
    """Whether a selection has no rows."""

    of: Selection


class CannotCount(Exception):
    """What a node computes of counts is no count."""


def is_symbolic(value: Any) -> bool:
    """Whether it is an array with numbers that only the run knows: counts, or sizes."""
    return isinstance(value, np.ndarray) and value.dtype == object


def has_counts(value: Any) -> bool:
    return is_symbolic(value) and any(isinstance(each, (Count, IsNone)) for each in value.flat)


def extents(value: Any) -> Any:
    """An array with the numbers of all rows that can be in place of counts; others as they are."""
    return _plain(np.vectorize(_extent, [object])(value)) if has_counts(value) else value


def _extent(element: Any) -> Any:
    return element.extent if isinstance(element, Count) else not isinstance(element, IsNone) and element


def _plain(array: Any) -> np.ndarray:
    """With the type of its elements, where none of them is a count."""
    array = np.asarray(array, object)
    if any(isinstance(each, (Count, IsNone, Size)) for each in array.flat):
        return array
    return array.astype("bool" if all(isinstance(each, (bool, np.bool_)) for each in array.flat) else "int64")


def computed(n: Node, inputs: list[np.ndarray | None]) -> np.ndarray:
    """The result of a node whose inputs are known, but for counts."""
    given = [None if each is None else np.asarray(each, object) for each in inputs]
    try:
        return _plain(OPERATORS[n.proto.op_type](n, *given))
    except CannotCount:
        refuse(n, inputs)


def refuse(n: Node, inputs: Sequence[Any]) -> NoReturn:
    if not any(map(has_counts, inputs)):
        n.refuse(f"it computes with sizes that only the run knows: {INSTEAD}")
    n.refuse(
        "it computes with how many rows there are, which depends on data, and all shapes must be fixed: "
        "export the model without it"
    )


def product(numbers: np.ndarray) -> np.ndarray:
    return _plain(functools.reduce(_product, numbers, 1))


def _product(x: Any, y: Any) -> Any:
    x, y = (y, x) if isinstance(y, Count) else (x, y)
    if not isinstance(x, Count):
        return x * y
    if isinstance(y, Count) or x.most is not None or y <= 0:
        raise CannotCount
    return replace(x, times=x.times * int(y))


def _sum(x: Any, y: Any) -> Any:
    x, y = (y, x) if isinstance(y, Count) else (x, y)
    if not isinstance(x, Count):
        return x + y
    if isinstance(y, Count) or y != 0:
        raise CannotCount
    return x


def _least(x: Any, y: Any) -> Any:
    x, y = (y, x) if isinstance(y, Count) else (x, y)
    if not isinstance(x, Count):
        return min(x, y)
    if isinstance(y, Count):
        if x == y:
            return x
        raise CannotCount
    return replace(x, most=int(y) if x.most is None else min(x.most, int(y)))


def _equal(x: Any, y: Any) -> Any:
    x, y = (y, x) if isinstance(y, Count) else (x, y)
    if not isinstance(x, Count):
        return bool(x == y)
    if isinstance(y, Count) or y > 0 or (y == 0 and x.most == 0):
        raise CannotCount
    return IsNone(x.of) if y == 0 else False


def _chosen(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, IsNone):
        raise CannotCount
    return x if condition else y


def _difference(x: Any, y: Any) -> Any:
    if isinstance(x, Count) or isinstance(y, Count):
        raise CannotCount
    return x - y


def _quotient(x: Any, y: Any) -> Any:
    """Of sizes, which are not negative; rounded down as towards 0."""
    if isinstance(x, Count) or isinstance(y, Count) or x < 0 or y <= 0:
        raise CannotCount
    return x // y


def _remainder(x: Any, y: Any) -> Any:
    if isinstance(x, Count) or isinstance(y, Count) or y == 0:
        raise CannotCount
    return x % y  # with the sign of the divisor, as ONNX


def _mod(n: Node, x: np.ndarray, y: np.ndarray) -> Any:
    if n.attribute("fmod"):
        raise CannotCount
    return _elementwise(_remainder)(n, x, y)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda n, *arrays: np.frompyfunc(function, len(arrays), 1)(*arrays)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(n: Node, array: np.ndarray, axes: np.ndarray | None = None) -> Any:
        n.attribute("axes"), n.attribute("noop_with_empty_axes")
        if array.ndim != 1:
            raise CannotCount
        result = np.empty((1,) if n.attribute("keepdims") else (), object)
        result[...] = functools.reduce(function, array)
        return result

    return reduce


def _cast(n: Node, array: np.ndarray) -> np.ndarray:
    if n.attribute("to") not in (6, 7, 9):  # int32, int64 and bool
        raise CannotCount
    return array


def _slice(
    n: Node, array: np.ndarray, start: Any, end: Any, axes: Any = None, steps: Any = None
) -> np.ndarray:
    if any(isinstance(each, Count) for each in (*start, *end)):
        raise CannotCount
    bounds = [slice(None)] * array.ndim
    for at in range(len(start)):
        axis = at if axes is None else int(axes[at])
        bounds[axis] = slice(int(start[at]), int(end[at]), 1 if steps is None else int(steps[at]))
    return array[tuple(bounds)]


def _unsqueezed(n: Node, array: np.ndarray, axes: np.ndarray) -> np.ndarray:
    return np.expand_dims(array, tuple(map(int, axes.reshape(-1))))


def _squeezed(n: Node, array: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.squeeze(array, None if axes is None else tuple(map(int, axes.reshape(-1))))


def _reshaped(n: Node, array: np.ndarray, shape: np.ndarray) -> np.ndarray:
    n.attribute("allowzero")
    return array.reshape([int(each) for each in shape])


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": _elementwise(_sum),
    "Cast": _cast,
    "Concat": lambda n, *arrays: np.concatenate(arrays, n.attribute("axis")),
    "Div": _elementwise(_quotient),
    "Equal": _elementwise(_equal),
    "Gather": lambda n, array, at: np.take(array, at.astype("int64"), n.attribute("axis")),
    "Identity": lambda n, array: array,
    "Min": lambda n, *arrays: functools.reduce(np.frompyfunc(_least, 2, 1), arrays),
    "Mod": _mod,
    "Mul": _elementwise(_product),
    "ReduceMin": _reduced(_least),
    "ReduceProd": _reduced(_product),
    "Reshape": _reshaped,
    "Slice": _slice,
    "Squeeze": _squeezed,
    "Sub": _elementwise(_difference),
    "Transpose": lambda n, array: np.transpose(array, n.attribute("perm")),
    "Unsqueeze": _unsqueezed,
    "Where": _elementwise(_chosen),
}
