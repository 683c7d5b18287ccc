"""What `layer_norm` answers, in NumPy: in float64, rounded once."""

from __future__ import annotations

import numpy as np


def layer_norm(
    data: np.ndarray,
    gamma: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.layer_norm`, as arrays."""
    wide = np.moveaxis(data.astype("float64"), axis, -1)
    difference = wide - wide.mean(axis=-1, keepdims=True)
    variance = (difference**2).mean(axis=-1, keepdims=True)
    result = difference / np.sqrt(variance + epsilon)
    result = result if gamma is None else result * gamma.astype("float64")
    result = result if beta is None else result + beta.astype("float64")
    return np.moveaxis(result, -1, axis).astype(data.dtype)
