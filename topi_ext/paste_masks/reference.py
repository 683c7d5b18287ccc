"""What `paste_masks` answers, in NumPy: mask by mask, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_COORDINATE = 1e9


def paste_masks(
    masks: np.ndarray, boxes: np.ndarray, image_size: Sequence[int], *, threshold: float | None = None
) -> np.ndarray:
    """The arguments and the result of `topi_ext.paste_masks`, as arrays."""
    result = np.zeros((len(masks), 1, *image_size), "float32")
    for mask, box, image in zip(masks[:, 0].astype("float32"), boxes.astype("float32"), result[:, 0]):
        if np.isfinite(box).all():
            left, top, right, bottom = grown(box, len(mask))
            rows = weights(top, bottom, len(mask), image_size[0])
            columns = weights(left, right, len(mask), image_size[1])
            image[:] = rows @ mask @ columns.T
    return result if threshold is None else (result >= np.float32(threshold)).astype("uint8")


def grown(box: np.ndarray, side: int) -> np.ndarray:
    """The corners of the box of a mask with its border, as integers."""
    first, second = np.split(box, 2)
    with np.errstate(over="ignore", invalid="ignore"):
        half = ((second - first) * np.float32(0.5)) * np.float32((side + 2) / side)
        centre = (second + first) * np.float32(0.5)
        corners = np.concatenate([centre - half, centre + half])
    return np.trunc(np.clip(corners, -MAX_COORDINATE, MAX_COORDINATE)).astype("int64")


def weights(first: int, last: int, side: int, length: int) -> np.ndarray:
    """How much each pixel of the mask counts in each of the image, along one axis."""
    weights = np.zeros((length, side + 2), "float32")
    at = np.arange(max(first, 0), min(last + 1, length))
    ratio = np.float32(side + 2) / np.float32(max(last - first + 1, 1))
    source = np.maximum((at - first).astype("float32") + np.float32(0.5), 0) * ratio - np.float32(0.5)
    source = np.clip(source, 0, side + 1).astype("float32")
    low = source.astype("int64")
    np.add.at(weights, (at, low), 1 - (source - low))
    np.add.at(weights, (at, np.minimum(low + 1, side + 1)), source - low)
    return weights[:, 1:-1]
