"""Importers to Relay that keep the names, types and spans on which the passes rely."""

from topi_ext import bootstrap  # noqa: F401  (before anything that imports tvm)
from topi_ext.bootstrap.not_installed import says_what_to_do as _says_what_to_do

with _says_what_to_do():
    from .camera import Camera, MMDet
    from .errors import ImportFailure
    from .from_onnx import from_onnx
    from .from_pytorch import from_pytorch

__all__ = ["Camera", "ImportFailure", "MMDet", "from_onnx", "from_pytorch"]
