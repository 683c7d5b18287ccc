"""What rows of floats are compared as, so that NaN is their extreme, and no finite number that of infinities.

Reductions start from the infinities, at an index that any element replaces. NaN is the extreme of its row, as
for NumPy and torch, at the index of the first. Floats are compared as integers of the same order, since LLVM
is told that there is no NaN, and makes vectors of integers' maxima.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._floats import bits_of
from ._tvm import te, tir
from .sort.order import HELD_AS, from_ordered_bits, ordered_bits

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Keys:
    """What elements are compared as: themselves, or for floats integers, of which NaN is the extreme."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.kind, self._dtype, self._is_min = kind, dtype, kind == "min"
        self._held = HELD_AS.get(dtype, dtype)
        self.are_values = dtype not in FLOATS

    @property
    def start(self) -> tir.PrimExpr:
        """The key from which a reduction starts."""
        if self.are_values:
            return (tir.max_value if self._is_min else tir.min_value)(self._dtype)
        infinity = bits_of(math.inf, self._held)
        return tir.const(infinity if self._is_min else -infinity - 1, self._held.replace("float", "int"))

    def of(self, value: tir.PrimExpr) -> tir.PrimExpr:
        return value if self.are_values else ordered_bits(value.astype(self._held), self._is_min)

    def value(self, key: tir.PrimExpr) -> tir.PrimExpr:
        return key if self.are_values else from_ordered_bits(key, self._is_min).astype(self._dtype)

    def reducer(self) -> Callable[..., tir.PrimExpr]:
        """Of keys, to that of the extreme."""
        more = {"max": tir.Max, "min": tir.Min}[self.kind]
        return te.comm_reducer(lambda x, y: more(x, y), lambda _: self.start, name=self.kind)

    def reducer_of_places(self, is_last: bool = False) -> Callable[..., Any]:
        """Of indices and keys, to those of the first extreme, or the last."""

        def better(one: Any, other: Any) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            (place, value), (other_place, other_value) = one, other
            is_more = value > other_value if self.kind == "max" else value < other_value
            is_sooner = place > other_place if is_last else place < other_place
            mine = tir.any(is_more, tir.all(value.equal(other_value), is_sooner))
            return tir.Select(mine, place, other_place), tir.Select(mine, value, other_value)

        def none(of_place: str, _: str) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            never = tir.const(-1, of_place) if is_last else tir.max_value(of_place)
            return never, self.start

        return te.comm_reducer(better, none, name=f"arg{self.kind}")


def plan(
    data: te.Tensor, axes: Sequence[int], keepdims: bool
) -> tuple[list[Any], Callable[[Any], tir.PrimExpr], list[tir.IterVar]]:
    """The shape of the result, the elements that each of its elements reduces, and their axes."""
    reduced = [te.reduce_axis((0, data.shape[axis]), f"k{axis}") for axis in axes]

    def element(place: tuple[tir.Var, ...]) -> tir.PrimExpr:
        along, kept = iter(reduced), _kept(place, axes) if keepdims else iter(place)
        return data(*(next(along).var if axis in axes else next(kept) for axis in range(len(data.shape))))

    sizes = list(data.shape)
    shape = [1 if axis in axes else size for axis, size in enumerate(sizes) if keepdims or axis not in axes]
    return shape, element, reduced


def _kept(place: tuple[tir.Var, ...], axes: Sequence[int]) -> Iterator[tir.Var]:
    return (at for axis, at in enumerate(place) if axis not in axes)


def number_of(reduced: Sequence[tir.IterVar], dtype: str) -> tir.PrimExpr:
    """The number of an element among those that are reduced."""
    flat = functools.reduce(
        lambda number, axis: number * axis.dom.extent + axis.var, reduced[1:], reduced[0].var
    )
    return flat.astype(dtype)
