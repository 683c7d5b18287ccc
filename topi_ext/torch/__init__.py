"""The operators of `topi_ext` on torch tensors, on the CPU and on CUDA, and random affine maps of images.

Kernels read and write torch's own memory, without a copy, unless an address is not a multiple of 64 bytes,
as for some tensors from NumPy. They run on torch's current stream, and a call can be captured in a CUDA graph
once the same call was made outside. A kernel is compiled on first use, for a class of shapes: see each
function. Each is an operator of torch, `topi_ext::name`, that `torch.compile` and `torch.export` keep whole.
None has a gradient.
"""

from .augment import AffineWarp, RandomAffine
from .functions import (
    batched_nms,
    deformable_attention,
    encode_masks,
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
    "encode_masks",
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
