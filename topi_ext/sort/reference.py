"""What the sorts of this folder answer, in NumPy: stable, NaN the greatest, -0.0 equal to 0.0."""

from __future__ import annotations

import numpy as np


def argsort(data: np.ndarray, axis: int = -1, ascending: bool = True) -> np.ndarray:
    """The indices that sort `data`; ties keep their order in both directions."""
    if ascending:
        return np.argsort(data, axis=axis, kind="stable")
    # NumPy has no stable descending sort; back to front, an ascending one has the ties the other way round.
    back_to_front = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
    return np.flip(data.shape[axis] - 1 - back_to_front, axis)


def sort(data: np.ndarray, axis: int = -1, ascending: bool = True) -> np.ndarray:
    return np.take_along_axis(data, argsort(data, axis, ascending), axis)


def topk(data: np.ndarray, k: int, axis: int = -1, ascending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` values and their indices; all of them if `k` is less than 1."""
    k = k if k > 0 else data.shape[axis]
    indices = np.take(argsort(data, axis, ascending), np.arange(k), axis)
    return np.take_along_axis(data, indices, axis), indices


def sort_by_key(
    keys: np.ndarray, values: np.ndarray, axis: int = -1, ascending: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    indices = argsort(keys, axis, ascending)
    return np.take_along_axis(keys, indices, axis), np.take_along_axis(values, indices, axis)


def class_then_score(class_id: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The int64 keys of `order.class_then_score`."""
    bits = np.where(score == 0, np.float32(0), score).astype(np.float32).view(np.int32).astype(np.int64)
    ordered = np.where(np.isnan(score), 0x7FFFFFFF, np.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    return (class_id.astype(np.int64) << 32) + (0x7FFFFFFF - ordered)
