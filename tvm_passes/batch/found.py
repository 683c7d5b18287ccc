"""Which outputs of a network are the detections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# Boxes, scores, labels, and masks or keypoints if there are any. They are arrays; small masks of a network
# on a GPU are a tensor there.
Found = dict[str, Any]


def detections_in(outputs: Mapping[str, Any]) -> Found | None:
    """Boxes, scores, labels, and masks and keypoints if there are any, by name; or None.

    `outputs` are arrays or tensors by name. Where the names do not tell, as in many ONNX files, types do:
    boxes are the only float tensor of shape (n, 4), labels the only integer vector, scores the only float
    vector, masks the only float tensor of rank 4.
    """
    arrays = {
        name: value if isinstance(value, torch.Tensor) else np.asarray(value)
        for name, value in outputs.items()
    }
    if {"boxes", "scores", "labels"} <= set(arrays):
        return {
            name: arrays[name]
            for name in ("boxes", "scores", "labels", "masks", "keypoints")
            if name in arrays
        }

    def only(rank: int, kinds: str, *last: int) -> Any:
        fitting = [
            array
            for array in arrays.values()
            if array.ndim == rank and _kind(array) in kinds and array.shape[rank - len(last) :] == last
        ]
        return fitting[0] if len(fitting) == 1 else None

    sought = {
        "boxes": only(2, "f", 4),
        "scores": only(1, "f"),
        "labels": only(1, "iu"),
        "masks": only(4, "f"),
    }
    found = {name: array for name, array in sought.items() if array is not None}
    lengths = {len(array) for array in found.values()}
    return found if {"boxes", "scores", "labels"} <= set(found) and len(lengths) == 1 else None


def _kind(array: Any) -> str:
    """NumPy's letter for the kind of its elements."""
    if isinstance(array, torch.Tensor):
        return "f" if array.is_floating_point() else "i"
    return str(array.dtype.kind)
