"""Bounds of slices, as terms of lengths: how they are written in attributes, read, and computed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from .._integer_division import toward_zero
from .._tvm import PrimExpr, tir

LENGTH = "length"  # (LENGTH, place of the tensor, axis)
Term = Union[int, tuple]  # a number, a length, or (function, term, ...)
Lengths = Sequence[Sequence[Any]]  # of each axis of each tensor


class Bounds(NamedTuple):
    """Of one axis: what Python calls a slice."""

    start: Term
    stop: Term
    step: int


class Range(NamedTuple):
    """The elements of an axis that are taken."""

    first: Any
    step: int
    count: Any


class _Functions(NamedTuple):
    """What TVM's operators of these names compute of two numbers."""

    of_two: Mapping[str, Callable[[Any, Any], Any]]
    where: Callable[[Any, Any, Any], Any]


ANYWHERE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _in_int64(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A comparison whose truth is a number, as another one may add it."""
    return lambda left, right: compare(left, right).astype("int64")


OF_NUMBERS = _Functions(
    {
        **ANYWHERE,
        **COMPARISONS,
        "minimum": min,
        "maximum": max,
        "floor_divide": lambda left, right: left // right,
        "floor_mod": lambda left, right: left % right,
        "divide": toward_zero,
        "mod": lambda left, right: left - right * toward_zero(left, right),
    },
    lambda condition, yes, no: yes if condition else no,
)
OF_EXPRESSIONS = _Functions(
    {
        **ANYWHERE,
        "minimum": tir.min,
        "maximum": tir.max,
        "floor_divide": tir.floordiv,
        "floor_mod": tir.floormod,
        "divide": tir.truncdiv,
        "mod": tir.truncmod,
        **{name: _in_int64(compare) for name, compare in COMPARISONS.items()},
    },
    lambda condition, yes, no: tir.Select(condition != 0, yes, no),
)
FUNCTIONS = (*OF_NUMBERS.of_two, "where")
DIVISIONS = "floor_divide", "floor_mod", "divide", "mod"


def lengths_in(term: Term) -> list[tuple[int, int]]:
    """The lengths that it is computed from: of which tensor, along which axis."""
    if isinstance(term, int):
        return []
    if term[0] == LENGTH:
        return [(term[1], term[2])]
    return [each for operand in term[1:] for each in lengths_in(operand)]


def with_lengths(term: Term, replace: Callable[[int, int], Term]) -> Term:
    """The term of other lengths."""
    if isinstance(term, int):
        return term
    if term[0] == LENGTH:
        return replace(term[1], term[2])
    return (term[0], *(with_lengths(operand, replace) for operand in term[1:]))


def check(term: Term) -> None:
    """Refuse what is no term, or may divide by zero."""
    if isinstance(term, int):
        return
    if not isinstance(term, tuple) or not term or term[0] not in (LENGTH, *FUNCTIONS):
        raise ValueError(
            f"slice_by_lengths: a bound is a number, a length, or computed of these, not {term!r}"
        )
    arity = 3 if term[0] == "where" else 2
    if len(term) != arity + 1:
        raise ValueError(f"slice_by_lengths: {term[0]} has {arity} operands, not those of {term!r}")
    if term[0] in DIVISIONS and not (isinstance(term[2], int) and term[2]):
        raise ValueError(f"slice_by_lengths: a divisor is a number other than 0, not {term[2]!r}")
    if term[0] != LENGTH:
        for operand in term[1:]:
            check(operand)


def written(bounds: Mapping[int, Bounds]) -> str:
    """As an attribute of a call: attributes of TVM are no trees."""
    return repr({axis: tuple(each) for axis, each in sorted(bounds.items())})


def read(text: Any) -> dict[int, Bounds]:
    return {axis: Bounds(*each) for axis, each in ast.literal_eval(str(text)).items()}


def range_of(bounds: Bounds, length: Any, lengths: Lengths) -> Range:
    """What a slice takes of an axis of this length, by numbers or by expressions of TVM."""
    functions = OF_EXPRESSIONS if isinstance(length, PrimExpr) else OF_NUMBERS
    least, most = functions.of_two["maximum"], functions.of_two["minimum"]
    zero = _number(0, functions)

    def place(bound: Term) -> Any:
        """A bound that counts from the first element."""
        value = _value(bound, lengths, functions)
        if isinstance(bound, int) and not isinstance(bound, bool):
            return value if bound >= 0 else length + value
        if isinstance(bound, tuple) and bound[0] == LENGTH:
            return value
        return functions.where(functions.of_two["less"](value, zero), value + length, value)

    first = least(place(bounds.start), zero) if not _is_natural(bounds.start) else place(bounds.start)
    first = most(first, length) if isinstance(bounds.start, int) and bounds.start else first  # fits an index
    last = most(place(bounds.stop), length)
    last = last if _is_natural(bounds.stop) else least(last, zero)  # no difference may overflow
    count = least(last - first, zero)
    if bounds.step != 1:
        count = functions.of_two["floor_divide"](count + (bounds.step - 1), _number(bounds.step, functions))
    return Range(first, bounds.step, count)


def _is_natural(term: Term) -> bool:
    return (isinstance(term, int) and term >= 0) or (isinstance(term, tuple) and term[0] == LENGTH)


def _value(term: Term, lengths: Lengths, functions: _Functions) -> Any:
    if isinstance(term, int):
        return _number(term, functions)
    if term[0] == LENGTH:
        return lengths[term[1]][term[2]]
    operands = [_value(operand, lengths, functions) for operand in term[1:]]
    return functions.where(*operands) if term[0] == "where" else functions.of_two[term[0]](*operands)


def _number(value: int, functions: _Functions) -> Any:
    return tir.const(value, "int64") if functions is OF_EXPRESSIONS else value
