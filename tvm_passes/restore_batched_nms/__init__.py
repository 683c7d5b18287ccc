"""Restore the class-aware NMS that detection graphs carry as one-class NMS on boxes moved apart by class."""

from .._rule import RulePass
from .empty_case import NmsOfNothing
from .imported_nms import NmsOfOnnx, NmsOfPyTorch
from .offset_trick import OffsetByClass
from .same_branches import SameNmsOnBothBranches


class RestoreBatchedNMS(RulePass):
    """Replace imported NMS with `topi_ext.batched_nms`, boxes moved apart by class with class ids."""

    rules = (NmsOfPyTorch, NmsOfOnnx, OffsetByClass, NmsOfNothing, SameNmsOnBothBranches)
