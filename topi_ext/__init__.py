from . import _bootstrap, reshape, sort  # noqa: F401  _bootstrap comes first: it finds TVM
from .batched_nms import batched_nms

__all__ = ["batched_nms"]
