"""Importers to Relay that keep the names, types and spans on which the passes rely.

In a process whose TVM is 0.27, `frontends.relax` has those to Relax.
"""

from typing import TYPE_CHECKING

from topi_ext import bootstrap  # before anything that imports tvm
from topi_ext.bootstrap.not_installed import says_what_to_do as _says_what_to_do

if TYPE_CHECKING or bootstrap.tvm_in_use.has_relay:
    with _says_what_to_do():
        from .camera import Camera, MMDet
        from .errors import ImportFailure
        from .from_onnx import from_onnx
        from .from_pytorch import from_pytorch
else:
    __getattr__ = bootstrap.tvm_in_use.getattr_without_relay(
        __name__, "The importers to Relax are in frontends.relax. "
    )

__all__ = ["Camera", "ImportFailure", "MMDet", "from_onnx", "from_pytorch"]
