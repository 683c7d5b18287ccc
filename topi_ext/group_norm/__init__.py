"""Normalization of the groups of channels of each image, with an activation in the same kernels.

`group_norm` builds the expression; `reference` says in NumPy what it answers.
"""

from .op import group_norm

__all__ = ["group_norm"]
