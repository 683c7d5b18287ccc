"""Images moved, turned, scaled, sheared and flipped, each by a matrix.

`warp_affine` builds the Relay expression; `reference.warp_affine` says in NumPy what it answers.
"""

from .op import warp_affine

__all__ = ["warp_affine"]
