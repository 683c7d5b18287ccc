"""Pooling of regions in whole pixels: their maxima, or the means of channels that belong to each bin.

`roi_pool` and `ps_roi_pool` build the Relay expression; `reference` says in NumPy what they answer.
"""

from .op import ps_roi_pool, roi_pool

__all__ = ["ps_roi_pool", "roi_pool"]
