"""What `transform_points` answers, in NumPy."""

from __future__ import annotations

import numpy as np


def transform_points(points: np.ndarray, matrix: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
    """The arguments and the result of `topi_ext.transform_points`, as arrays."""
    matrix = matrix.astype("float64")
    if offsets is not None:
        sample = np.searchsorted(offsets[1:-1], np.arange(len(points)), side="right")
        matrix = matrix[sample]
        rotated = np.einsum("nij,nj->ni", matrix[:, :-1, :-1], points)
        return (rotated + matrix[:, :-1, -1]).astype(points.dtype)
    rotated = points @ np.swapaxes(matrix[..., :-1, :-1], -1, -2)
    return (rotated + matrix[..., None, :-1, -1]).astype(points.dtype)
