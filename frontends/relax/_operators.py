"""What depends on data in a detector, as operators of torch whose results have fixed shapes.

`torch.export` keeps a call of one as one node, which becomes a call of the operator of `topi_ext`. In torch
they are computed by torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
import torchvision
from torch import Tensor
from torchvision.models.detection.roi_heads import heatmaps_to_keypoints as positions_and_scores
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops.poolers import LevelMapper

import topi_ext

from tvm import relax

from .._deform_conv2d import DeformConv2d
from ..errors import ImportFailure
from ._onnx.node import shape_of
from ._operators_of_relax import OfRelax


@torch.library.custom_op("topi_ext::batched_nms", mutates_args=())
def batched_nms(
    boxes: Tensor,
    scores: Tensor,
    class_ids: Tensor,
    iou_threshold: float,
    score_threshold: Optional[float],  # noqa: UP045  # torch makes a schema of it
    size: int,
) -> tuple[Tensor, Tensor]:
    """The indices of the boxes that are kept, then -1, and how many they are."""
    takes_part = torch.ones_like(scores) if score_threshold is None else scores > score_threshold
    at = torch.nonzero(takes_part)[:, 0]
    kept = at[torchvision.ops.batched_nms(boxes[at], scores[at], class_ids[at], iou_threshold)][:size]
    indices = kept.new_full((size,), -1)
    indices[: len(kept)] = kept
    return indices, torch.tensor(len(kept), dtype=torch.int32, device=boxes.device)


@batched_nms.register_fake
def _(boxes: Tensor, scores: Tensor, class_ids: Tensor, iou: float, least: Any, size: int) -> Any:
    return boxes.new_empty((size,), dtype=torch.int64), boxes.new_empty((), dtype=torch.int32)


@torch.library.custom_op("topi_ext::multiscale_roi_align", mutates_args=())
def multiscale_roi_align(
    features: list[Tensor],
    rois: Tensor,
    pooled_size: list[int],
    scales: list[float],
    sampling_ratio: int,
    min_level: int,
    canonical_size: int,
    canonical_level: int,
) -> Tensor:
    """Regions, each from the level of its size; from the only one if there is one."""
    max_level = min_level + len(features) - 1
    levels = LevelMapper(min_level, max_level, canonical_size, canonical_level)([rois[:, 1:]])
    pooled = _empty_regions(features, rois, pooled_size)
    for level, (feature, scale) in enumerate(zip(features, scales)):
        at = torch.nonzero(levels == level)[:, 0]
        pooled[at] = torchvision.ops.roi_align(feature, rois[at], pooled_size, scale, sampling_ratio)
    return pooled


@multiscale_roi_align.register_fake
def _(features: list[Tensor], rois: Tensor, pooled_size: list[int], *_: Any) -> Tensor:
    return _empty_regions(features, rois, pooled_size)


def _empty_regions(features: list[Tensor], rois: Tensor, pooled_size: list[int]) -> Tensor:
    return features[0].new_empty((rois.shape[0], features[0].shape[1], *pooled_size))


@torch.library.custom_op("topi_ext::paste_masks", mutates_args=())
def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Each mask in an image; that of a box without area, at which torchvision fails, is empty."""
    pasted = masks.new_zeros((masks.shape[0], 1, height, width))
    at = torch.nonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[:, 0]
    if len(at):
        pasted[at] = paste_masks_in_image(masks[at], boxes[at], (height, width))
    return pasted


@paste_masks.register_fake
def _(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    return masks.new_empty((masks.shape[0], 1, height, width))


@torch.library.custom_op("topi_ext::heatmaps_to_keypoints", mutates_args=())
def heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The position of each keypoint in the image with a 1, and its score."""
    keypoints, scores = positions_and_scores(maps, boxes)
    return keypoints.contiguous(), scores


@heatmaps_to_keypoints.register_fake
def _(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    return maps.new_empty((*maps.shape[:2], 3)), maps.new_empty(maps.shape[:2])


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """By the name of an operator of torch, what makes its node in Relax."""

    def by(build: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda node, importer: importer.block_builder.emit(build(*importer.retrieve_args(node)))

    return {
        "batched_nms.default": by(
            lambda boxes, scores, class_ids, iou, least, size: topi_ext.batched_nms(
                boxes, scores, class_ids, iou, score_threshold=least, max_output_size=size
            )
        ),
        "multiscale_roi_align.default": by(
            lambda features, rois, pooled_size, scales, sampling_ratio, min_level, size, level: (
                topi_ext.multiscale_roi_align(
                    features,
                    rois,
                    pooled_size=list(pooled_size),
                    scales=list(scales),
                    sampling_ratio=sampling_ratio,
                    min_level=min_level,
                    canonical_size=size,
                    canonical_level=level,
                )
            )
        ),
        "paste_masks.default": by(
            lambda masks, boxes, height, width: topi_ext.paste_masks(masks, boxes, (height, width))
        ),
        "heatmaps_to_keypoints.default": by(topi_ext.heatmaps_to_keypoints),
        "deform_conv2d.default": _deform_conv2d,  # those of torchvision, in any module
        "nms.default": _refuse_nms,
        "ps_roi_align.default": _pooled(_ps_roi_align),
        "ps_roi_pool.default": _pooled(topi_ext.ps_roi_pool),
        "roi_align.default": by(_roi_align),
        "roi_pool.default": _pooled(topi_ext.roi_pool),
    }


def _deform_conv2d(node: Any, importer: Any) -> Any:
    data, weight, offset, mask, bias, *options, use_mask = importer.retrieve_args(node)
    convolve = DeformConv2d(options[:2], options[2:4], options[4:6], *options[6:])
    shapes = [shape_of(each) for each in (data, weight, offset)]
    builder = importer.block_builder
    result = convolve(OfRelax(builder), data, weight, offset, mask if use_mask else None, shapes)
    return builder.emit(relax.op.add(result, relax.op.reshape(bias, (1, -1, 1, 1))))


def _pooled(build: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """One of torchvision's operators with a second result, of which nothing is but its gradient."""

    def convert(node: Any, importer: Any) -> Any:
        data, rois, scale, height, width, *options = importer.retrieve_args(node)
        pooled = build(data, rois, *options, pooled_size=(height, width), spatial_scale=scale)
        return [importer.block_builder.emit(pooled)]

    return convert


def _ps_roi_align(data: Any, rois: Any, sampling_ratio: int, **options: Any) -> Any:
    """A region without samples gives 0, where torchvision divides 0 by 0."""
    return topi_ext.roi_align(
        data, rois, **options, sampling_ratio=sampling_ratio, aligned=True, by_position=True
    )


def _roi_align(
    data: Any,
    rois: Any,
    spatial_scale: float,
    height: int,
    width: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Any:
    return topi_ext.roi_align(
        data,
        rois,
        pooled_size=(height, width),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
    )


def _refuse_nms(_node: Any, _importer: Any) -> Any:
    raise ImportFailure(
        "how many boxes torchvision's nms keeps depends on their values, and all shapes must be fixed: call "
        "frontends.relax.nms or batched_nms instead, which return a fixed number of rows and a count"
    )
