"""What `transform_points` answers, in NumPy."""

import numpy as np


def transform_points(points, matrix, offsets=None):
    """The arguments and the result of `topi_ext.transform_points`, as arrays."""
    if offsets is not None:
        bounds = np.clip(offsets[1:-1], 0, len(points))
        result = np.empty_like(points)
        sample = np.searchsorted(bounds, np.arange(len(points)), side="right")
        matrix = matrix[sample]
        return (np.einsum("vij,vj->vi", matrix[:, :-1, :-1], points) + matrix[:, :-1, -1]).astype(
            result.dtype
        )
    return (points @ np.swapaxes(matrix[..., :-1, :-1], -1, -2) + matrix[..., None, :-1, -1]).astype(
        points.dtype
    )
