"""Operators of detection, super-resolution and motion networks, as functions that build Relay expressions."""

# bootstrap comes first: it finds TVM
from . import bootstrap, corrections, sort  # noqa: F401
from ._cpu_target import cpu_target
from .attention import attention
from .batched_nms import batched_nms, nms
from .conv2d_nhwc import conv2d_nhwc
from .conv2d_nhwc_in_place import conv2d_nhwc_in_place
from .deformable_attention import deformable_attention
from .encode_masks import encode_masks
from .group_norm import group_norm
from .heatmaps_to_keypoints import heatmaps_to_keypoints
from .layer_norm import layer_norm
from .paste_masks import paste_masks
from .preprocess import preprocess
from .rasterize import rasterize_boxes, rasterize_map, rasterize_polygons, rasterize_polylines
from .roi_align import multiscale_roi_align, roi_align
from .roi_pool import ps_roi_pool, roi_pool
from .transform_points import transform_points
from .warp_affine import warp_affine
from .warp_perspective import warp_perspective

__all__ = [
    "attention",
    "batched_nms",
    "conv2d_nhwc",
    "conv2d_nhwc_in_place",
    "cpu_target",
    "deformable_attention",
    "encode_masks",
    "group_norm",
    "heatmaps_to_keypoints",
    "layer_norm",
    "multiscale_roi_align",
    "nms",
    "paste_masks",
    "preprocess",
    "ps_roi_pool",
    "rasterize_boxes",
    "rasterize_map",
    "rasterize_polygons",
    "rasterize_polylines",
    "roi_align",
    "roi_pool",
    "transform_points",
    "warp_affine",
    "warp_perspective",
]
