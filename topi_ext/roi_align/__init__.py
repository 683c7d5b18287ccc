"""RoIAlign of one feature map, or of a pyramid whose level each region picks by its size.

`multiscale_roi_align` and `roi_align` build the Relay expression; `reference` says in NumPy what it answers.
"""

from .op import multiscale_roi_align, roi_align

__all__ = ["multiscale_roi_align", "roi_align"]
