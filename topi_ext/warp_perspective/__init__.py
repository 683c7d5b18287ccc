"""Images seen from another side: warped by projective maps, each by a matrix.

`warp_perspective` builds the Relay expression; `reference.warp_perspective` says in NumPy what it answers.
"""

from .op import warp_perspective

__all__ = ["warp_perspective"]
