"""Compiler passes that make imported detection and super-resolution graphs fast in TVM Relay."""

import sys

try:
    from topi_ext import _bootstrap  # noqa: F401  (before anything that imports tvm)
except ImportError:
    if sys.argv[:2] != ["-m", "doctor"]:  # `python -m tvm_passes doctor` itself says what is missing
        raise
else:
    from ._report import PassReport, Report, recording
    from ._rule import Rule, RulePass
    from ._verify import PassBrokeModule, verify_each_pass
    from .canonicalize import Canonicalize, canonical_pipeline
    from .fold_post_nms_topk import FoldPostNMSTopK
    from .fold_pre_nms_filter import FoldPreNMSFilter
    from .lower_class_aware_nms import LowerClassAwareNMS
    from .make_detection_static import MakeDetectionStatic
    from .pipeline import default_pipeline, detection_pipeline, explain
    from .restore_batched_nms import RestoreBatchedNMS
    from .restore_depth_to_space import RestoreDepthToSpace
    from .restore_multiscale_roi_align import RestoreMultiScaleRoIAlign

__all__ = [
    "Canonicalize",
    "FoldPostNMSTopK",
    "FoldPreNMSFilter",
    "LowerClassAwareNMS",
    "MakeDetectionStatic",
    "PassBrokeModule",
    "PassReport",
    "Report",
    "RestoreBatchedNMS",
    "RestoreDepthToSpace",
    "RestoreMultiScaleRoIAlign",
    "Rule",
    "RulePass",
    "canonical_pipeline",
    "default_pipeline",
    "detection_pipeline",
    "explain",
    "recording",
    "verify_each_pass",
]
