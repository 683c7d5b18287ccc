"""What `deformable_attention` answers, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def deformable_attention(
    value: np.ndarray,
    points: np.ndarray,
    weights: np.ndarray,
    *,
    levels: Sequence[tuple[int, int, int]],
    align_corners: bool = False,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.deformable_attention`, as arrays."""
    numbers, maps = np.arange(len(value))[:, None, None], value.astype("float32")
    x, y = np.moveaxis(points.astype("float32"), -1, 0)
    total = np.zeros((*points.shape[:2], value.shape[-1]), "float32")
    pixel = point = 0
    for height, width, count in levels:
        map_ = maps[:, pixel : pixel + height * width].reshape(-1, height, width, value.shape[-1])
        part = slice(point, point + count)
        column = _in_pixels(x[..., part], width, align_corners)
        row = _in_pixels(y[..., part], height, align_corners)
        weight = weights[..., part].astype("float32")
        with np.errstate(invalid="ignore"):
            read = (column > -1) & (column < width) & (row > -1) & (row < height)
        column, row = np.where(read, column, 0), np.where(read, row, 0)
        left, top = np.floor(column).astype(int), np.floor(row).astype(int)
        right, below = column - left, row - top
        for i, across in enumerate((1 - right, right)):
            for j, down in enumerate((1 - below, below)):
                on_map = read & (left + i >= 0) & (left + i < width) & (top + j >= 0) & (top + j < height)
                found = map_[numbers, np.where(on_map, top + j, 0), np.where(on_map, left + i, 0)]
                product = found * (across * down * weight)[..., None]
                total += np.where(on_map[..., None], product, 0).sum(2)
        pixel, point = pixel + height * width, point + count
    return total.astype(value.dtype)


def _in_pixels(coordinate: np.ndarray, length: int, align_corners: bool) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        if align_corners:
            return (coordinate + 1) / 2 * (length - 1)
        return ((coordinate + 1) * length - 1) / 2
