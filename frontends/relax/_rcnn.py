"""Faster, Mask and Keypoint R-CNN of torchvision with results of fixed shapes; see `_rows`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import roi_heads, rpn
from torchvision.models.detection import transform as transforms
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import MultiScaleRoIAlign, boxes

from ..errors import ImportFailure
from . import _operators as operators
from ._rows import filled, kept


def replacements(model: GeneralizedRCNN, counts: list[Tensor]) -> list[tuple[Any, str, Any]]:
    """The methods and functions that depend on data, and what takes their place."""
    heads = model.roi_heads
    poolers = [each for each in heads.modules() if isinstance(each, MultiScaleRoIAlign)]
    return [
        (model.rpn, "filter_proposals", partial(_filter_proposals, model.rpn)),
        (heads, "postprocess_detections", partial(_postprocess_detections, heads, counts)),
        *((pooler, "forward", partial(_pool, pooler)) for pooler in poolers),
        (roi_heads, "maskrcnn_inference", _masks_of_labels),
        (transforms, "paste_masks_in_image", _paste_masks),
        (roi_heads, "heatmaps_to_keypoints", _heatmaps_to_keypoints),
    ]


def _filter_proposals(
    network: rpn.RegionProposalNetwork,
    proposals: Tensor,
    objectness: Tensor,
    image_shapes: Sequence[tuple[int, int]],
    anchors_per_level: Sequence[int],
) -> tuple[list[Tensor], list[Tensor]]:
    """The best proposals of each image, each level suppressed on its own."""
    objectness = objectness.detach().reshape(proposals.shape[0], -1)
    levels = [torch.full((count,), level) for level, count in enumerate(anchors_per_level)]
    level_of = torch.cat(levels).to(proposals.device)
    best = network._get_top_n_idx(objectness, anchors_per_level)
    found = []
    for image, shape in enumerate(image_shapes):
        at = best[image]
        places = boxes.clip_boxes_to_image(proposals[image][at], shape)
        scores = torch.sigmoid(objectness[image][at])
        takes_part = _has_sides(places, network.min_size) & (scores >= network.score_thresh)
        rows, is_there, _ = kept(
            places, scores, level_of[at], takes_part, network.nms_thresh, network.post_nms_top_n()
        )
        found.append((filled(places[rows], is_there), filled(scores[rows], is_there)))
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
    for places, scores, shape in zip(all_places, all_scores, image_shapes):
        places = boxes.clip_boxes_to_image(places, shape)[:, 1:].reshape(-1, 4)  # without the background
        labels = torch.arange(1, classes, device=scores.device).repeat(len(scores))
        scores = scores[:, 1:].reshape(-1)
        takes_part = (scores > heads.score_thresh) & _has_sides(places, 1e-2)  # no region filled with zeros
        rows, is_there, count = kept(
            places, scores, labels, takes_part, heads.nms_thresh, heads.detections_per_img
        )
        found.append([filled(each[rows], is_there) for each in (places, scores, labels)])
        counts.append(count)
    kept_places, kept_scores, kept_labels = zip(*found)
    return list(kept_places), list(kept_scores), list(kept_labels)


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
    # torchvision keeps those of the first image that the model was called with.
    known = pooler.scales if pooler.map_levels is not None else None
    scales = known or [2.0 ** round(math.log2(feature.shape[-2] / height)) for feature in maps]
    first, last = (-round(math.log2(scale)) for scale in (scales[0], scales[-1]))
    maps, scales = _one_map_for_each_level(maps, list(scales), last - first + 1)
    numbers = [each.new_full((len(each), 1), image) for image, each in enumerate(regions)]
    rois = torch.cat([torch.cat(each, 1) for each in zip(numbers, regions)])
    return operators.multiscale_roi_align(
        maps,
        rois,
        list(pooler.output_size),
        scales,
        pooler.sampling_ratio,
        first,
        pooler.canonical_scale,
        pooler.canonical_level,
    )


def _one_map_for_each_level(
    maps: list[Tensor], scales: list[float], levels: int
) -> tuple[list[Tensor], list[float]]:
    """torchvision takes the levels for those between the scales of the first map and of the last, and
    leaves maps without a level alone; regions of levels without a map are zeros."""
    if levels < 1:
        raise ImportFailure(
            f"MultiScaleRoIAlign has feature maps of the scales {scales}, but pools no region unless the "
            "last is the smallest"
        )
    missing = levels - len(maps)
    nothing = [torch.zeros_like(maps[-1][..., :1, :1])] * missing
    return (maps + nothing)[:levels], (scales + scales[-1:] * missing)[:levels]


def _masks_of_labels(logits: Tensor, labels: Sequence[Tensor]) -> Sequence[Tensor]:
    """Of each detection the mask of its class; nothing else is transposed."""
    pixels, numbers = logits.permute(0, 2, 3, 1), torch.cat(list(labels)).reshape(-1, 1, 1, 1)
    masks = pixels.gather(3, numbers.expand(*pixels.shape[:3], 1)).permute(0, 3, 1, 2).sigmoid()
    return masks.split([len(each) for each in labels])


def _paste_masks(masks: Tensor, places: Tensor, size: tuple[int, int], padding: int = 1) -> Tensor:
    """A mask of zeros pastes zeros, and is smaller than the image."""
    return operators.paste_masks(filled(masks, places[:, 2] > places[:, 0]), places, *map(int, size))


def _heatmaps_to_keypoints(maps: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    is_there = places[:, 2] > places[:, 0]
    keypoints, scores = operators.heatmaps_to_keypoints(maps, places)
    return filled(keypoints, is_there), filled(scores, is_there)
