"""Lengths computed from numbers of detections: sums of multiples of these numbers, with their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm import relay

from ...analysis.elements import array_of
from ...analysis.evaluate import NotFolded, move
from ...analysis.operators import Elements, known_of
from ...engine.expressions import constant, op_name, shape_of_type, type_of
from .padded import ONE, NotStatic, Rows

DEPENDS = "a length depends on the number of valid rows"


class Length:
    """`fixed` plus each key's number of rows times a factor; of each key, `most` is the greatest number."""

    def __init__(self, factors: Mapping[Any, int], most: Mapping[Any, int], fixed: int = 0) -> None:
        self.factors = {key: factor for key, factor in factors.items() if factor}
        self.most, self.fixed = most, fixed

    @staticmethod
    def of(rows: Rows) -> Length | int:
        counted = rows.counted
        factors = {key: factor for key, factor in counted.items() if key != ONE}
        most = {part.counted_key: part.capacity // part.times for part in rows.counted_parts}
        return Length(factors, most, counted[ONE])._simple()

    @property
    def counted(self) -> Counter[Any] | None:
        """The same as `Rows.counted`; None if a factor is negative, which no number of rows is."""
        if self.fixed < 0 or any(factor < 0 for factor in self.factors.values()):
            return None
        return Counter({**self.factors, **({ONE: self.fixed} if self.fixed else {})})

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value."""
        ends = [sorted((0, factor * self.most[key])) for key, factor in self.factors.items()]
        return self.fixed + sum(end[0] for end in ends), self.fixed + sum(end[1] for end in ends)

    def _simple(self) -> Length | int:
        return self if self.factors else self.fixed

    def __add__(self, other: Any) -> Any:
        other = other if isinstance(other, Length) else Length({}, {}, int(other))
        factors = Counter(self.factors)
        factors.update(other.factors)
        return Length(factors, {**self.most, **other.most}, self.fixed + other.fixed)._simple()

    def __mul__(self, times: Any) -> Any:
        if isinstance(times, Length):
            raise NotStatic("a length is the product of two numbers of valid rows")
        factors = {key: factor * int(times) for key, factor in self.factors.items()}
        return Length(factors, self.most, self.fixed * int(times))._simple()

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    __radd__, __rmul__ = __add__, __mul__


def _greater(left: Any, right: Any) -> Any:
    least, most = _limits(left - right)
    if least < 0 < most:
        raise NotStatic(DEPENDS)
    return left if least >= 0 else right


def _limits(value: Length | int) -> tuple[int, int]:
    return value.limits if isinstance(value, Length) else (value, value)


def _lesser(left: Any, right: Any) -> Any:
    return -_greater(-left, -right)


def _equal(left: Any, right: Any) -> int:
    least, most = _limits(left - right)
    if least <= 0 <= most and least != most:
        raise NotStatic(DEPENDS)
    return int(least == 0)


def _chosen(condition: Any, left: Any, right: Any) -> Any:
    if isinstance(condition, Length):
        raise NotStatic(DEPENDS)
    return left if condition else right


COMPUTED: dict[str, Callable[..., Any]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "maximum": _greater,
    "minimum": _lesser,
    "equal": _equal,
    "where": _chosen,
}


def lengths_of(expr: relay.Expr, shape_of: Callable[[relay.Expr], list[Any]]) -> np.ndarray:
    """The elements of a small tensor of integers, each an int or a Length; raises NotStatic if unknown.

    `shape_of` gives the shape of the tensor whose `shape_of` is taken, with a Length for detections.
    """
    known: dict[relay.Expr, Any] = {}

    def of(node: relay.Expr) -> Any:
        if node not in known:
            known[node] = _elements(node, of, shape_of)
        return known[node]

    return of(expr)


def _elements(node: relay.Expr, of: Callable, shape_of: Callable) -> Any:
    if isinstance(node, relay.Tuple):
        return [of(field) for field in node.fields]
    value = constant(node)
    if value is not None and value.dtype.kind in "iub":
        return array_of(value.ravel().tolist(), value.shape)
    name = op_name(node)
    if name == "shape_of":
        elements = shape_of(node.args[0])
        return array_of(elements, (len(elements),))
    if name == "cast" and "int" in type_of(node).dtype:
        return of(node.args[0])
    if name in COMPUTED:
        operands = np.broadcast_arrays(*map(of, node.args))
        rows = zip(*(operand.ravel() for operand in operands))
        return array_of([COMPUTED[name](*row) for row in rows], operands[0].shape)
    shape = shape_of_type(type_of(node)) if isinstance(node, relay.Call) else None
    if shape is None or known_of(node).elements not in (Elements.SAME, Elements.MOVED, Elements.TAKEN):
        raise NotStatic(DEPENDS)
    data, *indices = node.args
    try:
        return move(node, type_of(node), [of(data), *(of(index).astype("int64") for index in indices)])
    except (NotFolded, TypeError):
        raise NotStatic(DEPENDS) from None
