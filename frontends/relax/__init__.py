"""Importers to Relax, whose graphs TVM 0.27 has."""

from topi_ext.bootstrap import tvm_in_use

if tvm_in_use.has_relay:
    raise tvm_in_use.error_without_relax("frontends.relax")

from ..errors import ImportFailure
from .from_onnx import from_onnx
from .from_pytorch import from_pytorch
from .functions import batched_nms, nms

__all__ = ["ImportFailure", "batched_nms", "from_onnx", "from_pytorch", "nms"]
