"""Masks of single objects, each pasted into an image of its own at the object's box.

`paste_masks` builds the Relay expression; `reference.paste_masks` says in NumPy what it answers.
"""

from .op import paste_masks

__all__ = ["paste_masks"]
