"""Restore the RoIAlign of a feature pyramid that detection graphs carry as one RoIAlign a level."""

from .._rule import RulePass
from .one_by_level import OneByLevel


class RestoreMultiScaleRoIAlign(RulePass):
    """Replace one RoIAlign a level, each of that level's regions, with one that picks the level itself."""

    rules = (OneByLevel,)
