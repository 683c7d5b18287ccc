"""Non-maximum suppression that knows the classes: three tensors in, exact on every target.

`batched_nms` builds the Relay expression; `reference.batched_nms` says in NumPy what it answers.
"""

from .op import batched_nms

__all__ = ["batched_nms"]
