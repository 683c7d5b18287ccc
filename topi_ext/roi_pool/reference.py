"""What `roi_pool` and `ps_roi_pool` answer, in NumPy: bin by bin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FARTHEST = np.float32(2**20)  # corners beyond this are moved there, which changes no bin


def roi_pool(
    data: np.ndarray, rois: np.ndarray, *, pooled_size: int | Sequence[int], spatial_scale: float
) -> np.ndarray:
    """The arguments and the result of `topi_ext.roi_pool`, as arrays."""
    return _pooled(data, rois, pooled_size, spatial_scale, by_position=False)


def ps_roi_pool(
    data: np.ndarray, rois: np.ndarray, *, pooled_size: int | Sequence[int], spatial_scale: float
) -> np.ndarray:
    """The arguments and the result of `topi_ext.ps_roi_pool`, as arrays."""
    return _pooled(data, rois, pooled_size, spatial_scale, by_position=True)


def _pooled(
    data: np.ndarray,
    rois: np.ndarray,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    by_position: bool,
) -> np.ndarray:
    down, across = (pooled_size, pooled_size) if isinstance(pooled_size, int) else pooled_size
    channels = data.shape[1] // (down * across if by_position else 1)
    result = np.zeros((len(rois), channels, down, across), "float32")
    for row, (index, *corners) in enumerate(rois.astype("float32")):
        if not np.isfinite([index, *corners]).all() or not -1 < index < len(data):
            continue
        image = data[int(index)].astype("float32")
        with np.errstate(over="ignore"):
            x1, y1, x2, y2 = (_rounded(np.float32(corner) * np.float32(spatial_scale)) for corner in corners)
        for p, (top, bottom) in enumerate(_bins(y1, y2, down, image.shape[1], by_position)):
            for q, (left, right) in enumerate(_bins(x1, x2, across, image.shape[2], by_position)):
                if top < bottom and left < right:
                    pixels = image[:, top:bottom, left:right].reshape(len(image), -1)
                    if by_position:
                        result[row, :, p, q] = pixels.mean(1)[p * across + q :: down * across]
                    else:
                        result[row, :, p, q] = _largest(pixels)
    return result.astype(data.dtype)


def _bins(
    first: np.float32, last: np.float32, count: int, length: int, by_position: bool
) -> list[tuple[int, int]]:
    """The pixels of each bin along a side, as (begin, end)."""
    size = np.maximum(last - first + np.float32(not by_position), np.float32(1)) / np.float32(count)
    end = length - by_position  # as torchvision has it
    places = np.arange(count, dtype="float32")
    begins, ends = np.floor(places * size) + first, np.ceil((places + 1) * size) + first
    return [(int(begin), int(end)) for begin, end in zip(begins.clip(0, end), ends.clip(0, end))]


def _rounded(corner: np.float32) -> np.float32:
    """To the nearest integer, halves away from zero."""
    corner = np.clip(corner, -FARTHEST, FARTHEST)
    return np.copysign(np.floor(np.abs(corner) + np.float32(0.5)), corner)


def _largest(pixels: np.ndarray) -> np.ndarray:
    """The largest along the last axis, as by `value > best`: NaN is never chosen."""
    lowest = np.finfo("float32").min
    return np.where(np.isnan(pixels), lowest, pixels).max(1).clip(lowest)
