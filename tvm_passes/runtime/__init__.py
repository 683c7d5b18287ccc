"""A compiled network as a function of tensors, of torch, NumPy or TVM.

model = runtime.compile(mod, "cuda", params)
detections = model(image)  # torch in, torch out: {"boxes": ..., "scores": ..., ...}

model.lib.export_library("detector.so")
model = runtime.Model(tvm.runtime.load_module("detector.so"), "cuda", output_names=model.output_names)
"""

from .build import compile
from .model import Model

__all__ = ["Model", "compile"]
