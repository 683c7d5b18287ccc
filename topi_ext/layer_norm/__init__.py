"""Normalization along one axis, such as of each pixel over its channels.

`layer_norm` builds the expression; `reference` says in NumPy what it answers.
"""

from .op import layer_norm

__all__ = ["layer_norm"]
