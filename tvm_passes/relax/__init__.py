"""Passes over graphs of Relax, by the same rules as those over graphs of Relay."""

from __future__ import annotations

from topi_ext.bootstrap import tvm_in_use

if tvm_in_use.has_relay:
    raise tvm_in_use.error_without_relax("tvm_passes.relax")
if not tvm_in_use.compiles:
    raise tvm_in_use.error_without_compiler("tvm_passes.relax")

import tvm

from ..analysis.half_precision import HALF
from ..analysis.targets import (
    best_dtype,
    check_that_a_cpu_multiplies,
    has_tensor_cores,
    is_for_cpu,
    target_of,
)
from .align_filters import AlignFilters
from .convert_to_nhwc import ConvertToNHWC
from .dense_as_convolution import DenseAsConvolution
from .fuse_conv2d_nhwc import FuseConv2dNHWC
from .fuse_norms import FuseNorms
from .identify_weights import IdentifyWeights
from .in_mixed_precision import InMixedPrecision
from .restore_batched_nms import RestoreBatchedNMS
from .select_top_k import SelectTopK
from .separate_max_pools import SeparateMaxPools
from .upsample_by_shuffle import UpsampleByShuffle


def convolution_pipeline(target: str | tvm.target.Target, dtype: str | None = None) -> tvm.transform.Pass:
    """The passes that restore the NMS of an imported network, and make its convolutions fast on a target.

    `dtype` is the type of convolutions and fully connected layers, by default "float16" for a GPU with tensor
    cores, which do not multiply float32, as `arch` tells; boxes and scores stay float32. "float32" keeps all
    types. A CPU needs oneDNN, as `libs` tells, for "bfloat16" and "float16", and a processor that multiplies
    them.
    """
    target = target_of(target, "convolution_pipeline")
    dtype = dtype or best_dtype(target)
    on_llvm, half = is_for_cpu(target), None if dtype == "float32" else dtype
    if half not in (None, *HALF):
        raise ValueError(f"convolution_pipeline: dtype must be float32, {' or '.join(HALF)}, not {dtype!r}")
    if half and on_llvm:
        check_that_a_cpu_multiplies(half, target, "convolution_pipeline")
    if half and not on_llvm and not has_tensor_cores(target, half):
        raise ValueError(f"convolution_pipeline: the target has no tensor cores for {half}")
    has_kernels = on_llvm or half is not None  # for what is no convolution yet
    passes = [
        RestoreBatchedNMS(),  # before any cast to half: the offsets between classes would be rounded
        *([UpsampleByShuffle(half, target)] if has_kernels else []),
        ConvertToNHWC(),
        FuseConv2dNHWC(target, half),
        *([DenseAsConvolution(half)] if has_kernels else []),
        *([FuseNorms()] if target.kind.name in ("llvm", "cuda") else []),
        *([InMixedPrecision(half)] if half else []),  # after a bias is part of its convolution: it is float32
        AlignFilters(target),
        SelectTopK(target),
        SeparateMaxPools(),
        IdentifyWeights(),
    ]
    return tvm.transform.Sequential(passes, name="convolution_pipeline")


__all__ = [
    "AlignFilters",
    "ConvertToNHWC",
    "DenseAsConvolution",
    "FuseConv2dNHWC",
    "FuseNorms",
    "IdentifyWeights",
    "InMixedPrecision",
    "RestoreBatchedNMS",
    "SelectTopK",
    "SeparateMaxPools",
    "UpsampleByShuffle",
    "convolution_pipeline",
]
