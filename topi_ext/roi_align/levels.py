"""Which level of a feature pyramid a region is pooled from, by its area.

The level is a formula of square root, division and logarithm, and each target rounds its logarithm in another
way; but it never falls as the area grows. So all that kernels need is the least area of each level, which is
found here once: they agree to the bit, and compute no logarithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._floats import BITS_OF_INFINITY


def level_of(
    area: ArrayLike,
    count: int,
    *,
    canonical_size: float,
    canonical_level: int,
    min_level: int,
    eps: float,
    eps_in_log2: bool,
) -> np.ndarray | np.int32:
    """The level, counted from 0, of each area that is at least 0, as torchvision computes it in float32."""
    ratio = np.sqrt(np.asarray(area, "float32")) / np.float32(canonical_size)
    inside, outside = (np.float32(eps), np.float32(0))[:: 1 if eps_in_log2 else -1]
    with np.errstate(divide="ignore"):
        logarithm = np.log2((ratio + inside).astype("float64")).astype("float32")
    level = np.floor((np.float32(canonical_level) + logarithm) + outside)
    return (np.clip(level, min_level, min_level + count - 1) - min_level).astype("int32")


def least_areas(count: int, **formula: Any) -> list[float]:
    """The least area of each level but the first; infinity for a level that no area reaches."""
    return [_least_area(level, count, formula) for level in range(1, count)]


def _least_area(level: int, count: int, formula: dict[str, Any]) -> float:
    low, high = 0, BITS_OF_INFINITY  # floats of one sign are in the order of their bits
    while low < high:
        middle = (low + high) // 2
        reached = level_of(_float(middle), count, **formula) >= level
        low, high = (low, middle) if reached else (middle + 1, high)
    return float(_float(low))


def _float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)
