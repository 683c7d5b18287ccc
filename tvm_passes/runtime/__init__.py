"""A compiled network as a function of tensors, of torch, NumPy or TVM.

    model = runtime.compile(mod, "cuda", params)
    detections = model(image)  # torch in, torch out: {"boxes": ..., "scores": ..., ...}

    runtime.save("detector", runtime.build_library(mod, "cuda", params), mod, "cuda")
    model = runtime.load("detector")

    models = runtime.load_sizes("detector-of-1-and-8")  # {1: model, 8: model}, with common weights

    kernels = runtime.profile(model, image.numpy())

    lib = tvm.runtime.load_module("detector.so")  # that export_library wrote
    model = runtime.Model(lib, "cuda", output_names=["boxes", "scores", "labels"])

A library by itself has no names of outputs and, for the virtual machine, no types of inputs.
"""

from typing import TYPE_CHECKING

from topi_ext.bootstrap import tvm_in_use

from .build import build_library, compile
from .coco import coco_masks
from .compile_failure import CompileFailure
from .folder import load, load_sizes, save, save_sizes
from .manifest import FolderError, read_manifest
from .model import Model
from .profiling import call_ms, ms_by_kind, profile

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .tuning import tune
else:
    __getattr__ = tvm_in_use.getattr_without_relay(__name__)

__all__ = [
    "CompileFailure",
    "FolderError",
    "Model",
    "build_library",
    "call_ms",
    "coco_masks",
    "compile",
    "load",
    "load_sizes",
    "ms_by_kind",
    "profile",
    "read_manifest",
    "save",
    "save_sizes",
    "tune",
]
