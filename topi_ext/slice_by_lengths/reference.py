"""What `slice_by_lengths` answers, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .bounds import Bounds, Term, range_of


def slice_by_lengths(
    data: np.ndarray, others: Sequence[np.ndarray], bounds: Mapping[int, tuple[Term, Term, int]]
) -> np.ndarray:
    """The part of an array, at bounds that are computed from the lengths of arrays."""
    lengths = [array.shape for array in (data, *others)]
    for axis, each in bounds.items():
        first, step, count = range_of(Bounds(*each), data.shape[axis], lengths)
        data = data.take(first + step * np.arange(count), axis)
    return data
