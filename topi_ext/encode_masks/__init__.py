"""Masks of single objects, pasted into images that are stored as run lengths or bits only.

`encode_masks` builds the Relay expression; `reference.encode_masks` says in NumPy what it answers.
"""

from .op import encode_masks

__all__ = ["encode_masks"]
