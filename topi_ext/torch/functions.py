"""The operators of `topi_ext` on torch tensors, with the same arguments, results and conventions.

Each says what its call is, with the axes that one kernel serves all lengths of; `operator` makes of it a
function that runs the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import topi_ext

from tvm import relay

from .._types import IntExpr
from ..paste_masks.op import checked_options
from ..warp_affine.op import MAX_PIXELS
from ._call import Call
from ._operator import operator


def _call(
    name: str,
    build: Callable[..., relay.Expr],
    tensors: Mapping[str, tuple[torch.Tensor | float, str]],
    out_size: Sequence[int] = (),
    **options: Any,
) -> Any:
    return Call(name, build, tensors, out_size, options)


def _pair(name: str, option: str, size: Sequence[int]) -> tuple[int, int]:
    """A height and a width, which may be symbols of torch; raises an error for anything else."""
    sides = tuple(size) if hasattr(size, "__iter__") else ()
    if len(sides) != 2 or any(isinstance(side, (float, str)) for side in sides):
        raise ValueError(f"{name}: {option} must be two whole numbers, height and width, not {size!r}")
    return sides


@operator(
    "warp_affine(Tensor data, Tensor matrix, SymInt[2] out_size, *, bool inverse_map=False, "
    "str mode='exact', str interpolation='bilinear', str border_mode='constant', float[1] border_value=0., "
    "str layout='NCHW', str? out_dtype=None) -> Tensor",
    lengths={"border_value": 1},
)
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
    size = _pair("warp_affine", "out_size", out_size)
    return _call("warp_affine", _warp_affine, tensors, size, mode=mode, layout=layout, **options)


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
    class_ids = scores  # which is no tensor: `batched_nms` says so
    if isinstance(scores, torch.Tensor):
        class_ids = torch.zeros(scores.shape, dtype=torch.int32, device=scores.device)
    return batched_nms(boxes, scores, class_ids, iou_threshold, **options)


_NMS = (
    "(Tensor boxes, Tensor scores, Tensor class_ids, {0} iou_threshold, *, {1} score_threshold{2}, "
    "int? max_output_size=None, Tensor? valid_count=None) -> (Tensor, Tensor)"
)


@operator(  # each threshold is a number or a tensor
    "batched_nms" + _NMS.format("float", "float?", "=None"),
    "batched_nms.tensor" + _NMS.format("Tensor", "Tensor?", "=None"),
    "batched_nms.score" + _NMS.format("float", "Tensor", ""),
    "batched_nms.iou" + _NMS.format("Tensor", "float", ""),
)
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
    given = {
        "boxes": (boxes, batch + "N 4"),
        "scores": (scores, batch + "N"),
        "class_ids": (class_ids, batch + "N"),
        "iou_threshold": (_threshold(iou_threshold), ""),
        "score_threshold": (_threshold(score_threshold), ""),
        "valid_count": (valid_count, batch),
    }
    tensors = {name: (tensor, axes) for name, (tensor, axes) in given.items() if tensor is not None}
    names = tuple(tensors)
    return _call("batched_nms", _batched_nms, tensors, names=names, max_output_size=max_output_size)


def _batched_nms(*tensors: relay.Expr, names: Sequence[str], **options: Any) -> relay.Expr:
    return topi_ext.batched_nms(**dict(zip(names, tensors)), **options)


def _threshold(value: float | torch.Tensor | None) -> torch.Tensor | float | None:
    return value if value is None or isinstance(value, torch.Tensor) else float(value)


@operator(
    "roi_align(Tensor data, Tensor rois, *, int[2] pooled_size, float spatial_scale, int sampling_ratio, "
    "bool aligned=False, str layout='NCHW', bool by_position=False, float feature_scale=1., "
    "float out_scale=1., str out_dtype='') -> Tensor",
    lengths={"pooled_size": 2},
)
def roi_align(
    data: torch.Tensor, rois: torch.Tensor, *, layout: str = "NCHW", **options: Any
) -> torch.Tensor:
    """`topi_ext.roi_align` on tensors. One kernel serves all numbers of regions and sizes of maps."""
    tensors = {"data": (data, "B H W c" if layout == "NHWC" else "B c H W"), "rois": (rois, _axes_of(rois))}
    return _call("roi_align", topi_ext.roi_align, tensors, layout=layout, **options)


@operator(
    "multiscale_roi_align(Tensor[] features, Tensor rois, *, int[2] pooled_size, float[] scales, "
    "int sampling_ratio, float canonical_size=224., int canonical_level=4, int min_level=2, float eps=1e-6, "
    "bool eps_in_log2=False, bool aligned=False, str layout='NCHW', float[]? feature_scales=None, "
    "float out_scale=1., str out_dtype='') -> Tensor",
    lengths={"pooled_size": 2},
)
def multiscale_roi_align(
    features: Sequence[torch.Tensor], rois: torch.Tensor, *, layout: str = "NCHW", **options: Any
) -> torch.Tensor:
    """`topi_ext.multiscale_roi_align` on tensors. One kernel serves the same shapes as in `roi_align`."""
    axes = "B H{0} W{0} c" if layout == "NHWC" else "B c H{0} W{0}"
    tensors = {f"features[{at}]": (map_, axes.format(at)) for at, map_ in enumerate(features)}
    tensors["rois"] = rois, _axes_of(rois)
    return _call("multiscale_roi_align", _multiscale_roi_align, tensors, layout=layout, **options)


def _axes_of(rois: torch.Tensor) -> str:
    return "R 4" if isinstance(rois, torch.Tensor) and rois.shape[-1:] == (4,) else "R 5"


def _multiscale_roi_align(*features_and_rois: relay.Expr, **options: Any) -> relay.Expr:
    *features, rois = features_and_rois
    return topi_ext.multiscale_roi_align(features, rois, **options)


@operator(
    "roi_pool(Tensor data, Tensor rois, *, int[2] pooled_size, float spatial_scale) -> Tensor",
    lengths={"pooled_size": 2},
)
def roi_pool(data: torch.Tensor, rois: torch.Tensor, **options: Any) -> torch.Tensor:
    """`topi_ext.roi_pool` on tensors. One kernel serves all numbers of regions and sizes of maps."""
    return _call("roi_pool", topi_ext.roi_pool, {"data": (data, "B c H W"), "rois": (rois, "R 5")}, **options)


@operator(
    "ps_roi_pool(Tensor data, Tensor rois, *, int[2] pooled_size, float spatial_scale) -> Tensor",
    lengths={"pooled_size": 2},
)
def ps_roi_pool(data: torch.Tensor, rois: torch.Tensor, **options: Any) -> torch.Tensor:
    """`topi_ext.ps_roi_pool` on tensors, like `roi_pool`."""
    tensors = {"data": (data, "B c H W"), "rois": (rois, "R 5")}
    return _call("ps_roi_pool", topi_ext.ps_roi_pool, tensors, **options)


@operator(
    "deformable_attention(Tensor value, Tensor points, Tensor weights, *, int[][] levels, "
    "bool align_corners=False) -> Tensor"
)
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
    return _call(
        "deformable_attention",
        topi_ext.deformable_attention,
        tensors,
        levels=shapes,
        align_corners=align_corners,
    )


@operator("paste_masks(Tensor masks, Tensor boxes, int[2] image_size, *, float? threshold=None) -> Tensor")
def paste_masks(
    masks: torch.Tensor, boxes: torch.Tensor, image_size: Sequence[int], *, threshold: float | None = None
) -> torch.Tensor:
    """`topi_ext.paste_masks` on tensors. One kernel serves all numbers of masks, for one size of images."""
    tensors = {"masks": (masks, "N 1 m m"), "boxes": (boxes, "N 4")}
    size = tuple(map(int, _pair("paste_masks", "image_size", image_size)))
    return _call("paste_masks", topi_ext.paste_masks, tensors, image_size=size, threshold=threshold)


@operator(
    "encode_masks(Tensor masks, Tensor boxes, int[2] image_size, *, float threshold=0.5, str form='rle', "
    "int? capacity=None) -> Tensor"
)
def encode_masks(
    masks: torch.Tensor,
    boxes: torch.Tensor,
    image_size: Sequence[int],
    *,
    threshold: float = 0.5,
    form: str = "rle",
    capacity: int | None = None,
) -> torch.Tensor:
    """`topi_ext.encode_masks` on tensors. One kernel serves all numbers of masks and sizes of images."""
    size = checked_options("encode_masks", _pair("encode_masks", "image_size", image_size), threshold)
    tensors = {"masks": (masks, "N 1 m m"), "boxes": (boxes, "N 4")}
    options = {"threshold": threshold, "form": form, "capacity": capacity}
    return _call("encode_masks", _encode_masks, tensors, size, **options)


def _encode_masks(
    masks: relay.Expr, boxes: relay.Expr, height: IntExpr, width: IntExpr, **options: Any
) -> relay.Expr:
    return topi_ext.encode_masks(masks, boxes, (height, width), **options)


@operator(
    "group_norm(Tensor data, Tensor? gamma=None, Tensor? beta=None, *, int groups, int axis=1, "
    "float epsilon=1e-5, str? activation=None) -> Tensor"
)
def group_norm(
    data: torch.Tensor,
    gamma: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    *,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: str | None = None,
) -> torch.Tensor:
    """`topi_ext.group_norm` on tensors. One kernel serves all numbers and sizes of images."""
    options = {"groups": groups, "axis": axis, "epsilon": epsilon, "activation": activation}
    return _norm("group_norm", data, gamma, beta, **options)


@operator("heatmaps_to_keypoints(Tensor maps, Tensor rois) -> (Tensor, Tensor)")
def heatmaps_to_keypoints(maps: torch.Tensor, rois: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`topi_ext.heatmaps_to_keypoints` on tensors. One kernel serves all numbers of objects."""
    tensors = {"maps": (maps, "N k h w"), "rois": (rois, "N 4")}
    return _call("heatmaps_to_keypoints", _heatmaps_to_keypoints, tensors)


def _heatmaps_to_keypoints(maps: relay.Expr, rois: relay.Expr) -> relay.Expr:
    return topi_ext.heatmaps_to_keypoints(maps, rois).astuple()


@operator(
    "layer_norm(Tensor data, Tensor? gamma=None, Tensor? beta=None, *, int axis=-1, float epsilon=1e-5)"
    " -> Tensor"
)
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
    return _call(operator, _norm_of, tensors, normalize=operator, names=tuple(tensors), **options)


def _norm_of(*tensors: relay.Expr, normalize: str, names: Sequence[str], **options: Any) -> relay.Expr:
    return getattr(topi_ext, normalize)(**dict(zip(names, tensors)), **options)


@operator(
    "preprocess(Tensor image, int[2] size, int[2]? padded_size=None, *, float[] mean, float[] std, "
    "bool swap_channels=False, str image_layout='NHWC', str layout='NCHW', str dtype='float32', "
    "int? padded_channels=None) -> Tensor"
)
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
    padded = None if padded_size is None else _pair("preprocess", "padded_size", padded_size)
    options.update(size=_pair("preprocess", "size", size), padded_size=padded, image_layout=image_layout)
    return _call("preprocess", topi_ext.preprocess, tensors, **options)
