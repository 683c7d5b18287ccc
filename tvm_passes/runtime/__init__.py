"""A compiled network as a function of tensors, of torch, NumPy or TVM.

    model = runtime.compile(mod, "cuda", params)
    detections = model(image)  # torch in, torch out: {"boxes": ..., "scores": ..., ...}

    runtime.save("detector", runtime.build_library(mod, "cuda", params), mod, "cuda")
    model = runtime.load("detector")

    kernels = runtime.profile(model, image.numpy())

    lib = tvm.runtime.load_module("detector.so")  # that export_library wrote
    model = runtime.Model(lib, "cuda", output_names=["boxes", "scores", "labels"])

A library alone holds neither the names of outputs nor, for the virtual machine, what inputs are to be.
"""

from .build import build_library, compile
from .failure import CompileFailure
from .folder import FolderError, load, read_manifest, save
from .model import Model
from .profiling import profile

__all__ = [
    "CompileFailure",
    "FolderError",
    "Model",
    "build_library",
    "compile",
    "load",
    "profile",
    "read_manifest",
    "save",
]
