"""The operators of `topi_ext` on torch tensors, on the CPU and on CUDA, and random affine maps of images.

Tensors are passed by DLPack, without a copy, unless their address is not a multiple of 64 bytes, as for some
from NumPy. torch allocates all memory, and kernels run on its current stream. A kernel is compiled on first
use, for a class of shapes: see each function. None has a gradient.
"""

from .augment import AffineWarp, RandomAffine
from .functions import (
    batched_nms,
    deformable_attention,
    group_norm,
    heatmaps_to_keypoints,
    layer_norm,
    multiscale_roi_align,
    nms,
    paste_masks,
    preprocess,
    ps_roi_pool,
    roi_align,
    roi_pool,
    warp_affine,
)

__all__ = [
    "AffineWarp",
    "RandomAffine",
    "batched_nms",
    "deformable_attention",
    "group_norm",
    "heatmaps_to_keypoints",
    "layer_norm",
    "multiscale_roi_align",
    "nms",
    "paste_masks",
    "preprocess",
    "ps_roi_pool",
    "roi_align",
    "roi_pool",
    "warp_affine",
]
