"""Operators by oneDNN on CPUs, for targets such as `llvm -libs=onednn`."""

from .._tvm import HAS_RELAY
from ..bootstrap import tvm_in_use
from . import matmul  # noqa: F401  which registers what compiled code calls

if HAS_RELAY:
    from . import matmul_in_relay  # noqa: F401
elif tvm_in_use.compiles:
    from . import matmul_in_relax  # noqa: F401
