"""The LLVM target of this machine's processor."""

from __future__ import annotations

import tvm

from ._processor import options_of_processor
from .conv2d_nhwc import onednn


def cpu_target() -> tvm.target.Target:
    """An LLVM target with the vector extensions of this processor, and oneDNN where it is installed."""
    libraries = {"libs": [onednn.LIBRARY]} if onednn.is_available() else {}
    return tvm.target.Target({"kind": "llvm", **options_of_processor(), **libraries})
