"""How torchvision has spelled `batched_nms`, from 0.9 to 0.26, in functions of our own.

What differed: which function the compiler saw as a whole while tracing, from how many numbers on the loop
over classes was taken, whether tracing could take it, and where no boxes were looked for. The two ways
themselves, moving boxes apart by class and the loop, are as they were in 0.10.
"""

import torch
from torch import Tensor
from torchvision import _is_tracing
from torchvision.ops import nms

_script_if_tracing = torch.jit._script_if_tracing


@_script_if_tracing
def of_0_9(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Always the trick, and scripted as a whole while tracing."""
    if boxes.numel() == 0:
        return torch.empty((0,), dtype=torch.int64, device=boxes.device)
    else:
        greatest = boxes.max()
        offsets = idxs.to(boxes) * (greatest + torch.tensor(1).to(boxes))
        moved = boxes + offsets[:, None]
        return nms(moved, scores, iou_threshold)


@_script_if_tracing
def trick(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    if boxes.numel() == 0:
        return torch.empty((0,), dtype=torch.int64, device=boxes.device)
    greatest = boxes.max()
    offsets = idxs.to(boxes) * (greatest + torch.tensor(1).to(boxes))
    moved = boxes + offsets[:, None]
    return nms(moved, scores, iou_threshold)


@_script_if_tracing
def loop(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(idxs):
        members = torch.where(idxs == class_id)[0]
        kept = nms(boxes[members], scores[members], iou_threshold)
        mask[members[kept]] = True
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def of_0_10(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """One threshold for all devices; never the loop while tracing."""
    if boxes.numel() > 4_000 and not _is_tracing():
        return loop(boxes, scores, idxs, iou_threshold)
    else:
        return trick(boxes, scores, idxs, iou_threshold)


def of_0_12(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """A threshold for each kind of device."""
    if boxes.numel() > (4000 if boxes.device.type == "cpu" else 20000) and not _is_tracing():
        return loop(boxes, scores, idxs, iou_threshold)
    else:
        return trick(boxes, scores, idxs, iou_threshold)


def of_0_26(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """A greater one for CUDA."""
    if boxes.numel() > (4000 if boxes.device.type == "cpu" else 100_000) and not _is_tracing():
        return loop(boxes, scores, idxs, iou_threshold)
    else:
        return trick(boxes, scores, idxs, iou_threshold)


def without_is_tracing(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """As users have copied it: a trace of many boxes holds the loop, scripted."""
    if boxes.numel() > 4_000:
        return loop(boxes, scores, idxs, iou_threshold)
    else:
        return trick(boxes, scores, idxs, iou_threshold)


SPELLINGS = (of_0_9, of_0_10, of_0_12, of_0_26, without_is_tracing)
