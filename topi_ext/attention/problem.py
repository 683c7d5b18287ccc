"""The parameters of a call of the operator as plain numbers; the type relation and all kernels use them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .._floats import HALF
from .._types import IntExpr

BHND, BNHD = "BHND", "BNHD"
LAYOUTS = (BHND, BHND, BHND, BHND)  # of query, key, value and result
NO_PARTS = (None, None, None)
PIECE = 8  # elements that kernels copy at once


class Part(NamedTuple):
    """Which elements of a tensor of any shape are those of a query, key or value, without a copy of them."""

    shape: tuple[int, ...]  # (batch, heads, items, length)
    strides: tuple[int, ...]  # of these, in elements; the last one is 1
    first: int = 0  # element

    @property
    def last(self) -> int:
        """The greatest place of an element."""
        return self.first + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))

    @property
    def unit(self) -> int:
        """Elements of a piece that can be copied at once: so many are side by side at multiples of it."""
        return math.gcd(PIECE, self.shape[3], self.first, *self.strides[:3])

    @property
    def is_aligned(self) -> bool:
        """Whether kernels can copy as many elements at once as the length of the vectors allows."""
        return self.unit == math.gcd(PIECE, self.shape[3])

    @property
    def is_repeated(self) -> bool:
        """Whether vectors of several batches, heads or items are the same ones."""
        return any(extent > 1 and stride == 0 for extent, stride in zip(self.shape, self.strides))


@dataclass(frozen=True)
class Problem:
    """Attention of `queries` to `keys`; `depth` is the length of a query and a key, `width` of a value."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    scale: float
    dtype: str
    layouts: tuple[str, ...] = LAYOUTS
    mask: tuple[int, ...] | None = None  # its shape
    mask_dtype: str | None = None
    parts: tuple[Part | None, ...] = NO_PARTS  # where query, key and value are in tensors of any shape

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """How many vectors of which length query, key, value and result have in a head."""
        return (
            (self.queries, self.depth),
            (self.keys, self.depth),
            (self.keys, self.width),
            (self.queries, self.width),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        items, length = self.lengths[3]
        outer = (self.heads, items) if self.layouts[3] == BHND else (items, self.heads)
        return (self.batch, *outer, length)

    def part(self, which: int) -> Part | None:
        """Where query, key or value are in a tensor of another shape, if they are."""
        return self.parts[which] if which < len(self.parts) else None

    def strides(self, which: int) -> tuple[int, ...]:
        """The strides of query, key, value or result, by batch, head, item and element."""
        part = self.part(which)
        if part is not None:
            return part.strides
        items, length = self.lengths[which]
        of_batch = self.heads * items * length
        if self.layouts[which] == BHND:
            return of_batch, items * length, length, 1
        return of_batch, length, self.heads * length, 1

    def at(self, which: int, *indices: IntExpr) -> IntExpr:
        """Where the element of query, key, value or result at these indices is; the last may be missing."""
        part = self.part(which)
        place = offset(self.strides(which), *indices)
        return place if part is None else place + part.first

    def unit(self, which: int) -> int:
        """The `Part.unit` of query, key, value or result: all vectors of a whole tensor are side by side."""
        part = self.part(which)
        return math.gcd(PIECE, self.lengths[which][1]) if part is None else part.unit

    @property
    def mask_strides(self) -> tuple[int, ...]:
        """By batch, head, query and key; 0 where the mask is the same for all."""
        steps, step = [], 1
        for extent in reversed(self.mask or ()):
            steps.append(0 if extent == 1 else step)
            step *= extent
        return tuple(reversed(steps))

    @property
    def has_pairs_in_mask(self) -> bool:
        """Whether of an even key and the next one, the elements of the mask are a word."""
        *outer, of_key = self.mask_strides
        is_half = self.mask_dtype in HALF
        return is_half and of_key == 1 and self.keys % 2 == 0 and all(step % 2 == 0 for step in outer)

    def to_json(self) -> str:
        """As text, which compiled code passes to a library at run time."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {name: _in_tuples(value) for name, value in json.loads(text).items()}
        parts = tuple(part and Part(*part) for part in values.pop("parts"))
        return cls(**values, parts=parts)


def _in_tuples(value: Any) -> Any:
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value


def by_axis(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The extents in the order BHND."""
    return tuple(shape[layout.index(axis)] for axis in BHND)


def offset(strides: Sequence[int], *at: IntExpr) -> IntExpr:
    """Where the element at these indices is; the last ones may be missing."""
    return sum(index * stride for index, stride in zip(at, strides))
