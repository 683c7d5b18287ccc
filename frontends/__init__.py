"""Importers that give Relay modules with the names, types and spans that the passes look at."""

from topi_ext import bootstrap  # noqa: F401  (before anything that imports tvm)

from .camera import Camera, MMDet
from .errors import ImportFailure
from .from_onnx import from_onnx
from .from_pytorch import from_pytorch

__all__ = ["Camera", "ImportFailure", "MMDet", "from_onnx", "from_pytorch"]
