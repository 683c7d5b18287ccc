"""Passes over graphs of Relax, by the same rules as those over graphs of Relay."""

from __future__ import annotations

from topi_ext.bootstrap import tvm_in_use

if tvm_in_use.has_relay:
    raise tvm_in_use.error_without_relax("tvm_passes.relax")

import tvm

from .convert_to_nhwc import ConvertToNHWC
from .dense_as_convolution import DenseAsConvolution
from .fuse_conv2d_nhwc import FuseConv2dNHWC
from .identify_weights import IdentifyWeights
from .upsample_by_shuffle import UpsampleByShuffle


def convolution_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """The passes that make the convolutions of an imported network fast on a target."""
    on_llvm = target.kind.name == "llvm"
    passes = [
        *([UpsampleByShuffle()] if on_llvm else []),
        ConvertToNHWC(),
        FuseConv2dNHWC(target),
        *([DenseAsConvolution()] if on_llvm else []),
        IdentifyWeights(),
    ]
    return tvm.transform.Sequential(passes, name="convolution_pipeline")


__all__ = [
    "ConvertToNHWC",
    "DenseAsConvolution",
    "FuseConv2dNHWC",
    "IdentifyWeights",
    "UpsampleByShuffle",
    "convolution_pipeline",
]
