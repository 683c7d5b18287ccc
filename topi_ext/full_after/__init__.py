"""A tensor of one value, which is written when another tensor is there.

`full_after` builds the Relay expression; `reference.full_after` says in NumPy what it answers.
"""

from .op import full_after

__all__ = ["full_after"]
