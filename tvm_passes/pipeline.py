"""The passes of this project, in the order they are applied; each line that needs its place says why."""

import tvm

from ._report import recording
from .canonicalize import Canonicalize
from .fold_post_nms_topk import FoldPostNMSTopK
from .fold_pre_nms_filter import FoldPreNMSFilter
from .lower_class_aware_nms import LowerClassAwareNMS
from .restore_batched_nms import RestoreBatchedNMS
from .restore_depth_to_space import RestoreDepthToSpace
from .restore_multiscale_roi_align import RestoreMultiScaleRoIAlign


def detection_pipeline():
    """What makes detection networks fast, in order."""
    return tvm.transform.Sequential(
        [
            Canonicalize(),  # the frontends have done it; other importers' modules need it
            RestoreBatchedNMS(),  # before any cast to fp16: the offsets between classes would be rounded
            FoldPostNMSTopK(),  # after the branch for no boxes is gone from between NMS and slice
            FoldPreNMSFilter(),  # after the top-k has found that it takes the first of the kept boxes
            RestoreMultiScaleRoIAlign(),  # before any cast to fp16: levels are computed in float32
            LowerClassAwareNMS(),  # takes what is left: one picture and class need no rows to gather
            Canonicalize(),  # folds the bounds of the slices that the passes before have written
        ],
        name="detection_pipeline",
    )


def default_pipeline():
    """Every pass that keeps a network's results, in order."""
    return tvm.transform.Sequential([detection_pipeline(), RestoreDepthToSpace()], name="tvm_vision_passes")


def explain(mod, passes=None):
    """Apply passes (by default all of `default_pipeline`), and say what each rule did and refused.

    The answer prints as a table; `answer.module` is the rewritten module.
    """
    with recording() as report:
        report.module = (passes or default_pipeline())(mod)
    return report
