"""Detections with a fixed number of rows.

Where torchvision drops rows, here all of them stay, and those to be dropped get a score that the suppression
ignores. Where it keeps as many as there are, here the result has as many rows as there can be, and those
beyond the last one are zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _operators as operators

DROPPED, LEAST = -1.0, -0.5  # the score of a row that does not take part, and what is below any other


def kept(
    places: Tensor, scores: Tensor, class_ids: Tensor, takes_part: Tensor, iou_threshold: float, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that a suppression keeps, at most `size`, which of them are there, and how many."""
    size = min(size, len(scores))
    scores = torch.where(takes_part, scores, torch.full_like(scores, DROPPED))
    indices, count = operators.batched_nms(places, scores, class_ids, iou_threshold, LEAST, size)
    return indices.clamp(min=0), indices >= 0, count


def filled(rows: Tensor, is_there: Tensor) -> Tensor:
    """The rows, zeros in place of those that are not there."""
    return torch.where(is_there.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))
