"""The passes of this project in order: pipelines of stages, stages of passes.

Each line whose position matters says why.
"""

from __future__ import annotations

import warnings
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relay

from .analysis.constants import with_weights
from .analysis.half_precision import HALF
from .analysis.targets import (
    TENSOR_CORES,
    best_dtype,
    check_that_a_cpu_multiplies,
    has_onednn,
    has_tensor_cores,
    is_for_cpu,
    is_for_gpu,
    target_or_current,
)
from .cleanup.canonicalize import Canonicalize
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
from .engine.free_variables import check, unchecked
from .engine.graph import calls_of
from .engine.report import Report, recording
from .engine.typed import remembering
from .engine.without_collector import without_collector
from .quantize.calibration import Calibration
from .quantize.float_from_qdq import FloatFromQDQ
from .quantize.in_int8 import InInt8
from .runtime.params_argument import checked
from .subpixel.convolve_before_resize import ConvolveBeforeResize
from .subpixel.fold_space_to_depth import FoldSpaceToDepth
from .subpixel.move_depth_to_space import MoveDepthToSpace
from .subpixel.reorder_depth_to_space import ReorderDepthToSpace
from .subpixel.restore_depth_to_space import RestoreDepthToSpace
from .subpixel.sink_depth_to_space import SinkDepthToSpace
from .subpixel.upsample_by_shuffle import UpsampleByShuffle
from .warps.restore_warp_affine import RestoreWarpAffine
from .warps.restore_warp_perspective import RestoreWarpPerspective

DTYPES = ("float32", "float16", "bfloat16", "int8")  # that convolutions are computed in
OUTPUTS = ("dynamic", "cut", "padded")
MASKS: dict[str, Any] = {"pasted": None, "raw": ReturnRawMasks, "encoded": ReturnEncodedMasks}


def detection_pipeline(
    target: str | tvm.target.Target | None = None,
    dtype: str | None = None,
    outputs: str | None = None,
    masks: str | None = None,
    calibration: Calibration | None = None,
) -> tvm.transform.Sequential:
    """The passes that make detection networks fast.

    For a GPU, and for a CPU with oneDNN, weights must be bound to the function, as `explain` does it: of
    convolutions whose weights are parameters, most passes refuse to change anything.

    `target` is the target to compile for, by default the current one. For a GPU with tensor cores, as
    `-arch=sm_XX` tells, shapes become static and convolutions are computed in NHWC and in `dtype`, by default
    "float16"; boxes and scores stay float32. "float32" keeps all types, and the layout. For a CPU
    with oneDNN, as `-libs=onednn` in the target tells, it computes convolutions and fully connected layers in
    NHWC, by default in float32; "bfloat16" takes half of the time where the processor multiplies it.
    "int8", for a GPU, computes the convolutions in int8 whose bounds a `calibration` has, and the others in
    float16; without a calibration, the passes are those to give to `tvm_passes.quantize.calibrate`.

    `outputs` is the form of the outputs: "dynamic", with a row per detection; "cut", the same, but from a
    graph that is static up to there, for TVM's virtual machine; or "padded", static too, with
    `num_detections` as the last output, for TVM's graph executor. The default is "cut" for tensor cores,
    else "dynamic": a CPU is faster if it computes no padding.

    `masks` is the form of a Mask R-CNN's masks: "pasted" into images, as the network returns them, the
    default; "raw", as by `ReturnRawMasks`; or "encoded", as by `ReturnEncodedMasks`.
    """
    masks = masks or "pasted"
    if masks not in MASKS:
        raise ValueError(f"detection_pipeline: masks must be one of {', '.join(MASKS)}, not {masks!r}")
    if outputs not in (None, *OUTPUTS):
        raise ValueError(f"detection_pipeline: outputs must be one of {', '.join(OUTPUTS)}, not {outputs!r}")
    machine = target_or_current(target, "detection_pipeline")
    dtype = _dtype("detection_pipeline", machine, dtype, calibration)
    on_tensor_cores = has_tensor_cores(machine, dtype)
    is_ours = on_tensor_cores or has_onednn(machine)
    in_half = dtype != "float32"
    if in_half and not is_ours:
        raise ValueError(
            f'detection_pipeline: {dtype} needs tensor cores: give a target such as "cuda -arch=sm_90", with '
            f"an architecture of at least sm_{TENSOR_CORES[dtype]}"
        )
    # TVM does not compile bfloat16 of dynamic shapes for a CPU.
    outputs = outputs or ("cut" if on_tensor_cores or (has_onednn(machine) and in_half) else "dynamic")
    stages = [*_in_float(dtype), _restore_detection(), _restore_warps()]
    if MASKS[masks]:
        stages.append(_stage("return other masks", MASKS[masks]()))
    if outputs != "dynamic":
        stages.append(_fix_shapes(machine, outputs))
    if is_ours:
        stages += [
            _convolutions_of_all(machine),
            _in_nhwc(machine, dtype, calibration),
            _whole_images(),
        ]
    else:
        stages.append(_stage("fold preprocessing", FoldPreprocessing()))
    if is_for_gpu(machine) and outputs == "padded":  # for the graph executor, whose steps can run at once
        stages.append(_stage("fill images early", FillImagesEarly(machine)))
    return _Pipeline([*stages, _finish(machine)], "detection_pipeline", computes_convolutions=is_ours)


def subpixel_pipeline(
    target: str | tvm.target.Target | None = None,
    dtype: str | None = None,
    calibration: Calibration | None = None,
) -> tvm.transform.Sequential:
    """The passes that make sub-pixel convolution networks fast; weights must be bound to the function.

    `target` is the target to compile for, by default the current one; without one, any that can run NHWC. For
    a GPU with tensor cores, as `-arch=sm_XX` tells, convolutions become `topi_ext.conv2d_nhwc` in `dtype`, by
    default "float16", since tensor cores do not multiply float32. "float32" keeps all types.
    "int8" is that of `detection_pipeline`.
    """
    machine = target_or_current(target, "subpixel_pipeline")
    dtype = _dtype("subpixel_pipeline", machine, dtype, calibration)
    is_dense_ours = has_tensor_cores(machine, dtype) or has_onednn(machine)
    shuffles = _restore_shuffles(_dense(machine) if is_dense_ours else [])
    stages = [*_in_float(dtype), _restore_warps(), shuffles]
    # On a CPU without oneDNN, TVM compiles NCHW to a blocked layout, which is several times faster there than
    # NHWC, and faster than our own kernel for NHWC: see tests/benchmarks/results.
    is_ours = not is_for_cpu(machine) or has_onednn(machine)
    if is_ours:
        stages += [_move_shuffles(machine, dtype), _in_nhwc(machine, dtype, calibration)]
    if is_dense_ours:
        stages.append(_stage("merge whole images", ImagesAsOne(), Canonicalize()))
    return _Pipeline([*stages, _finish(machine)], "subpixel_pipeline", computes_convolutions=is_ours)


def default_pipeline() -> tvm.transform.Sequential:
    """All passes that preserve a network's results, in order."""
    front = _stage("fold preprocessing", FoldPreprocessing())
    shuffles = _stage("shuffles", RestoreDepthToSpace())
    stages = [_restore_detection(), _restore_warps(), front, shuffles, _finish()]
    return _Pipeline(stages, "tvm_vision_passes")


def explain(
    mod: tvm.IRModule,
    passes: tvm.transform.Pass | None = None,
    params: dict[str, tvm.nd.NDArray] | None = None,
) -> Report:
    """Apply passes (by default `default_pipeline`), and report what each rule rewrote and refused.

    `params` are weights that are not bound to the function yet; most passes over convolutions rearrange them,
    and refuse those that are parameters. The report prints as a table; its `module` is the rewritten module.
    """
    params = checked(mod, params, "explain")
    if not isinstance(passes, (tvm.transform.Pass, type(None))):
        raise TypeError(
            f"explain: passes must be a pass, not {passes!r}: call a class, such as RestoreBatchedNMS(), and "
            "give several as tvm.transform.Sequential([...])"
        )
    with recording() as report:
        report.module = (passes or default_pipeline())(with_weights(mod, params))
    report.say_refusals_once()
    return report


# --- the stages


def _in_float(dtype: str) -> list[tvm.transform.Sequential]:
    # First, since rounded tensors hide from all other passes what they are parts of.
    return [_stage("take rounding out", FloatFromQDQ())] if dtype == "int8" else []


def _restore_detection() -> tvm.transform.Sequential:
    return _stage(
        "restore detection",
        Canonicalize(),  # the frontends have done it; other importers' modules need it
        RestoreBatchedNMS(),  # before any cast to half: the offsets between classes would be rounded
        MergeClassLoops(),  # after the NMS inside a loop are restored, and before passes look at each class
        FoldPostNMSTopK(),  # after the branch for no boxes, between NMS and slice, is gone
        FoldPreNMSFilter(),  # after FoldPostNMSTopK has seen that its top-k takes the first kept boxes
        RestoreMultiScaleRoIAlign(),  # before any cast to half: levels are computed in float32
        RestoreDeformableAttention(),  # before any cast to half, too: points are float32
        RestoreLayerNorm(),  # before layouts and types change what is between its operators
        RestoreGroupNorm(),  # of rows that are groups of channels, RestoreLayerNorm has made one operator
        LowerClassAwareNMS(),  # takes the NMS that are left: one image and class need no gathered rows
        Canonicalize(),  # folds the bounds of slices that the passes before have written
    )


def _restore_warps() -> tvm.transform.Sequential:
    # Before any cast to half: points are float32.
    return _stage("restore warps", RestoreWarpAffine(), RestoreWarpPerspective())


def _fix_shapes(target: tvm.target.Target | None, outputs: str) -> tvm.transform.Sequential:
    # On a CPU, an NMS of several images takes as long as theirs together.
    merge = [MergeNMSOfImages()] if is_for_gpu(target) else []
    return _stage(
        "fix shapes",
        MakeDetectionStatic(outputs),
        *merge,  # of static shapes, and after MakeDetectionStatic has followed the NMS of each image
        Canonicalize(),  # also drops the tuples that stand for the results of each merged NMS
    )


def _convolutions_of_all(target: tvm.target.Target | None) -> tvm.transform.Sequential:
    # Of static shapes, and before layouts and types change what is in between.
    return _stage(
        "rewrite as convolutions",
        *_dense(target),
        UpsampleByShuffle(),
        FoldIntoConvolutions(),  # batch norms, while their results are still float32
        SinkDepthToSpace(),  # past bias and activation, which a convolution takes in
    )


def _dense(target: tvm.target.Target | None) -> list[tvm.transform.Pass]:
    attention = [] if has_onednn(target) else [RestoreAttention()]  # oneDNN has fast products of a batch
    return [*attention, DenseAsConvolution(target)]


def _whole_images() -> tvm.transform.Sequential:
    return _stage(
        "fold preprocessing, and merge whole images",
        FoldPreprocessing(),  # with the layout and the type that the first convolution takes
        ImagesAsOne(),
        Canonicalize(),
    )


def _restore_shuffles(dense: list[tvm.transform.Pass]) -> tvm.transform.Sequential:
    return _stage(
        "restore shuffles",
        Canonicalize(),
        RestoreLayerNorm(),  # before FoldIntoConvolutions takes gamma and beta
        RestoreGroupNorm(),  # of rows that are groups of channels, RestoreLayerNorm has made one operator
        RestoreDepthToSpace(),
        *dense,  # with the norms restored, and before FoldIntoConvolutions takes the scales of layers
        UpsampleByShuffle(),
        FoldIntoConvolutions(),  # factors that the passes below would have to carry along
        FoldSpaceToDepth(),  # while still in NCHW: the reshapes of pixel_unshuffle cannot be converted
        SinkDepthToSpace(),  # so that shuffles are next to convolutions
    )


def _move_shuffles(target: tvm.target.Target | None, dtype: str) -> tvm.transform.Sequential:
    if not has_tensor_cores(target, dtype):
        return _stage("move shuffles", ReorderDepthToSpace())
    return _stage(
        "move shuffles",
        PoolByMeans(),
        SplitConcatenate(target),  # before shuffles move: a part may be shuffled where the whole is not
        ConvolveBeforeResize(),  # also of a part; it makes shuffles, which the passes below take along
        SinkDepthToSpace(),  # those shuffles, past bias and activation
        ReorderDepthToSpace(),
        MoveDepthToSpace(),
        SinkDepthToSpace(),  # past the bias of the convolution that they moved past
    )


def _in_nhwc(
    target: tvm.target.Target | None, dtype: str, calibration: Calibration | None
) -> tvm.transform.Sequential:
    half = {"float32": None, "int8": "float16"}.get(dtype, dtype)
    # Slices first: those of bounds in tensors stay in NCHW.
    converted = SliceByLengths(), ConvertToNHWC(target, to_be=half), CombineTransposes()
    if half is None:
        fuse = FuseConv2dNHWC(also_float32=has_onednn(target), target=target)
        return _stage("in NHWC", *converted, fuse)
    for_a_gpu = [
        SelectBeforeConvolution(),  # before the filters are merged with others, or aligned
        MergeConvolutions(),  # after activations are in the convolutions, which must have the same one
        PatchesAsPixels(target),
        PixelsInPairs(target),  # in int8, too, where the first convolution stays in float16
        PixelsAsFilters(target),  # of merged filters, and before filters of zeros are repeated for each pixel
        AlignFilters(target),  # of all filters, in the type in which they are computed
    ]
    return _stage(
        f"in NHWC and {dtype}",
        *converted,
        FuseConv2dNHWC(to_be=half, target=target),  # after all that changes which operators are adjacent
        # Of whole convolutions, whose weights are still those that have been calibrated; but of filters from
        # which one is selected, that one costs less in float than all in int8.
        *([SelectBeforeConvolution(), InInt8(calibration)] if dtype == "int8" else []),
        InMixedPrecision(half),  # after a bias is part of its convolution, which adds it in float32
        Canonicalize(),  # drops InMixedPrecision's casts to the type that a tensor has already
        *([] if has_onednn(target) else for_a_gpu),
    )


def _finish(target: tvm.target.Target | None = None) -> tvm.transform.Sequential:
    # Last, since passes look for what importers write; LimitFusion needs the graph that TVM compiles.
    passes = [
        # Not without a target: what of detections is known, other passes may still ask then.
        *([SliceByLengths()] if target else []),
        *([AttendInPlace()] if is_for_gpu(target) else []),  # in the layouts and types that are computed
        SpareKernels(),
        SeparateMaxPools(),
        *([SumInParts()] if is_for_gpu(target) else []),  # of what no attention, nor convolution, computes
        *([ConcatenateInPlace(target)] if is_for_gpu(target) else []),  # a split is read as a whole by now
        LimitFusion(),
        SeparateScalars(),  # after all that takes equal constants for one
    ]
    if has_onednn(target):
        passes.append(IdentifyWeights())  # after all that changes weights
    return _stage("finish", *passes)


def _stage(name: str, *passes: tvm.transform.Pass) -> tvm.transform.Sequential:
    return tvm.transform.Sequential(list(passes), name=name)


class _Pipeline(tvm.transform.Sequential):
    """Passes most of which change nothing: called from Python, they leave types and graphs to one another."""

    def __init__(
        self, stages: list[tvm.transform.Pass], name: str, computes_convolutions: bool = False
    ) -> None:
        super().__init__(stages, name=name)
        self.computes_convolutions = computes_convolutions

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        if self.computes_convolutions:
            _warn_of_parameters(mod, self.info.name)
        with remembering(), without_collector(), unchecked():
            mod = super().__call__(mod)
        check(mod)
        return mod


def _warn_of_parameters(mod: tvm.IRModule, caller: str) -> None:
    """Nothing fails where weights are parameters, and convolutions take many times as long."""
    count = sum(isinstance(conv.args[1], relay.Var) for conv in calls_of(mod, "nn.conv2d"))
    if count:
        warnings.warn(
            f"{caller}: weights of the convolutions are parameters ({count} of them), which few passes "
            "change: bind them, as tvm_passes.explain(mod, passes, params) does",
            stacklevel=3,
        )


# --- targets


def _dtype(
    pipeline: str, target: tvm.target.Target | None, dtype: str | None, calibration: Calibration | None
) -> str:
    """The type that the caller wants, or the best one."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"{pipeline}: dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if dtype in HALF and target is not None and is_for_cpu(target):
        check_that_a_cpu_multiplies(dtype, target, pipeline)
    dtype = dtype or ("int8" if calibration is not None else best_dtype(target))
    if calibration is not None and dtype != "int8":
        raise ValueError(f"{pipeline}: a calibration is for int8, not for {dtype}")
    if dtype == "int8" and not has_tensor_cores(target, dtype):
        raise ValueError(
            f'{pipeline}: in int8, convolutions need a GPU: give a target such as "cuda -arch=sm_90", with '
            f"an architecture of at least sm_{TENSOR_CORES[dtype]}"
        )
    return dtype
