"""What `warp_affine` answers, in NumPy: coordinates in float64, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

MAX_COORDINATE = 1e9  # pixels from the origin; what is farther counts as this far
MAX_COEFFICIENT = 2.0**500  # a coefficient beyond counts as infinite
SMALLEST_DIVISOR = 1e-8  # of a projective map; what is smaller counts as 1
UNITS = 1024  # to a pixel, of a coordinate of OpenCV
INT_MIN = -(2**31)


def warp_affine(
    data: np.ndarray,
    matrix: ArrayLike,
    out_size: Sequence[int],
    *,
    inverse_map: bool = False,
    mode: str = "exact",
    interpolation: str = "bilinear",
    border_mode: str = "constant",
    border_value: float | Sequence[float] = 0,
    layout: str = "NCHW",
    out_dtype: DTypeLike = None,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.warp_affine`, as arrays."""
    images = np.moveaxis(data, 1, 3) if layout == "NCHW" else data
    count, *_, channels = images.shape
    matrices = np.broadcast_to(np.asarray(matrix, "float64"), (count, 2, 3))
    out_dtype = np.dtype(out_dtype or data.dtype)
    border = as_pixel(border_value, channels, data.dtype)
    result = np.empty((count, *out_size, channels), out_dtype)
    for image, given, out in zip(images, matrices, result):
        coefficients = given if inverse_map else inverse_affine(given)
        if not (np.abs([given, coefficients]) <= MAX_COEFFICIENT).all():  # NaN too
            out[...] = border
            continue
        place = _exact_place if mode == "exact" else _cv2_place
        (ys, fy), (xs, fx) = place(coefficients, out_size, interpolation)
        value = sampled(image, ys, xs, fy, fx, interpolation, border_mode, border)
        if data.dtype == np.uint8 and mode == "cv2_fixed":
            value = np.floor(value + 0.5)
        elif out_dtype == np.uint8:
            value = np.rint(value)
        out[...] = value
    return np.moveaxis(result, 3, 1) if layout == "NCHW" else result


def sampled(
    image: np.ndarray,
    ys: np.ndarray,
    xs: np.ndarray,
    fy: np.ndarray,
    fx: np.ndarray,
    interpolation: str,
    border_mode: str,
    border: np.ndarray,
) -> np.ndarray:
    """The image at rows and columns with their fractions, in float64."""
    taps = [(ys, xs, (1 - fy) * (1 - fx))]
    if interpolation == "bilinear":
        taps += [(ys, xs + 1, (1 - fy) * fx), (ys + 1, xs, fy * (1 - fx)), (ys + 1, xs + 1, fy * fx)]
    return sum(_pixels(image, y, x, border_mode, border) * weight[..., None] for y, x, weight in taps)


def inverse_affine(matrix: ArrayLike) -> np.ndarray:
    """The map back, computed as OpenCV does; that of a singular matrix takes everything to (0, 0)."""
    (a, b, c), (d, e, f) = np.asarray(matrix, "float64")
    with np.errstate(all="ignore"):
        determinant = a * e - b * d
        scale = 1 / determinant if determinant != 0 else np.float64(0)
        a, b, d, e = e * scale, -scale * b, -scale * d, a * scale
        return np.array([[a, b, -a * c - b * f], [d, e, -d * c - e * f]])


def as_pixel(value: float | Sequence[float], channels: int, dtype: DTypeLike) -> np.ndarray:
    """The border value in each channel, in float64: what data of this type can hold."""
    pixel = np.broadcast_to(np.asarray(value, "float64"), channels)
    if np.dtype(dtype).kind == "f":
        return pixel.astype(dtype).astype("float64")
    return np.rint(pixel).clip(np.iinfo(dtype).min, np.iinfo(dtype).max)


def _exact_place(
    coefficients: np.ndarray, out_size: Sequence[int], interpolation: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each pixel of the result, the row and column of the source with their fractions."""
    row, column = grid_of(out_size)
    return [
        split(across * column + (down * row + offset), interpolation)
        for across, down, offset in coefficients[::-1]
    ]


def split(place: np.ndarray, interpolation: str) -> tuple[np.ndarray, np.ndarray]:
    """Places along an axis as the pixels before them, or next to them, and fractions."""
    place = np.clip(place, -MAX_COORDINATE, MAX_COORDINATE)
    whole = np.floor(place + 0.5 if interpolation == "nearest" else place)
    return whole.astype("int64"), (place - whole) * (interpolation == "bilinear")


def _cv2_place(
    coefficients: np.ndarray, out_size: Sequence[int], interpolation: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same in the fixed point of OpenCV 4: fractions are 32nds, and sums of 32 bits wrap around."""
    row, column = grid_of(out_size)
    places = []
    for across, down, offset in coefficients[::-1]:
        half = UNITS // (2 if interpolation == "nearest" else 64)
        units = _cv_round((down * row + offset) * UNITS) + half + _cv_round(across * column * UNITS)
        units = (units - INT_MIN) % 2**32 + INT_MIN
        fraction = (units % UNITS // 32) / 32 * (interpolation == "bilinear")
        places.append((np.clip(units // UNITS, -(2**15), 2**15 - 1), fraction))
    return places


def _cv_round(value: np.ndarray) -> np.ndarray:
    """As an int32: halves to the even one, and what does not fit to the least."""
    value = np.rint(value)
    return np.where(np.abs(value) < 2**31, value, INT_MIN).astype("int64")


def grid_of(out_size: Sequence[int]) -> np.ndarray:
    """The row and the column of each pixel."""
    height, width = out_size
    return np.mgrid[:height, :width].astype("float64")


def _pixels(
    image: np.ndarray, y: np.ndarray, x: np.ndarray, border_mode: str, border: np.ndarray
) -> np.ndarray:
    """The pixels in these rows and columns, in float64."""
    height, width, _ = image.shape
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if border_mode == "constant":
        y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
        return np.where(inside[..., None], image[y, x].astype("float64"), border)
    continued = {"replicate": _replicate, "reflect": _reflect, "reflect_101": _reflect_101}[border_mode]
    return image[continued(y, height), continued(x, width)].astype("float64")


def _replicate(at: np.ndarray, length: int) -> np.ndarray:
    """aaa|abcd|ddd"""
    return np.clip(at, 0, length - 1)


def _reflect(at: np.ndarray, length: int) -> np.ndarray:
    """cba|abcd|dcb"""
    at = at % (2 * length)
    return np.minimum(at, 2 * length - 1 - at)


def _reflect_101(at: np.ndarray, length: int) -> np.ndarray:
    """dcb|abcd|cba"""
    period = max(2 * length - 2, 1)
    at = at % period
    return np.minimum(at, period - at) if length > 1 else at * 0
