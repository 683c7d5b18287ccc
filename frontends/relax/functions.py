"""What models call in place of torchvision's functions whose results have as many rows as the data says."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ImportFailure
from ._operators import batched_nms as _batched_nms


def batched_nms(
    boxes: Tensor,
    scores: Tensor,
    class_ids: Tensor,
    iou_threshold: float,
    *,
    score_threshold: float | None = None,
    max_output_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`topi_ext.batched_nms` for models that are imported into Relax.

    Returns the indices of the kept boxes, followed by -1, of which there are `max_output_size` in all, or
    else as many as there are boxes; and the number of kept boxes, int32. Boxes with a score that is not
    greater than a threshold are ignored; without one, boxes of any score take part. In torch, torchvision
    computes it.
    """
    if boxes.dim() != 2 or scores.dim() != 1:
        raise ImportFailure(
            f"boxes must be Nx4 and scores N, of one image, not {list(boxes.shape)} and {list(scores.shape)}"
        )
    size = len(boxes) if max_output_size is None else max_output_size
    return _batched_nms(boxes, scores, class_ids, iou_threshold, score_threshold, size)


def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    *,
    score_threshold: float | None = None,
    max_output_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`batched_nms` of boxes of a single class."""
    return batched_nms(
        boxes,
        scores,
        torch.zeros_like(scores, dtype=torch.int64),
        iou_threshold,
        score_threshold=score_threshold,
        max_output_size=max_output_size,
    )
