"""The operators of `topi_ext` on torch tensors, with the same arguments, results and conventions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

import topi_ext

from tvm import relay

from .._types import IntExpr
from ..warp_affine.op import MAX_PIXELS
from ._call import call


def warp_affine(
    data: torch.Tensor,
    matrix: torch.Tensor,
    out_size: Sequence[int],
    *,
    mode: str = "exact",
    layout: str = "NCHW",
    **options: Any,
) -> torch.Tensor:
    """`topi_ext.warp_affine` on tensors. One kernel serves all numbers and sizes of images."""
    sides, most = getattr(data, "shape", ())[1:], MAX_PIXELS["cv2_fixed"]
    if mode == "cv2_fixed" and max(sides, default=0) > most:
        raise ValueError(
            f"warp_affine: cv2_fixed takes images of 1 to {most} pixels a side, not {data.shape}"
        )
    tensors = {
        "data": (data, "N H W c" if layout == "NHWC" else "N c H W"),
        "matrix": (matrix, "2 3" if getattr(matrix, "ndim", 3) == 2 else "N 2 3"),
    }
    return call("warp_affine", _warp_affine, tensors, out_size, mode=mode, layout=layout, **options)


def _warp_affine(
    data: relay.Expr, matrix: relay.Expr, height: IntExpr, width: IntExpr, **options: Any
) -> relay.Expr:
    return topi_ext.warp_affine(data, matrix, (height, width), **options)


def nms(
    boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float | torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`topi_ext.nms` on tensors: the indices of the kept boxes, followed by -1, and their number.

    `indices[:count]` is the result of `torchvision.ops.nms`; it waits for the GPU, as that does. One kernel
    serves all numbers of boxes.
    """
    class_ids = torch.zeros(scores.shape, dtype=torch.int32, device=scores.device)
    return batched_nms(boxes, scores, class_ids, iou_threshold, **options)


def batched_nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    class_ids: torch.Tensor,
    iou_threshold: float | torch.Tensor,
    *,
    score_threshold: float | torch.Tensor | None = None,
    max_output_size: int | None = None,
    valid_count: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`topi_ext.batched_nms` on tensors: the indices of the kept boxes, followed by -1, and their number.

    One kernel serves all numbers of boxes and batch items, and all thresholds.
    """
    batch = "B " if getattr(boxes, "ndim", 2) == 3 else ""
    device = getattr(boxes, "device", None)
    given = {
        "boxes": (boxes, batch + "N 4"),
        "scores": (scores, batch + "N"),
        "class_ids": (class_ids, batch + "N"),
        "iou_threshold": (_scalar(iou_threshold, device), ""),
        "score_threshold": (_scalar(score_threshold, device), ""),
        "valid_count": (valid_count, batch),
    }
    tensors = {name: (tensor, axes) for name, (tensor, axes) in given.items() if tensor is not None}
    names = tuple(tensors)
    return call("batched_nms", _batched_nms, tensors, names=names, max_output_size=max_output_size)


def _batched_nms(*tensors: relay.Expr, names: Sequence[str], **options: Any) -> relay.Expr:
    return topi_ext.batched_nms(**dict(zip(names, tensors)), **options)


def _scalar(value: float | torch.Tensor | None, device: torch.device | None) -> torch.Tensor | None:
    return value if value is None or isinstance(value, torch.Tensor) else _on_device(float(value), device)


@lru_cache
def _on_device(value: float, device: torch.device | None) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device=device)


def roi_align(
    data: torch.Tensor, rois: torch.Tensor, *, layout: str = "NCHW", **options: Any
) -> torch.Tensor:
    """`topi_ext.roi_align` on tensors. One kernel serves all numbers of regions and sizes of maps."""
    tensors = {"data": (data, "B H W c" if layout == "NHWC" else "B c H W"), "rois": (rois, "R 5")}
    return call("roi_align", topi_ext.roi_align, tensors, layout=layout, **options)


def multiscale_roi_align(
    features: Sequence[torch.Tensor], rois: torch.Tensor, *, layout: str = "NCHW", **options: Any
) -> torch.Tensor:
    """`topi_ext.multiscale_roi_align` on tensors. One kernel serves the same shapes as in `roi_align`."""
    axes = "B H{0} W{0} c" if layout == "NHWC" else "B c H{0} W{0}"
    tensors = {f"features[{at}]": (map_, axes.format(at)) for at, map_ in enumerate(features)}
    tensors["rois"] = rois, "R 5"
    return call("multiscale_roi_align", _multiscale_roi_align, tensors, layout=layout, **options)


def _multiscale_roi_align(*features_and_rois: relay.Expr, **options: Any) -> relay.Expr:
    *features, rois = features_and_rois
    return topi_ext.multiscale_roi_align(features, rois, **options)


def roi_pool(data: torch.Tensor, rois: torch.Tensor, **options: Any) -> torch.Tensor:
    """`topi_ext.roi_pool` on tensors. One kernel serves all numbers of regions and sizes of maps."""
    return call("roi_pool", topi_ext.roi_pool, {"data": (data, "B c H W"), "rois": (rois, "R 5")}, **options)


def ps_roi_pool(data: torch.Tensor, rois: torch.Tensor, **options: Any) -> torch.Tensor:
    """`topi_ext.ps_roi_pool` on tensors, like `roi_pool`."""
    tensors = {"data": (data, "B c H W"), "rois": (rois, "R 5")}
    return call("ps_roi_pool", topi_ext.ps_roi_pool, tensors, **options)


def deformable_attention(
    value: torch.Tensor,
    points: torch.Tensor,
    weights: torch.Tensor,
    *,
    levels: Sequence[Sequence[int]],
    align_corners: bool = False,
) -> torch.Tensor:
    """`topi_ext.deformable_attention` on tensors. One kernel serves all numbers of items and queries."""
    tensors = {"value": (value, "N s c"), "points": (points, "N Q k 2"), "weights": (weights, "N Q k")}
    shapes = tuple(tuple(map(int, level)) for level in levels)
    return call(
        "deformable_attention",
        topi_ext.deformable_attention,
        tensors,
        levels=shapes,
        align_corners=align_corners,
    )


def paste_masks(
    masks: torch.Tensor, boxes: torch.Tensor, image_size: Sequence[int], *, threshold: float | None = None
) -> torch.Tensor:
    """`topi_ext.paste_masks` on tensors. One kernel serves all numbers of masks, for one size of images."""
    tensors = {"masks": (masks, "N 1 m m"), "boxes": (boxes, "N 4")}
    image_size = tuple(map(int, image_size))
    return call("paste_masks", topi_ext.paste_masks, tensors, image_size=image_size, threshold=threshold)


def group_norm(
    data: torch.Tensor,
    gamma: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    *,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: Any = None,
) -> torch.Tensor:
    """`topi_ext.group_norm` on tensors. One kernel serves all numbers and sizes of images."""
    options = {"groups": groups, "axis": axis, "epsilon": epsilon, "activation": activation}
    return _norm("group_norm", data, gamma, beta, **options)


def heatmaps_to_keypoints(maps: torch.Tensor, rois: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`topi_ext.heatmaps_to_keypoints` on tensors. One kernel serves all numbers of objects."""
    tensors = {"maps": (maps, "N k h w"), "rois": (rois, "N 4")}
    return call("heatmaps_to_keypoints", _heatmaps_to_keypoints, tensors)


def _heatmaps_to_keypoints(maps: relay.Expr, rois: relay.Expr) -> relay.Expr:
    return topi_ext.heatmaps_to_keypoints(maps, rois).astuple()


def layer_norm(
    data: torch.Tensor,
    gamma: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """`topi_ext.layer_norm` on tensors. One kernel serves all lengths of the other axes."""
    return _norm("layer_norm", data, gamma, beta, axis=axis, epsilon=epsilon)


def _norm(
    operator: str, data: torch.Tensor, gamma: torch.Tensor | None, beta: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    rank = len(getattr(data, "shape", ())) or 1
    axes = " ".join("c" if at == options["axis"] % rank else f"D{at}" for at in range(rank))
    given = {"data": (data, axes), "gamma": (gamma, "c"), "beta": (beta, "c")}
    tensors = {name: (tensor, axes) for name, (tensor, axes) in given.items() if tensor is not None}
    return call(operator, _norm_of, tensors, operator=operator, names=tuple(tensors), **options)


def _norm_of(*tensors: relay.Expr, operator: str, names: Sequence[str], **options: Any) -> relay.Expr:
    return getattr(topi_ext, operator)(**dict(zip(names, tensors)), **options)


def preprocess(
    image: torch.Tensor,
    size: Sequence[int],
    padded_size: Sequence[int] | None = None,
    *,
    image_layout: str = "NHWC",
    **options: Any,
) -> torch.Tensor:
    """`topi_ext.preprocess` on tensors. One kernel serves all numbers of images of one size."""
    tensors = {"image": (image, "N h w c" if image_layout == "NHWC" else "N c h w")}
    options.update(
        size=tuple(size), padded_size=padded_size and tuple(padded_size), image_layout=image_layout
    )
    return call("preprocess", topi_ext.preprocess, tensors, **options)
