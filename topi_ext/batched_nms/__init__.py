"""Non-maximum suppression that knows the classes: three tensors in, exact on every target.

`batched_nms` builds the Relay expression, and `nms` that for boxes of one class; `reference.batched_nms` says
in NumPy what it answers.
"""

from .op import batched_nms, nms, one_class

__all__ = ["batched_nms", "nms", "one_class"]
