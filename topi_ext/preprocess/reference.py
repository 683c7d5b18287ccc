"""What `preprocess` answers, in NumPy: in float64, rounded once at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def preprocess(
    image: np.ndarray | Sequence[np.ndarray],
    size: Sequence[int],
    padded_size: Sequence[int] | None = None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    swap_channels: bool = False,
    image_layout: str = "NHWC",
    layout: str = "NCHW",
    dtype: str = "float32",
    padded_channels: int | None = None,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.preprocess`, as arrays."""
    if not isinstance(image, np.ndarray):
        of_each = [
            preprocess(
                each,
                size,
                padded_size,
                mean=mean,
                std=std,
                swap_channels=swap_channels,
                image_layout=image_layout,
                layout=layout,
                dtype=dtype,
                padded_channels=padded_channels,
            )
            for each in image
        ]
        return np.concatenate(of_each)
    images = image.astype("float64")
    if image_layout == "NCHW":
        images = np.moveaxis(images, 1, 3)
    if swap_channels:
        images = images[..., ::-1]
    images = (_resized(_resized(images, 1, size[0]), 2, size[1]) - mean) / np.asarray(std, "float64")
    height, width = padded_size or size
    more = (padded_channels or len(mean)) - len(mean)
    sides = [(0, 0), (0, height - size[0]), (0, width - size[1]), (0, more)]
    images = np.pad(images, sides)
    if layout == "NCHW":
        images = np.moveaxis(images, 3, 1)
    return np.ascontiguousarray(images.astype(dtype))


def _resized(images: np.ndarray, axis: int, length: int) -> np.ndarray:
    given = images.shape[axis]
    source = np.maximum((np.arange(length) + 0.5) * given / length - 0.5, 0)
    low = source.astype("int64")
    fraction = (source - low).reshape([-1 if at == axis else 1 for at in range(images.ndim)])
    below, above = (images.take(at, axis) for at in (low, np.minimum(low + 1, given - 1)))
    return below * (1 - fraction) + above * fraction
