"""RetinaNet, FCOS and SSD of torchvision with results of fixed shapes; see `_rows`.

The best candidates above a threshold are those of the best candidates that are above it: so the number of
candidates is known. What is not above it, NaN too, gets the score of a row that is dropped, so that it is not
among the best in place of what is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import boxes

from ._rows import DROPPED, filled, kept

KINDS = (RetinaNet, FCOS, SSD)
Found = dict[str, Tensor]


def replacements(model: RetinaNet | FCOS | SSD, counts: list[Tensor]) -> list[tuple[Any, str, Any]]:
    """The methods that depend on data, and what takes their place."""
    best = _best_of_classes if isinstance(model, SSD) else _best_of_levels
    return [(model, "postprocess_detections", partial(_postprocess_detections, model, best, counts))]


def _postprocess_detections(
    model: RetinaNet | FCOS | SSD,
    best: Any,
    counts: list[Tensor],
    head_outputs: dict[str, Any],
    anchors: Sequence[Any],
    image_shapes: Sequence[tuple[int, int]],
) -> list[Found]:
    """The best detections of each image, each class suppressed on its own."""
    counts.clear()
    detections = []
    for image, shape in enumerate(image_shapes):
        places, scores, labels = best(model, head_outputs, anchors, image)
        places = boxes.clip_boxes_to_image(places, shape)
        takes_part = scores > DROPPED
        rows, is_there, count = kept(
            places, scores, labels, takes_part, model.nms_thresh, model.detections_per_img
        )
        named = {"boxes": places, "scores": scores, "labels": labels}
        detections.append({name: filled(each[rows], is_there) for name, each in named.items()})
        counts.append(count)
    return detections


def _best_of_levels(
    model: RetinaNet | FCOS, head_outputs: dict[str, list[Tensor]], anchors: list[list[Tensor]], image: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best boxes of each level of features, their scores and labels."""
    decode = model.box_coder.decode if isinstance(model, FCOS) else model.box_coder.decode_single
    found = []
    for level, places in enumerate(anchors[image]):
        of_level = {name: outputs[level][image] for name, outputs in head_outputs.items()}
        scores = torch.sigmoid(of_level["cls_logits"])
        if isinstance(model, FCOS):
            scores = torch.sqrt(scores * torch.sigmoid(of_level["bbox_ctrness"]))
        best, at = _above(model, scores.flatten()).topk(min(model.topk_candidates, scores.numel()))
        classes = scores.shape[-1]
        rows = at // classes
        found.append((decode(of_level["bbox_regression"][rows], places[rows]), best, at % classes))
    places, scores, labels = map(torch.cat, zip(*found))
    return places, scores, labels


def _best_of_classes(
    model: SSD, head_outputs: dict[str, Tensor], anchors: list[Tensor], image: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best boxes of each class but the background, their scores and labels."""
    places = model.box_coder.decode_single(head_outputs["bbox_regression"][image], anchors[image])
    scores = torch.softmax(head_outputs["cls_logits"][image], -1)[:, 1:].permute(1, 0)
    classes, count = scores.shape
    best, at = _above(model, scores).topk(min(model.topk_candidates, count), dim=1)
    labels = torch.arange(1, classes + 1, device=best.device).repeat_interleave(best.shape[1])
    return places[at.reshape(-1)], best.reshape(-1), labels


def _above(model: RetinaNet | FCOS | SSD, scores: Tensor) -> Tensor:
    return torch.where(scores > model.score_thresh, scores, torch.full_like(scores, DROPPED))
