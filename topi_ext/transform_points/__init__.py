"""Points brought from one coordinate system into another: one matrix for all, or one a sample.

`transform_points` builds the Relay expression; `reference.transform_points` says in NumPy what it answers.
"""

from .op import transform_points

__all__ = ["transform_points"]
