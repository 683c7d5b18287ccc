"""Faster and Mask R-CNN of torchvision with results of fixed shapes.

Where torchvision drops rows, here all of them stay, and those to be dropped get a score that the suppression
ignores. Where it keeps as many as there are, here the result has as many rows as there can be, and those
beyond the last one are zeros.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from unittest import mock

import torch
from torch import Tensor
from torchvision.models.detection import roi_heads, rpn
from torchvision.models.detection import transform as transforms
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import MultiScaleRoIAlign, boxes

from . import _operators as operators

DROPPED, LEAST = -1.0, -0.5  # the score of a row that does not take part, and what is below any other


@contextlib.contextmanager
def static(model: GeneralizedRCNN) -> Iterator[list[Tensor]]:
    """While it lasts, the model has fixed shapes; yields the list that gets the numbers of detections."""
    counts: list[Tensor] = []
    heads = model.roi_heads
    replaced = [
        (model.rpn, "filter_proposals", partial(_filter_proposals, model.rpn)),
        (heads, "postprocess_detections", partial(_postprocess_detections, heads, counts)),
    ]
    poolers = [each for each in heads.modules() if isinstance(each, MultiScaleRoIAlign)]
    replaced += [(pooler, "forward", partial(_pool, pooler)) for pooler in poolers]
    replaced += [(transforms, "paste_masks_in_image", _paste_masks)]
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(mock.patch.object(owner, name, function))
        yield counts


def _filter_proposals(
    network: rpn.RegionProposalNetwork,
    proposals: Tensor,
    objectness: Tensor,
    image_shapes: Sequence[tuple[int, int]],
    anchors_per_level: Sequence[int],
) -> tuple[list[Tensor], list[Tensor]]:
    """The best proposals of each image, each level suppressed on its own."""
    objectness = objectness.detach().reshape(proposals.shape[0], -1)
    levels = torch.cat([torch.full((count,), level) for level, count in enumerate(anchors_per_level)])
    best = network._get_top_n_idx(objectness, anchors_per_level)
    found = []
    for image, shape in enumerate(image_shapes):
        at = best[image]
        places = boxes.clip_boxes_to_image(proposals[image][at], shape)
        scores = torch.sigmoid(objectness[image][at])
        takes_part = _has_sides(places, network.min_size) & (scores >= network.score_thresh)
        rows, is_there, _ = _kept(
            places, scores, levels[at], takes_part, network.nms_thresh, network.post_nms_top_n()
        )
        found.append((_filled(places[rows], is_there), _filled(scores[rows], is_there)))
    kept_places, kept_scores = zip(*found)
    return list(kept_places), list(kept_scores)


def _postprocess_detections(
    heads: roi_heads.RoIHeads,
    counts: list[Tensor],
    class_logits: Tensor,
    box_regression: Tensor,
    proposals: Sequence[Tensor],
    image_shapes: Sequence[tuple[int, int]],
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The best detections of each image, each class suppressed on its own."""
    classes = class_logits.shape[-1]
    sizes = [len(each) for each in proposals]
    all_places = heads.box_coder.decode(box_regression, list(proposals)).split(sizes)
    all_scores = torch.softmax(class_logits, -1).split(sizes)
    counts.clear()
    found = []
    for places, scores, regions, shape in zip(all_places, all_scores, proposals, image_shapes):
        places = boxes.clip_boxes_to_image(places, shape)[:, 1:].reshape(-1, 4)  # without the background
        labels = torch.arange(1, classes).repeat(len(scores))
        is_proposal = (regions[:, 2] > regions[:, 0]).repeat_interleave(classes - 1)  # not filled with zeros
        scores = scores[:, 1:].reshape(-1)
        takes_part = is_proposal & (scores > heads.score_thresh) & _has_sides(places, 1e-2)
        rows, is_there, count = _kept(
            places, scores, labels, takes_part, heads.nms_thresh, heads.detections_per_img
        )
        found.append([_filled(each[rows], is_there) for each in (places, scores, labels)])
        counts.append(count)
    kept_places, kept_scores, kept_labels = zip(*found)
    return list(kept_places), list(kept_scores), list(kept_labels)


def _kept(
    places: Tensor, scores: Tensor, class_ids: Tensor, takes_part: Tensor, iou_threshold: float, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that a suppression keeps, which of them are there, and how many."""
    scores = torch.where(takes_part, scores, torch.full_like(scores, DROPPED))
    indices, count = operators.batched_nms(places, scores, class_ids, iou_threshold, LEAST, size)
    is_there = indices >= 0
    # Not by `clamp`, which TVM's importer bounds by infinity, and cannot make an integer.
    return torch.where(is_there, indices, torch.zeros_like(indices)), is_there, count


def _filled(rows: Tensor, is_there: Tensor) -> Tensor:
    """The rows, zeros in place of those that are not there."""
    return torch.where(is_there.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))


def _has_sides(places: Tensor, least: float) -> Tensor:
    return (places[:, 2] - places[:, 0] >= least) & (places[:, 3] - places[:, 1] >= least)


def _pool(
    pooler: MultiScaleRoIAlign,
    features: dict[str, Tensor],
    regions: Sequence[Tensor],
    image_shapes: Sequence[tuple[int, int]],
) -> Tensor:
    maps = [feature for name, feature in features.items() if name in pooler.featmap_names]
    height = max(shape[0] for shape in image_shapes)
    scales = [2.0 ** round(math.log2(feature.shape[-2] / height)) for feature in maps]
    numbers = [torch.full((len(each), 1), float(image)) for image, each in enumerate(regions)]
    rois = torch.cat([torch.cat(each, 1) for each in zip(numbers, regions)])
    return operators.multiscale_roi_align(
        maps,
        rois,
        list(pooler.output_size),
        scales,
        pooler.sampling_ratio,
        -round(math.log2(scales[0])),
        pooler.canonical_scale,
        pooler.canonical_level,
    )


def _paste_masks(masks: Tensor, places: Tensor, size: tuple[int, int], padding: int = 1) -> Tensor:
    return operators.paste_masks(masks, places, *map(int, size))
