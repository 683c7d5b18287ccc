"""Multi-scale deformable attention: weighted sums of what is read at a few points of each level.

`deformable_attention` builds the Relay expression; `reference.deformable_attention` says in NumPy what it
answers.
"""

from .op import deformable_attention

__all__ = ["deformable_attention"]
