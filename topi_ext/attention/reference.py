"""What `attention` answers, in NumPy: in float64, rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .problem import LAYOUTS


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    scale: float,
    layouts: Sequence[str] = LAYOUTS,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.attention`, as arrays."""
    q, k, v = (
        _swapped(array.astype("float64"), layout) for array, layout in zip((query, key, value), layouts)
    )
    scores = q @ k.swapaxes(2, 3) * scale
    scores = scores if mask is None else scores + mask.astype("float64")
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    result = weights / weights.sum(axis=3, keepdims=True) @ v
    return _swapped(result, layouts[3]).astype(query.dtype)


def _swapped(array: np.ndarray, layout: str) -> np.ndarray:
    """From BHND to a layout, or back."""
    return array if layout == "BHND" else array.swapaxes(1, 2)
