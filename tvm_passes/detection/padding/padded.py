"""Padded rows: what a tensor of dynamic length becomes once its length is static."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from tvm import relay

from ...engine.expressions import known_shape

ONE = "one row"  # the key of the constant in `counted`
Became = Any  # what replaces a node: a `Padded`, a tuple, SIZE, or an expression
SIZE = object()  # integers computed from the number of valid rows, which may only be used in shapes


class NotStatic(Exception):
    """Why a graph cannot have static shapes."""


@dataclass(eq=False)
class Rows:
    """`capacity` rows; the valid ones, in their original order, are marked by `mask`, or the first `count`,
    or both.

    Tensors with the same `key` have the same valid rows.
    """

    capacity: int
    key: tuple[Any, ...]
    count: relay.Expr | None = None  # int32 scalar, if the valid rows are the first ones
    mask: relay.Expr | None = None  # bool (capacity,), if they may be anywhere or it costs less to compute
    origin: Rows | None = None  # rows, each of which became several of these
    parts: tuple[Rows, ...] = ()  # the rows that were concatenated into these
    arranges: Rows | None = None  # rows, of which these are the same in another order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.key == other.key

    @property
    def are_first(self) -> bool:
        return self.count is not None

    @cached_property
    def valid(self) -> relay.Expr:
        """bool (capacity,)."""
        if self.mask is not None:
            return self.mask
        return relay.less(relay.const(np.arange(self.capacity, dtype="int32")), self.count)

    @cached_property
    def compacted(self) -> Rows:
        """As many rows, the valid ones of which come first; `order` brings these rows there."""
        if self.are_first:
            return self
        return Rows(self.capacity, ("compacted", self.key), count=self.number, arranges=self)

    @cached_property
    def order(self) -> relay.Expr:
        """int32 (capacity,): the indices of the valid rows, then those of the others."""
        return valid_first(self.valid, self.capacity)

    @cached_property
    def number(self) -> relay.Expr:
        """How many rows are valid, an int32 scalar."""
        return self.count if self.are_first else relay.sum(relay.cast(self.mask, "int32"))

    @cached_property
    def counted(self) -> Counter[Any]:
        """`number` as a sum: the factor of each key's number of rows, and the constant under ONE."""
        if self.arranges is not None:
            return self.arranges.counted
        if self.parts:
            return sum((part.counted for part in self.parts), Counter())
        if self.key == ("all", self.capacity):
            return Counter({ONE: self.capacity})
        return Counter({self.counted_key: self.times})

    @property
    def counted_parts(self) -> tuple[Rows, ...]:
        """The rows that `counted` counts."""
        return self.parts or (self,) if self.arranges is None else self.arranges.counted_parts

    @property
    def times(self) -> int:
        """How many rows each of those that are counted has become."""
        return 1 if self.origin is None else self.capacity // self.origin.capacity * self.origin.times

    @property
    def counted_key(self) -> tuple[Any, ...]:
        """The key of the rows that are counted."""
        return self.key if self.origin is None else self.origin.counted_key

    def repeated(self, times: int) -> Rows:
        """Each row repeated as `times` rows."""
        if times == 1:
            return self
        repeated = Rows(self.capacity * times, ("repeated", times, self.key), origin=self)
        if self.are_first:
            repeated.count = relay.multiply(self.count, relay.const(times, "int32"))
        else:
            repeated.mask = relay.repeat(self.mask, times, axis=0)
        return repeated

    def merged(self, times: int) -> Rows | None:
        """Each `times` rows merged into one, or None if they were not one before."""
        if times == 1:
            return self
        was_one = self.origin is not None and self.capacity == self.origin.capacity * times
        return self.origin if was_one else None

    def first(self, most: int) -> Rows:
        """At most this many of the valid rows, which must be the leading ones."""
        if most >= self.capacity:
            return self
        count = relay.minimum(self.count, relay.const(most, "int32"))
        return Rows(most, ("first", most, self.key), count=count)

    def between(self, begin: Counter[Any] | None, end: Counter[Any] | None) -> tuple[int, Rows] | None:
        """The parts between these two numbers of valid rows: the index where they start, and their rows.

        All valid rows of a part precede those of the next, so a boundary between parts is the sum of the
        valid rows of the parts before it, whatever each of these counts is. None if the numbers are not known
        to be such sums.
        """
        ends = list(accumulate((part.counted for part in self.parts), initial=Counter()))
        if begin not in ends or end not in ends:
            return None
        first, last = ends.index(begin), ends.index(end)
        parts = self.parts[first:last]
        if not parts:
            return None
        start = sum(part.capacity for part in self.parts[:first])
        return start, parts[0] if len(parts) == 1 else in_a_row(parts)


def valid_first(mask: relay.Expr, capacity: int, axis: int = 0, rank: int = 1) -> relay.Expr:
    """int32, as the mask: the indices along an axis where it is true, in order, then the others."""
    indices = along_axis(np.arange(capacity, dtype="int32"), axis, rank)
    keys = relay.where(mask, relay.const(indices), relay.const(indices + np.int32(capacity)))
    return relay.argsort(keys, axis=axis, dtype="int32")


def along_axis(vector: Any, axis: int, rank: int) -> Any:
    """A vector, as an array or an expression, that lies along an axis."""
    shape = [-1 if each == axis else 1 for each in range(rank)]
    return vector.reshape(shape) if isinstance(vector, np.ndarray) else relay.reshape(vector, shape)


def in_a_row(parts: Iterable[Rows]) -> Rows:
    """The rows of concatenated tensors."""
    parts = [part for rows in parts for part in rows.parts or (rows,)]
    mask = relay.concatenate([part.valid for part in parts], axis=0)
    key = ("in a row", *(part.key for part in parts))
    return Rows(sum(part.capacity for part in parts), key, mask=mask, parts=tuple(parts))


def all_of(capacity: int) -> Rows:
    """Rows that are all valid."""
    return Rows(capacity, ("all", capacity), count=relay.const(capacity, "int32"))


@dataclass
class Padded:
    """A tensor of static shape with `rows` along `axis`; the values of invalid rows are undefined.

    If it holds indices into padded rows, all of them in bounds, `places` are those rows. Padding moves them
    where its valid rows are not the leading ones.
    """

    expr: relay.Expr
    rows: Rows
    axis: int = 0
    places: Rows | None = None

    @property
    def holds_moved(self) -> bool:
        """Whether it holds indices that differ from those in the original graph."""
        return self.places is not None and not self.places.are_first

    @property
    def shape(self) -> tuple[int, ...]:
        return known_shape(self.expr)

    @property
    def rank(self) -> int:
        return len(self.shape)
