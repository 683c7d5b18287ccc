"""Importers to Relay that keep the names, types and spans on which the passes rely.

In a process whose TVM is 0.27, `frontends.relax` has those to Relax.
"""

from typing import TYPE_CHECKING, Any

from topi_ext import bootstrap  # before anything that imports tvm
from topi_ext.bootstrap.not_installed import says_what_to_do as _says_what_to_do

if TYPE_CHECKING or bootstrap.tvm_in_use.has_relay:
    with _says_what_to_do():
        from .camera import Camera, MMDet
        from .errors import ImportFailure
        from .from_onnx import from_onnx
        from .from_pytorch import from_pytorch
else:

    def __getattr__(name: str) -> Any:
        """Raise: what is not in `frontends.relax` needs Relay."""
        if name in __all__:
            bootstrap.tvm_in_use.require_relay(f"frontends.{name}")
        raise AttributeError(name)


__all__ = ["Camera", "ImportFailure", "MMDet", "from_onnx", "from_pytorch"]
