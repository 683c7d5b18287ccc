"""The parameters of a call of the operator as plain numbers; the type relation and all kernels use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._types import IntExpr

BHND, BNHD = "BHND", "BNHD"
LAYOUTS = (BHND, BHND, BHND, BHND)  # of query, key, value and result


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

    def strides(self, which: int) -> tuple[int, int, int, int]:
        """The strides of query, key, value or result, by batch, head, item and element."""
        items, length = self.lengths[which]
        of_batch = self.heads * items * length
        if self.layouts[which] == BHND:
            return of_batch, items * length, length, 1
        return of_batch, length, self.heads * length, 1

    @property
    def mask_strides(self) -> tuple[int, ...]:
        """By batch, head, query and key; 0 where the mask is the same for all."""
        steps, step = [], 1
        for extent in reversed(self.mask or ()):
            steps.append(0 if extent == 1 else step)
            step *= extent
        return tuple(reversed(steps))

    def to_json(self) -> str:
        """As text, which compiled code passes to a library at run time."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(text).items()
        }
        return cls(**values)


def by_axis(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The extents in the order BHND."""
    return tuple(shape[layout.index(axis)] for axis in BHND)


def offset(strides: Sequence[int], *at: IntExpr) -> IntExpr:
    """Where the element at these indices is; the last ones may be missing."""
    return sum(index * stride for index, stride in zip(at, strides))
