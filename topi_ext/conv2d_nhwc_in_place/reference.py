"""The NumPy oracle of `topi_ext.conv2d_nhwc_in_place`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..conv2d_nhwc import reference


def conv2d_nhwc_in_place(
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    destination: np.ndarray | None = None,
    *,
    data_from: int = 0,
    residual_from: int = 0,
    result_from: int = 0,
    result_channels: int,
    **options: Any,
) -> np.ndarray:
    """The operator on arrays, with zeros for the channels that it leaves unspecified."""
    filters, *_, channels = weight.shape
    read = data[..., data_from : data_from + channels]
    added = None if residual is None else residual[..., residual_from : residual_from + filters]
    written = reference.conv2d_nhwc(read, weight, bias, added, **options)
    shape = *written.shape[:3], result_channels
    result = np.zeros(shape, written.dtype) if destination is None else destination.astype(written.dtype)
    result[..., result_from : result_from + filters] = written
    return result
