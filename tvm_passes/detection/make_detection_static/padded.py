"""Rows of which only some count: what a tensor of unknown length becomes once its length is fixed."""

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

ONE = "one row"  # among the keys of `counted`
Became = Any  # of a node: a `Padded`, a tuple of such, SIZE, or an expression
SIZE = object()  # integers that follow from how many rows count, which may only go into shapes


class NotStatic(Exception):
    """Why a graph cannot have fixed shapes."""


@dataclass(eq=False)
class Rows:
    """`capacity` rows, the valid ones marked by `valid`, in their order; or just the first `count`.

    Tensors that are of the same `key` have the same rows that count.
    """

    capacity: int
    key: tuple[Any, ...]
    count: relay.Expr | None = None  # int32 scalar, where the first rows are those that count
    mask: relay.Expr | None = None  # bool (capacity,), where they may be any
    origin: Rows | None = None  # of which each row is several of these
    parts: tuple[Rows, ...] = ()  # rows that these are, one behind the other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.key == other.key

    @property
    def are_first(self) -> bool:
        return self.count is not None

    @property
    def places(self) -> Rows | None:
        """Among which rows an index of these is a place, rather than the number that it was before."""
        return None if self.are_first else self

    @cached_property
    def valid(self) -> relay.Expr:
        """bool (capacity,)."""
        if self.mask is not None:
            return self.mask
        return relay.less(relay.const(np.arange(self.capacity, dtype="int32")), self.count)

    @cached_property
    def number(self) -> relay.Expr:
        """How many rows count, an int32 scalar."""
        return self.count if self.are_first else relay.sum(relay.cast(self.mask, "int32"))

    @cached_property
    def counted(self) -> Counter[Any]:
        """What `number` is the sum of: how often it has the number of rows of which key, and single rows."""
        if self.parts:
            return sum((part.counted for part in self.parts), Counter())
        if self.key == ("all", self.capacity):
            return Counter({ONE: self.capacity})
        return Counter({self.key: 1})

    def repeated(self, times: int) -> Rows:
        """Each row as `times` rows."""
        if times == 1:
            return self
        repeated = Rows(self.capacity * times, ("repeated", times, self.key), origin=self)
        if self.are_first:
            repeated.count = relay.multiply(self.count, relay.const(times, "int32"))
        else:
            repeated.mask = relay.repeat(self.mask, times, axis=0)
        return repeated

    def merged(self, times: int) -> Rows | None:
        """Each `times` rows as one, or None where they were not one before."""
        if times == 1:
            return self
        was_one = self.origin is not None and self.capacity == self.origin.capacity * times
        return self.origin if was_one else None

    def first(self, most: int) -> Rows:
        """No more than this many of the rows that count, where they are the first."""
        if most >= self.capacity:
            return self
        count = relay.minimum(self.count, relay.const(most, "int32"))
        return Rows(most, ("first", most, self.key), count=count)

    def between(self, begin: Counter[Any] | None, end: Counter[Any] | None) -> tuple[int, Rows] | None:
        """Where the parts that follow so many rows that count, and end after so many, lie; and their rows.

        All that counts in a part comes before all that counts in the next. So the rows behind as many as
        count in the first parts are those of the parts that follow, whatever number counts in each, none and
        all included. None, if the numbers are not known to be those of parts.
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


def in_a_row(parts: Iterable[Rows]) -> Rows:
    """The rows of tensors put one behind the other."""
    parts = [part for rows in parts for part in rows.parts or (rows,)]
    mask = relay.concatenate([part.valid for part in parts], axis=0)
    key = ("in a row", *(part.key for part in parts))
    return Rows(sum(part.capacity for part in parts), key, mask=mask, parts=tuple(parts))


def all_of(capacity: int) -> Rows:
    """Rows that all count."""
    return Rows(capacity, ("all", capacity), count=relay.const(capacity, "int32"))


@dataclass
class Padded:
    """A tensor of fixed shape whose `axis` is of such rows. What the other rows hold is junk.

    It may hold indices of rows of which those that count are not the first: in other `places` than before.
    """

    expr: relay.Expr
    rows: Rows
    axis: int = 0
    places: Rows | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return known_shape(self.expr)

    @property
    def rank(self) -> int:
        return len(self.shape)
