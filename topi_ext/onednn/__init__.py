"""Operators by oneDNN on CPUs, for targets such as `llvm -libs=onednn`."""

from .._tvm import HAS_RELAY

if HAS_RELAY:
    from . import batch_matmul  # noqa: F401  which registers its strategy
