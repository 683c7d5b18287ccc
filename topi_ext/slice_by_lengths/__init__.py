"""A part of a tensor, at bounds that are computed from the lengths of tensors.

`slice_by_lengths` builds the Relay expression; `reference.slice_by_lengths` says in NumPy what it answers.
"""

from .op import slice_by_lengths

__all__ = ["slice_by_lengths"]
