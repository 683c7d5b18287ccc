"""Operators of detection, super-resolution and motion networks, as functions that build Relay expressions.

In a process whose TVM is 0.27, those that both TVMs have build Relax expressions.
"""

from typing import TYPE_CHECKING

from . import bootstrap  # before the others: it finds TVM
from ._tvm import HAS_RELAY
from .batched_nms import batched_nms, nms
from .deformable_attention import deformable_attention
from .encode_masks import encode_masks
from .heatmaps_to_keypoints import heatmaps_to_keypoints
from .paste_masks import paste_masks
from .preprocess import preprocess
from .rasterize import rasterize_boxes, rasterize_map, rasterize_polygons, rasterize_polylines
from .roi_align import multiscale_roi_align, roi_align
from .roi_pool import ps_roi_pool, roi_pool
from .transform_points import transform_points
from .warp_affine import warp_affine
from .warp_perspective import warp_perspective

if TYPE_CHECKING or HAS_RELAY:
    from . import corrections  # noqa: F401  (before the convolutions, whose CUDA code is corrected first)
elif bootstrap.tvm_in_use.compiles:
    from . import corrections_of_relax  # noqa: F401

from ._cpu_target import cpu_target
from .conv2d_nhwc import conv2d_nhwc
from .group_norm import group_norm
from .layer_norm import layer_norm

if TYPE_CHECKING or HAS_RELAY:
    from .attention import attention
    from .conv2d_nhwc_in_place import conv2d_nhwc_in_place
    from .full_after import full_after
    from .paste_masks_over import paste_masks_over
    from .slice_by_lengths import slice_by_lengths
else:
    __getattr__ = bootstrap.tvm_in_use.getattr_without_relay(__name__)

__all__ = [
    "attention",
    "batched_nms",
    "conv2d_nhwc",
    "conv2d_nhwc_in_place",
    "cpu_target",
    "deformable_attention",
    "encode_masks",
    "full_after",
    "group_norm",
    "heatmaps_to_keypoints",
    "layer_norm",
    "multiscale_roi_align",
    "nms",
    "paste_masks",
    "paste_masks_over",
    "preprocess",
    "ps_roi_pool",
    "rasterize_boxes",
    "rasterize_map",
    "rasterize_polygons",
    "rasterize_polylines",
    "roi_align",
    "roi_pool",
    "slice_by_lengths",
    "transform_points",
    "warp_affine",
    "warp_perspective",
]
