"""Importers to Relax, whose graphs TVM 0.27 has."""

from topi_ext.bootstrap import tvm_in_use

if tvm_in_use.has_relay:
    raise ImportError(
        f"frontends.relax needs TVM 0.27, and this process has {tvm_in_use.version}, {tvm_in_use.origin}. "
        'Install it by `pip install "tvm-vision-passes[relax]"`; where both are installed, set '
        "TVM_PASSES_IR=relax."
    )

from ..errors import ImportFailure
from .from_pytorch import from_pytorch
from .functions import batched_nms, nms

__all__ = ["ImportFailure", "batched_nms", "from_pytorch", "nms"]
