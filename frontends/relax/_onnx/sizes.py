"""Sizes that only the run knows, in what ONNX computes with shapes.

A `Size` takes part where Python computes with sizes: converters multiply and compare it as they do numbers. A
comparison is answered only if it has one answer for all sizes of at least 1, and a `Size` is no number, so a
converter that needs to know it is refused instead of computing what is right for some sizes only: unless
`assumptions.py` finds of which sizes it would be known.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from tvm_ffi import structural_equal

from tvm import tirx
from tvm.ir import Expr, Range
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from ...errors import ImportFailure
from .polynomials import in_order, quotient

RANGES: ContextVar[Mapping[tirx.Var, range]] = ContextVar("RANGES")  # of variables not known as at least 1
LARGEST = 2**31 - 1  # of a size; exporters write it, or 2**63 - 1, for the end of an axis


class SizeUnknown(Exception):
    """What is asked of sizes depends on the run; `is_known` says of others in their place whether it does."""

    def __init__(self, reason: str, exprs: Sequence[Expr] = (), is_known: IsKnown | None = None) -> None:
        super().__init__(reason)
        self.exprs, self.is_known = exprs, is_known


class SizesMatter(ImportFailure):
    """What a node computes depends on open sizes, in a way that is `unknown`."""

    def __init__(self, reason: str, unknown: SizeUnknown) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Size:
    """A size that only the run knows: variables of at least 1, and whole numbers times and beside them."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __tvm_ffi_object__(self) -> Expr:
        return self.expr

    def __repr__(self) -> str:
        return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(self.expr))

    def __add__(self, other: Any) -> Extent:
        return _computed(operator.add, self, other)

    def __sub__(self, other: Any) -> Extent:
        return _computed(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Extent:
        return _computed(operator.sub, other, self)

    def __mul__(self, other: Any) -> Extent:
        return _computed(operator.mul, self, other)

    def __floordiv__(self, other: Any) -> Extent:
        return _computed(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Extent:
        return _computed(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Extent:
        return _computed(operator.mod, self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Extent:
        return self * -1

    def __eq__(self, other: object) -> bool:
        return _decided(operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return _decided(operator.lt, self, other)

    def __le__(self, other: Any) -> bool:
        return _decided(operator.le, self, other)

    def __gt__(self, other: Any) -> bool:
        return _decided(operator.gt, self, other)

    def __ge__(self, other: Any) -> bool:
        return _decided(operator.ge, self, other)

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(str(self.expr))

    def __index__(self) -> int:
        reason = f"it needs a size that only the run knows, {self}: {INSTEAD}"
        raise SizeUnknown(reason, [self.expr], lambda expr: isinstance(simplified(expr), tirx.IntImm))

    __int__ = __index__


Extent = Any  # an int, or a Size
IsKnown = Callable[..., bool]
INSTEAD = "give the sizes of the inputs by shapes"
OPPOSITE = {operator.eq: operator.ne, operator.lt: operator.ge, operator.gt: operator.le}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}
SIGNS = {operator.eq: "==", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">="}


def size_of(extent: Any) -> Extent:
    """An extent of a shape of Relax as converters compute with it."""
    return int(extent) if isinstance(extent, (int, np.integer, tirx.IntImm)) else Size(extent)


def typical(extent: Extent) -> int:
    """What it is where all sizes are large."""
    if isinstance(extent, int):
        return extent
    return int(simplified(extent.expr, {var: _expr(2**20) for var in undefined_vars(extent.expr)}))


def whole(number: Any) -> Extent:
    return number if isinstance(number, Size) else int(number)


def is_number(extent: Extent, number: int) -> bool:
    """Whether it is known to be this number; open sizes are not, even where one may happen to be."""
    return not isinstance(extent, Size) and bool(extent == number)


def is_same(one: Extent, other: Extent) -> bool:
    """Whether they are known to be one, for all sizes."""
    return _answer(operator.eq, _expr(one), _expr(other)) is True


def sizes_array(numbers: Sequence[Extent]) -> np.ndarray:
    """A shape as ONNX computes with it: of int64, or of objects where the run decides."""
    return np.array(numbers, "object" if any(isinstance(each, Size) for each in numbers) else "int64")


def check(relation: Callable[..., Any], one: Extent, other: Extent) -> None:
    """Fail unless a relation of sizes is known to hold."""

    def is_known(*exprs: Expr) -> bool:
        return _answer(relation, *exprs) is True

    exprs = expressions([one, other])
    if not is_known(*exprs):
        raise SizeUnknown(f"it must be that {relation(*exprs)}: {INSTEAD}", exprs, is_known)


def broadcast(*shapes: Sequence[Extent]) -> tuple[Extent, ...]:
    """The shape of what is computed element by element from tensors of these shapes."""
    rank = max(map(len, shapes))
    aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    return tuple(functools.reduce(_common, extents) for extents in zip(*aligned))


def _common(one: Extent, other: Extent) -> Extent:
    if one == 1 if isinstance(one, int) else other != 1 if isinstance(other, int) else False:
        one, other = other, one
    if isinstance(other, int) and other == 1:
        return one
    if one != other:
        raise ValueError(f"shapes with {one} and {other} cannot be broadcast")
    return one


def bounded(bounds: slice, extent: Extent) -> tuple[Extent, Extent, int]:
    """`slice.indices`, also of an axis whose size the run knows."""
    if isinstance(extent, int) and not any(isinstance(each, Size) for each in (bounds.start, bounds.stop)):
        return bounds.indices(extent)
    if bounds.step < 0:
        raise SizeUnknown(f"it goes backwards along an axis whose size only the run knows: {INSTEAD}")
    start, stop = (_place(each, extent) for each in (bounds.start, bounds.stop))
    return start, stop, bounds.step


def _place(at: Extent, extent: Extent) -> Extent:
    if isinstance(at, int) and abs(at) >= LARGEST:
        return extent if at > 0 else 0
    if at < 0:
        return max(at + extent, 0)
    return extent if at > extent else at


def _computed(function: Callable[..., Any], one: Any, other: Any) -> Extent:
    if not all(isinstance(each, (int, np.integer, Size)) for each in (one, other)):
        return NotImplemented
    exprs = _expr(one), _expr(other)
    if function is operator.floordiv and (times := quotient(*exprs)) is not None:
        return size_of(times)
    return size_of(simplified(_TIRX.get(function, function)(*exprs)))


_TIRX: dict[Any, Any] = {operator.floordiv: tirx.floordiv, operator.mod: tirx.floormod}


def _decided(relation: Callable[..., Any], one: Any, other: Any) -> bool:
    if not isinstance(other, (int, np.integer, Size)):
        return False
    exprs = [_expr(one), _expr(other)]
    answer = _answer(relation, *exprs)
    if answer is None:
        raise SizeUnknown(
            f"whether {one} {SIGNS[relation]} {other} is known only as it runs: {INSTEAD}",
            exprs,
            lambda *exprs: (
                _answer(relation, *exprs) is True
                or (relation is not operator.eq and _answer(relation, *exprs) is False)
            ),
        )
    return answer


def _answer(relation: Callable[..., Any], one: Expr, other: Expr) -> bool | None:
    """None where it is not the same for all sizes."""
    difference = simplified(one - other)
    analyzer = _analyzer([difference])
    if analyzer.can_prove(relation(difference, _expr(0))):
        return True
    return False if analyzer.can_prove(OPPOSITE[relation](difference, _expr(0))) else None


def simplified(expr: Expr, sizes: Mapping[tirx.Var, Expr] | None = None) -> Expr:
    """With these in place of variables."""
    sizes = sizes or {}
    others = {var for var in undefined_vars(expr) if var not in sizes}
    analyzer = _analyzer([*sizes.values(), *others])
    for var, size in sizes.items():
        analyzer.bind(var, size)
    return in_order(analyzer.simplify(expr))


def expressions(extents: Iterable[Extent]) -> list[Expr]:
    return [_expr(extent) for extent in extents]


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Size) else tirx.IntImm("int64", int(value))


@contextlib.contextmanager
def within(ranges: Mapping[tirx.Var, range]) -> Iterator[None]:
    """While it lasts, it is known of these variables how large they are."""
    token = RANGES.set(ranges)
    try:
        yield
    finally:
        RANGES.reset(token)


def of_what_is_known(expr: Expr) -> Expr | None:
    """An extent in other words, if its variables' ranges allow for them."""
    with_ranges = simplified(expr)
    with within({}):
        without = simplified(expr)
    return None if structural_equal(with_ranges, without) else with_ranges


def least_of(expr: Expr) -> int:
    return int(_analyzer([expr]).const_int_bound(expr).min_value)


def _analyzer(exprs: Iterable[Expr]) -> Analyzer:
    """It knows that there are elements along each axis of the inputs."""
    analyzer, ranges = Analyzer(), RANGES.get({})
    for var in {var for expr in exprs for var in undefined_vars(expr)}:
        known = ranges.get(var, range(1, LARGEST))
        # Of int64: the sum of two int32 would overflow, and with it the proofs.
        analyzer.bind(var, Range(_expr(known.start), _expr(known.stop)))
    return analyzer
