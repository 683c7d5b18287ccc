"""The reference of `batched_nms` in NumPy: brute force, in float32, each operation rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..sort.reference import argsort


def batched_nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    class_ids: np.ndarray,
    iou_threshold: float,
    *,
    score_threshold: float | None = None,
    max_output_size: int | None = None,
    valid_count: ArrayLike | None = None,
) -> tuple[np.ndarray, Any]:
    """The arguments and the two results of `topi_ext.batched_nms`, as arrays."""
    if boxes.ndim == 2:
        valid_count = None if valid_count is None else np.reshape(valid_count, 1)
        indices, count = batched_nms(
            boxes[None],
            scores[None],
            class_ids[None],
            iou_threshold,
            score_threshold=score_threshold,
            max_output_size=max_output_size,
            valid_count=valid_count,
        )
        return indices[0], count[0]
    batch, length = scores.shape
    size = length if max_output_size is None else max_output_size
    valid = np.full(batch, length) if valid_count is None else np.clip(valid_count, 0, length)
    indices, count = np.full((batch, size), -1, "int64"), np.zeros(batch, "int32")
    for row in range(batch):
        order = argsort(scores[row, : valid[row]].astype("float32"), ascending=False)
        if score_threshold is not None:
            order = order[scores[row, order].astype("float32") > np.float32(score_threshold)]
        kept = order[_greedy(boxes[row, order], class_ids[row, order], np.float32(iou_threshold))][:size]
        indices[row, : len(kept)], count[row] = kept, len(kept)
    return indices, count


def iou(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The IoU of one box with others.

    How minimum and maximum treat NaN does not matter: with a NaN coordinate, or two infinite ones that make a
    width or height NaN, the area is NaN too, and so is the IoU.
    """
    x1, y1, x2, y2 = np.asarray(box, "float32")
    others_x1, others_y1, others_x2, others_y2 = np.moveaxis(others.astype("float32"), -1, 0)
    with np.errstate(all="ignore"):
        width = np.maximum(np.minimum(x2, others_x2) - np.maximum(x1, others_x1), 0)
        height = np.maximum(np.minimum(y2, others_y2) - np.maximum(y1, others_y1), 0)
        area, others_area = (x2 - x1) * (y2 - y1), (others_x2 - others_x1) * (others_y2 - others_y1)
        intersection = width * height
        return intersection / ((area + others_area) - intersection)


def _greedy(boxes: np.ndarray, class_ids: np.ndarray, iou_threshold: np.float32) -> np.ndarray:
    """Which boxes are kept, for boxes in the order in which they are visited."""
    alive = np.ones(len(boxes), bool)
    for i in range(len(boxes)):
        if alive[i]:
            rivals = i + 1 + np.flatnonzero(alive[i + 1 :] & (class_ids[i + 1 :] == class_ids[i]))
            alive[rivals] = ~(iou(boxes[i], boxes[rivals]) > iou_threshold)
    return alive
