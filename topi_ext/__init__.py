from . import _bootstrap, reshape, sort  # noqa: F401  _bootstrap comes first: it finds TVM
from .batched_nms import batched_nms
from .conv2d_nhwc import conv2d_nhwc
from .paste_masks import paste_masks
from .rasterize import rasterize_boxes, rasterize_map, rasterize_polygons, rasterize_polylines
from .roi_align import multiscale_roi_align, roi_align

__all__ = ["batched_nms", "conv2d_nhwc", "multiscale_roi_align", "paste_masks", "roi_align"]
