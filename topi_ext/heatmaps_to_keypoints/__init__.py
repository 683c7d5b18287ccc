"""Keypoints of single objects, each where a heatmap, scaled to the object's box, is greatest.

`heatmaps_to_keypoints` builds the Relay expression; `reference.heatmaps_to_keypoints` says in NumPy what it
answers.
"""

from .op import heatmaps_to_keypoints

__all__ = ["heatmaps_to_keypoints"]
