"""Let the NMS itself leave out the boxes that a filter in front of it takes away."""

from .._rule import RulePass
from .nms_of_filtered import NmsOfFiltered


class FoldPreNMSFilter(RulePass):
    """Replace an NMS of the rows that a mask leaves with an NMS of all rows that has a score threshold."""

    rules = (NmsOfFiltered,)
