"""Compiler passes that make imported detection and super-resolution graphs fast in TVM Relay."""

import sys
from pathlib import Path

try:
    from topi_ext import _bootstrap  # noqa: F401  (before anything that imports tvm)
except ImportError:
    if Path(sys.argv[0]).name not in ("-m", "tvm-passes"):  # the command itself says what is missing
        raise
else:
    from . import runtime
    from ._report import PassReport, Report, recording
    from ._rule import Rule, RulePass
    from ._text import as_text
    from ._verify import PassBrokeModule, verify_each_pass
    from .canonicalize import Canonicalize, canonical_pipeline
    from .combine_transposes import CombineTransposes
    from .convert_to_nhwc import ConvertToNHWC, FoldIntoConvolutions
    from .dense_as_convolution import DenseAsConvolution
    from .fold_post_nms_topk import FoldPostNMSTopK
    from .fold_pre_nms_filter import FoldPreNMSFilter
    from .fold_preprocessing import FoldPreprocessing
    from .fold_space_to_depth import FoldSpaceToDepth
    from .fuse_conv2d_nhwc import FuseConv2dNHWC
    from .limit_fusion import LimitFusion
    from .lower_class_aware_nms import LowerClassAwareNMS
    from .make_detection_static import MakeDetectionStatic
    from .mixed_precision import InMixedPrecision
    from .move_depth_to_space import MoveDepthToSpace
    from .pictures_as_one import PicturesAsOne
    from .pipeline import default_pipeline, detection_pipeline, explain, subpixel_pipeline
    from .pool_by_means import PoolByMeans
    from .reorder_depth_to_space import ReorderDepthToSpace
    from .restore_batched_nms import RestoreBatchedNMS
    from .restore_depth_to_space import RestoreDepthToSpace
    from .restore_multiscale_roi_align import RestoreMultiScaleRoIAlign
    from .return_raw_masks import ReturnRawMasks
    from .sink_depth_to_space import SinkDepthToSpace
    from .split_concatenate import SplitConcatenate
    from .upsample_by_shuffle import UpsampleByShuffle

__all__ = [
    "Canonicalize",
    "CombineTransposes",
    "ConvertToNHWC",
    "DenseAsConvolution",
    "FoldIntoConvolutions",
    "FoldPostNMSTopK",
    "FoldPreNMSFilter",
    "FoldPreprocessing",
    "FoldSpaceToDepth",
    "FuseConv2dNHWC",
    "InMixedPrecision",
    "LimitFusion",
    "LowerClassAwareNMS",
    "MakeDetectionStatic",
    "MoveDepthToSpace",
    "PassBrokeModule",
    "PassReport",
    "PicturesAsOne",
    "PoolByMeans",
    "ReorderDepthToSpace",
    "Report",
    "RestoreBatchedNMS",
    "RestoreDepthToSpace",
    "RestoreMultiScaleRoIAlign",
    "ReturnRawMasks",
    "Rule",
    "RulePass",
    "SinkDepthToSpace",
    "SplitConcatenate",
    "UpsampleByShuffle",
    "as_text",
    "canonical_pipeline",
    "default_pipeline",
    "detection_pipeline",
    "explain",
    "recording",
    "runtime",
    "subpixel_pipeline",
    "verify_each_pass",
]
