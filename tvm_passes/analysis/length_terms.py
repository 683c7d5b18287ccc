"""An element of a small integer tensor as a term of lengths, where it is computed from nothing else."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from topi_ext.slice_by_lengths.bounds import DIVISIONS, OF_NUMBERS

from tvm import relay

from ..engine.expressions import constant, op_name, shape_of_type, type_of
from .evaluate import NotFolded, move
from .operators import Elements, known_of
from .shape_values import MAX_ELEMENTS, Dim, length

MAX_NODES = 80  # of an expression: terms are computed in every kernel that reads the slice
NO_TERM = None
Term = Union[int, Dim, tuple, None]  # (function, term, ...), as in the bounds of `slice_by_lengths`
WITHOUT_LIMIT = float("inf")
MOVES = Elements.SAME, Elements.MOVED, Elements.TAKEN


def term_of(expr: relay.Expr, place: int) -> Term:
    """The element at this place of the tensor in order; NO_TERM if it depends on data, or on too much."""
    return _Reader().term_of(expr, place)


class _Reader:
    def __init__(self) -> None:
        self._left = MAX_NODES

    def term_of(self, expr: relay.Expr, place: int) -> Term:
        self._left -= 1
        value = constant(expr)
        if value is not None:
            return int(value.ravel()[place]) if value.dtype.kind in "iub" else NO_TERM
        name = op_name(expr)
        if name is None or self._left < 0:
            return NO_TERM
        if name == "shape_of":
            return length(expr.args[0], place)
        if name == "cast":
            # To a narrower type, a large number would become another one.
            types = type_of(expr.args[0]).dtype, type_of(expr).dtype
            is_exact = types[1] == "int64" and types[0] in ("int64", "int32", "bool")
            return self.term_of(expr.args[0], place) if is_exact else NO_TERM
        if name == "negative":
            return self._computed("subtract", expr, [relay.const(0, "int64"), expr.args[0]], place)
        if name in OF_NUMBERS.of_two or name == "where":
            return self._computed(name, expr, list(expr.args), place)
        if known_of(expr).elements in MOVES:
            return self._moved(expr, place)
        return NO_TERM

    def _moved(self, call: relay.Call, place: int) -> Term:
        """The element that the call puts there: NumPy moves numbers that stand for them."""
        first = call.args[0]
        is_tuple = isinstance(first, relay.Tuple)
        fields = list(first.fields) if is_tuple else [first]
        known = [shape_of_type(type_of(field)) for field in fields]
        shapes: list[tuple[int, ...]] = [each for each in known if each is not None]
        others = list(map(constant, call.args[1:]))
        if len(shapes) < len(fields) or any(each is None for each in others):
            return NO_TERM
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        if ends[-1] > MAX_ELEMENTS:
            return NO_TERM
        parts: list[Any] = [
            np.arange(end - int(np.prod(shape)), end).reshape(shape) for end, shape in zip(ends, shapes)
        ]
        try:
            moved = move(call, type_of(call), [parts if is_tuple else parts[0], *others])
        except NotFolded:
            return NO_TERM
        source = int(moved.ravel()[place])
        field = int(np.searchsorted(ends, source, side="right"))
        return self.term_of(fields[field], source - int(parts[field].flat[0]))

    def _computed(self, name: str, call: relay.Call, args: list[relay.Expr], place: int) -> Term:
        result, operands = shape_of_type(type_of(call)), []
        for arg in args:
            shape = shape_of_type(type_of(arg))
            is_one = shape is not None and all(extent == 1 for extent in shape)
            if type_of(arg).dtype not in ("int64", "bool") or not (is_one or shape == result):
                return NO_TERM
            operands.append(self.term_of(arg, 0 if is_one else place))
            if operands[-1] is NO_TERM:
                return NO_TERM
        return _simplified(name, operands)


def _simplified(name: str, operands: list[Term]) -> Term:
    """What a function makes of terms."""
    if name == "where":
        condition, yes, no = operands
        return (yes if condition else no) if isinstance(condition, int) else (name, *operands)
    left, right = operands
    if name in DIVISIONS and (not isinstance(right, int) or right == 0):
        return NO_TERM
    if isinstance(left, int) and isinstance(right, int):
        result = int(OF_NUMBERS.of_two[name](left, right))
        return result if -(2**63) <= result < 2**63 else NO_TERM
    if name in ("add", "subtract") and right == 0:
        return left
    if name == "add" and left == 0:
        return right
    if name in ("minimum", "maximum"):
        for one, other in ((left, right), (right, left)):
            if _limits(one)[1] <= _limits(other)[0]:  # one is never above the other
                return one if name == "minimum" else other
    return (name, left, right)


def _limits(term: Term) -> tuple[float, float]:
    """The least and the greatest number that a term can be."""
    if isinstance(term, int):
        return term, term
    if isinstance(term, Dim):
        return 0, WITHOUT_LIMIT
    if isinstance(term, tuple) and term[0] == "floor_mod" and term[2] > 0:
        return 0, term[2] - 1
    if isinstance(term, tuple) and term[0] == "subtract" and isinstance(term[1], int):
        low, high = _limits(term[2])
        if low >= 0 and high < WITHOUT_LIMIT and abs(term[1]) < 2**62:  # else it may overflow
            return term[1] - high, term[1] - low
    return -WITHOUT_LIMIT, WITHOUT_LIMIT
