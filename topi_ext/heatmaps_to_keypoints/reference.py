"""What `heatmaps_to_keypoints` answers, in NumPy: map by map, scaled in float64."""

from __future__ import annotations

import numpy as np

MAX_SIDE, MAX_COORDINATE = 4096, 1e9


def heatmaps_to_keypoints(maps: np.ndarray, rois: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The arguments and the results of `topi_ext.heatmaps_to_keypoints`, as arrays."""
    count, keypoints = maps.shape[:2]
    places = np.zeros((count, keypoints, 3), "float32")
    scores = np.zeros((count, keypoints), "float32")
    for number, roi in enumerate(rois.astype("float32")):
        if not is_somewhere(roi):
            continue
        height, width = pixels(roi)
        scaled = upsampled(maps[number], height, width).reshape(keypoints, -1)
        places[number] = np.stack(centres(roi, scaled.argmax(axis=1)), axis=-1)
        scores[number] = scaled.max(axis=1)
    return places, scores


def is_somewhere(roi: np.ndarray) -> bool:
    return bool((np.abs(roi) <= MAX_COORDINATE).all())


def pixels(roi: np.ndarray) -> tuple[int, int]:
    """How high and wide a map is once it is scaled to its roi."""
    down, across = np.ceil(np.minimum(_sides(roi), MAX_SIDE)).astype("int64")
    return down, across


def centres(roi: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What keypoints are at these places of a scaled map, counted row by row: x, y and 1."""
    width = pixels(roi)[1]
    step_down, step_across = _sides(roi) / pixels(roi)
    x, y = position % width, position // width
    return (x + 0.5) * step_across + roi[0], (y + 0.5) * step_down + roi[1], np.ones(len(position))


def upsampled(maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """Maps (..., M, N) as (..., height, width), in float64."""
    return _weights(maps.shape[-2], height) @ maps.astype("float64") @ _weights(maps.shape[-1], width).T


def _sides(roi: np.ndarray) -> np.ndarray:
    """Height and width, each at least 1."""
    x1, y1, x2, y2 = roi
    return np.maximum(np.array([y2 - y1, x2 - x1], "float32"), 1)


def _weights(length: int, pixels: int) -> np.ndarray:
    """How much each element counts in each pixel, along one axis."""
    source = (np.arange(pixels) + 0.5) * length / pixels - 0.5
    low = np.floor(source).astype("int64")
    weights = np.zeros((pixels, length))
    for neighbour in (-1, 0, 1, 2):
        at = np.clip(low + neighbour, 0, length - 1)
        np.add.at(weights, (np.arange(pixels), at), _cubic(np.abs(source - low - neighbour)))
    return weights


def _cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """The kernel of bicubic interpolation, for distances up to 2."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)
