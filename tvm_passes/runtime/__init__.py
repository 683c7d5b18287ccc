"""A compiled network as a function of tensors, of torch, NumPy or TVM.

    model = runtime.compile(mod, "cuda", params)
    detections = model(image)  # torch in, torch out: {"boxes": ..., "scores": ..., ...}

    model.lib.export_library("detector.so")
    lib = tvm.runtime.load_module("detector.so")
    model = runtime.Model(lib, "cuda", output_names=["boxes", "scores", "labels"])

A library holds neither the names of outputs nor, for the virtual machine, what inputs are to be.
"""

from .build import compile
from .model import Model

__all__ = ["Model", "compile"]
