"""What `group_norm` answers, in NumPy: in float64, rounded once."""

from __future__ import annotations

import numpy as np

from ..conv2d_nhwc.problem import Activation, GivenActivation
from ..conv2d_nhwc.reference import activate


def group_norm(
    data: np.ndarray,
    gamma: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    *,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: GivenActivation = None,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.group_norm`, as arrays."""
    wide = np.moveaxis(data.astype("float64"), axis, 1)
    grouped = wide.reshape(len(wide), groups, wide.shape[1] // groups, *wide.shape[2:])
    over = tuple(range(2, grouped.ndim))
    difference = grouped - grouped.mean(axis=over, keepdims=True)
    variance = (difference**2).mean(axis=over, keepdims=True)
    result = np.moveaxis((difference / np.sqrt(variance + epsilon)).reshape(wide.shape), 1, -1)
    result = result if gamma is None else result * gamma.astype("float64")
    result = result if beta is None else result + beta.astype("float64")
    result = activate(Activation.of(activation, "activation"), result)
    return np.moveaxis(result, -1, axis).astype(data.dtype)
