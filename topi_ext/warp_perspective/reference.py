"""What `warp_perspective` answers, in NumPy: coordinates in float64, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..warp_affine.reference import MAX_COEFFICIENT, SMALLEST_DIVISOR, as_pixel, grid_of, sampled, split


def warp_perspective(
    data: np.ndarray,
    matrix: ArrayLike,
    out_size: Sequence[int],
    *,
    units: str = "pixels",
    interpolation: str = "bilinear",
    border_mode: str = "constant",
    border_value: float | Sequence[float] = 0,
    layout: str = "NCHW",
    out_dtype: DTypeLike = None,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.warp_perspective`, as arrays."""
    images = np.moveaxis(data, 1, 3) if layout == "NCHW" else data
    count, *sides, channels = images.shape
    matrices = np.broadcast_to(np.asarray(matrix, "float64"), (count, 3, 3))
    out_dtype = np.dtype(out_dtype or data.dtype)
    border = as_pixel(border_value, channels, data.dtype)
    result = np.empty((count, *out_size, channels), out_dtype)
    row, column = grid_of(out_size)
    for image, given, out in zip(images, matrices, result):
        if not (np.abs(given) <= MAX_COEFFICIENT).all():  # NaN too
            out[...] = border
            continue
        x, y, z = (across * column + (down * row + offset) for across, down, offset in given)
        z = np.where(np.abs(z) > SMALLEST_DIVISOR, z, 1)
        with np.errstate(over="ignore"):
            places = [_in_pixels(term / z, side, units) for term, side in zip((y, x), sides)]
        (ys, fy), (xs, fx) = (split(place, interpolation) for place in places)
        value = sampled(image, ys, xs, fy, fx, interpolation, border_mode, border)
        out[...] = np.rint(value) if out_dtype == np.uint8 else value
    return np.moveaxis(result, 3, 1) if layout == "NCHW" else result


def _in_pixels(place: np.ndarray, side: int, units: str) -> np.ndarray:
    if units == "pixels":
        return place
    return place * ((side - (units == "corners")) / 2) + (side - 1) / 2
