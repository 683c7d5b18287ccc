"""What the kernels of every target have to know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul

from tvm import te

from .._register import known
from .._types import IntExpr


@dataclass(frozen=True)
class Problem:
    """Data (outer, channels, inner), normalized over the channels; only their number is always known."""

    outer: IntExpr
    channels: int
    inner: IntExpr
    epsilon: float

    @classmethod
    def of(cls, data: te.Tensor, axis: int, epsilon: float) -> Problem:
        axis %= len(data.shape)
        outer, inner = _product(data.shape[:axis]), _product(data.shape[axis + 1 :])
        return cls(outer, int(data.shape[axis]), inner, epsilon)

    @property
    def is_last(self) -> bool:
        """Whether the channels of a place are side by side."""
        return known(self.inner) == 1


def _product(extents: list[IntExpr]) -> IntExpr:
    factors = (extent if known(extent) is None else int(extent) for extent in extents)
    return reduce(mul, factors, 1)
