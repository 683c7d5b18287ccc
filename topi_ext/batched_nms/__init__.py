"""Class-aware non-maximum suppression of boxes, scores and class ids, exact on every target.

`batched_nms` builds the Relay expression, and `nms` that for boxes of one class; `reference.batched_nms` is
the oracle in NumPy.
"""

from .op import batched_nms, nms, one_class

__all__ = ["batched_nms", "nms", "one_class"]
