"""Non-maximum suppression with what detectors have around it, and with what only looks like that."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torchvision
from hypothesis import strategies as st
from torch import nn

_thresholds = st.sampled_from([0.5, 0.5, 0.3, 0.7, 0.0, 1.0, -0.5, 0.45])
_step = st.fixed_dictionaries(
    {
        "how": st.sampled_from(["nms", "nms", "batched", "offset", "offset", "loop"]),
        "iou": _thresholds,
        # The offset between classes: what is enough, what is not, and what the passes must not take for one.
        "offset": st.sampled_from(["max + 1", "max", "max - min + 1", "1000", "5", "-1000", "0"]),
        "swapped": st.booleans(),
        "filter": st.sampled_from([None, None, "score >", "score <", "size", "score where"]),
        "score": st.sampled_from([0.05, 0.3, 0.0, -1.0, 0.9, 2.0, float("inf")]),
        "top before": st.sampled_from([None, None, 5, 50]),
        "top after": st.sampled_from([None, None, 3, 100, 0]),
        "top how": st.sampled_from(["slice", "topk", "slice from 1"]),
        "clip": st.booleans(),
    }
)


def descriptions() -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "boxes": st.sampled_from([12, 12, 30, 1, 0]),
            "classes": st.sampled_from([1, 2, 3]),
            "seed": st.integers(0, 5),
            "tied": st.booleans(),
            "steps": st.lists(_step, min_size=1, max_size=2),
            "outputs": st.lists(
                st.sampled_from(["boxes", "scores", "labels", "kept", "count", "sum"]),
                min_size=1,
                max_size=3,
                unique=True,
            ),
        }
    )


def build(parts: Any) -> tuple[nn.Module, list[np.ndarray]]:
    random = np.random.default_rng(parts["seed"])
    count = parts["boxes"]
    corner, size = random.uniform(-5, 30, (count, 2)), random.uniform(0, 25, (count, 2))
    boxes = np.concatenate([corner, corner + size], 1).astype("float32")
    scores = random.uniform(0, 1, count).astype("float32")
    if parts["tied"]:
        scores = np.round(scores * 4) / 4
    labels = random.integers(0, parts["classes"], count)
    return Detector(parts), [boxes, scores.astype("float32"), labels]


class Detector(nn.Module):
    def __init__(self, parts: Any) -> None:
        super().__init__()
        self._parts = parts

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> Any:
        kept = torch.arange(1)
        for step in self._parts["steps"]:
            boxes, scores, labels = _before(step, boxes, scores, labels)
            kept = _suppress(step, boxes, scores, labels)
            kept = _after(step, kept, scores)
            boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
        found = {"boxes": boxes, "scores": scores, "labels": labels, "kept": kept}
        found["count"] = (scores > 0.2).to(torch.int64)
        found["sum"] = boxes + scores[:, None]
        outputs = tuple(found[name] for name in self._parts["outputs"])
        return outputs[0] if len(outputs) == 1 else outputs


def _before(step: Any, boxes: Any, scores: Any, labels: Any) -> Any:
    if step["clip"]:
        boxes = boxes.clamp(0, 40)
    if step["top before"] is not None:
        count = min(step["top before"], scores.shape[0])
        scores, order = scores.topk(count)
        boxes, labels = boxes[order], labels[order]
    if step["filter"]:
        limit = step["score"]
        if step["filter"] == "score >":
            keep = scores > limit
        elif step["filter"] == "score <":
            keep = limit < scores if step["swapped"] else scores < limit
        elif step["filter"] == "size":
            size = boxes[:, 2:] - boxes[:, :2]
            keep = (size[:, 0] >= 3.0) & (size[:, 1] >= 3.0)
        else:
            keep = torch.where(scores >= limit)[0]
        boxes, scores, labels = boxes[keep], scores[keep], labels[keep]
    return boxes, scores, labels


def _suppress(step: Any, boxes: Any, scores: Any, labels: Any) -> Any:
    nms, how = torchvision.ops.nms, step["how"]
    if how == "nms":
        return nms(boxes, scores, step["iou"])
    if how == "batched":
        return torchvision.ops.boxes._batched_nms_coordinate_trick(boxes, scores, labels, step["iou"])
    if how == "loop":
        return torchvision.ops.boxes._batched_nms_vanilla(boxes, scores, labels, step["iou"])
    distance: Any = {
        "max + 1": lambda: boxes.max() + 1,
        "max": lambda: boxes.max(),
        "max - min + 1": lambda: boxes.max() - boxes.min() + 1,
    }.get(step["offset"], lambda: float(step["offset"]))()
    classes_as_float = labels.to(boxes.dtype)
    offsets = distance * classes_as_float if step["swapped"] else classes_as_float * distance
    moved = offsets[:, None] + boxes if step["swapped"] else boxes + offsets[:, None]
    return nms(moved, scores, step["iou"])


def _after(step: Any, kept: Any, scores: Any) -> Any:
    count = step["top after"]
    if count is None:
        return kept
    if step["top how"] == "slice":
        return kept[:count]
    if step["top how"] == "slice from 1":
        return kept[1 : count + 1]
    return kept[scores[kept].sort(descending=True, stable=True)[1][:count]]
