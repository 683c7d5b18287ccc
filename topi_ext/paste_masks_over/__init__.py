"""Masks of single objects, each pasted over an image of its own at the object's box.

`paste_masks_over` builds the Relay expression; `reference.paste_masks_over` says in NumPy what it answers.
"""

from .op import paste_masks_over

__all__ = ["paste_masks_over"]
