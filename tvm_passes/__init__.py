"""Compiler passes that make imported detection and super-resolution graphs fast in TVM Relay."""

from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__  # noqa: F401

try:
    from topi_ext import bootstrap  # before anything that imports tvm
    from topi_ext.bootstrap.not_installed import says_what_to_do as _says_what_to_do

    with _says_what_to_do():
        import rich as _rich  # noqa: F401  (for reports)
except ImportError as error:
    import warnings as _warnings

    # A warning now, an error at the first use, so that `python -m tvm_passes doctor` can say what is missing.
    _warnings.warn(f"tvm_passes cannot be used: {error}", RuntimeWarning, stacklevel=2)
    _missing = error

    def __getattr__(name: str) -> Any:
        """Raise: every attribute needs the missing package."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing

else:
    if TYPE_CHECKING or bootstrap.tvm_in_use.compiles:
        from .engine.report import PassReport, Report, recording
        from .guarded_passes import guard_passes as _guard_passes

        _guard_passes()

    if TYPE_CHECKING or bootstrap.tvm_in_use.has_relay:
        from ._moved import keep_old_names as _keep_old_names
        from ._moved import renamed as __getattr__

        _keep_old_names()
        from . import analysis, engine, quantize, runtime
        from .cleanup.canonicalize import Canonicalize, canonical_pipeline
        from .cleanup.combine_transposes import CombineTransposes
        from .cleanup.limit_fusion import LimitFusion
        from .cleanup.separate_max_pools import SeparateMaxPools
        from .cleanup.separate_scalars import SeparateScalars
        from .cleanup.slice_by_lengths import SliceByLengths
        from .cleanup.spare_kernels import SpareKernels
        from .cleanup.sum_in_parts import SumInParts
        from .convolution.align_filters import AlignFilters
        from .convolution.attend_in_place import AttendInPlace
        from .convolution.concatenate_in_place import ConcatenateInPlace
        from .convolution.convert_to_nhwc import ConvertToNHWC
        from .convolution.dense_as_convolution import DenseAsConvolution
        from .convolution.fold_into_convolutions import FoldIntoConvolutions
        from .convolution.fuse_conv2d_nhwc import FuseConv2dNHWC
        from .convolution.identify_weights import IdentifyWeights
        from .convolution.images_as_one import ImagesAsOne
        from .convolution.in_mixed_precision import InMixedPrecision
        from .convolution.merge_convolutions import MergeConvolutions
        from .convolution.patches_as_pixels import PatchesAsPixels
        from .convolution.pixels_as_filters import PixelsAsFilters
        from .convolution.pixels_in_pairs import PixelsInPairs
        from .convolution.pool_by_means import PoolByMeans
        from .convolution.restore_attention import RestoreAttention
        from .convolution.restore_group_norm import RestoreGroupNorm
        from .convolution.restore_layer_norm import RestoreLayerNorm
        from .convolution.select_before_convolution import SelectBeforeConvolution
        from .convolution.split_concatenate import SplitConcatenate
        from .detection.fill_images_early import FillImagesEarly
        from .detection.fold_post_nms_topk import FoldPostNMSTopK
        from .detection.fold_pre_nms_filter import FoldPreNMSFilter
        from .detection.fold_preprocessing import FoldPreprocessing
        from .detection.lower_class_aware_nms import LowerClassAwareNMS
        from .detection.make_detection_static import MakeDetectionStatic
        from .detection.merge_class_loops import MergeClassLoops
        from .detection.merge_nms_of_images import MergeNMSOfImages
        from .detection.restore_batched_nms import RestoreBatchedNMS
        from .detection.restore_deformable_attention import RestoreDeformableAttention
        from .detection.restore_multiscale_roi_align import RestoreMultiScaleRoIAlign
        from .detection.return_encoded_masks import ReturnEncodedMasks
        from .detection.return_raw_masks import ReturnRawMasks
        from .engine.rule import Rule, RulePass
        from .engine.text import as_text
        from .engine.verify import PassBrokeModule, verify_each_pass
        from .pipeline import default_pipeline, detection_pipeline, explain, subpixel_pipeline
        from .quantize.float_from_qdq import FloatFromQDQ
        from .quantize.in_int8 import InInt8
        from .subpixel.convolve_before_resize import ConvolveBeforeResize
        from .subpixel.fold_space_to_depth import FoldSpaceToDepth
        from .subpixel.move_depth_to_space import MoveDepthToSpace
        from .subpixel.reorder_depth_to_space import ReorderDepthToSpace
        from .subpixel.restore_depth_to_space import RestoreDepthToSpace
        from .subpixel.sink_depth_to_space import SinkDepthToSpace
        from .subpixel.upsample_by_shuffle import UpsampleByShuffle
        from .warps.restore_warp_affine import RestoreWarpAffine
        from .warps.restore_warp_perspective import RestoreWarpPerspective
    else:
        from . import runtime

        if bootstrap.tvm_in_use.compiles:
            from . import relax  # noqa: F401
        __getattr__ = bootstrap.tvm_in_use.getattr_without_relay(__name__)


__all__ = [
    "AlignFilters",
    "AttendInPlace",
    "Canonicalize",
    "CombineTransposes",
    "ConcatenateInPlace",
    "ConvertToNHWC",
    "ConvolveBeforeResize",
    "DenseAsConvolution",
    "FillImagesEarly",
    "FloatFromQDQ",
    "FoldIntoConvolutions",
    "FoldPostNMSTopK",
    "FoldPreNMSFilter",
    "FoldPreprocessing",
    "FoldSpaceToDepth",
    "FuseConv2dNHWC",
    "IdentifyWeights",
    "ImagesAsOne",
    "InInt8",
    "InMixedPrecision",
    "LimitFusion",
    "LowerClassAwareNMS",
    "MakeDetectionStatic",
    "MergeClassLoops",
    "MergeConvolutions",
    "MergeNMSOfImages",
    "MoveDepthToSpace",
    "PassBrokeModule",
    "PassReport",
    "PatchesAsPixels",
    "PixelsAsFilters",
    "PixelsInPairs",
    "PoolByMeans",
    "ReorderDepthToSpace",
    "Report",
    "RestoreAttention",
    "RestoreBatchedNMS",
    "RestoreDeformableAttention",
    "RestoreDepthToSpace",
    "RestoreGroupNorm",
    "RestoreLayerNorm",
    "RestoreMultiScaleRoIAlign",
    "RestoreWarpAffine",
    "RestoreWarpPerspective",
    "ReturnEncodedMasks",
    "ReturnRawMasks",
    "Rule",
    "RulePass",
    "SelectBeforeConvolution",
    "SeparateMaxPools",
    "SeparateScalars",
    "SinkDepthToSpace",
    "SliceByLengths",
    "SpareKernels",
    "SplitConcatenate",
    "SumInParts",
    "UpsampleByShuffle",
    "analysis",
    "as_text",
    "canonical_pipeline",
    "default_pipeline",
    "detection_pipeline",
    "engine",
    "explain",
    "quantize",
    "recording",
    "runtime",
    "subpixel_pipeline",
    "verify_each_pass",
]
