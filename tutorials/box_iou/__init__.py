"""How much every box of one list overlaps every box of another, as trackers ask to match them.

`box_iou` builds the Relay expression; `reference.box_iou` says in NumPy what it answers.
"""

from .op import box_iou

__all__ = ["box_iou"]
