from . import _bootstrap, reshape, sort  # noqa: F401  _bootstrap comes first: it finds TVM
from .batched_nms import batched_nms
from .conv2d_nhwc import conv2d_nhwc

__all__ = ["batched_nms", "conv2d_nhwc"]
