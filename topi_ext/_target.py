"""The target that a kernel is written for."""

from __future__ import annotations

import tvm


def is_for_cuda() -> bool:
    return _kind() == "cuda"


def is_for_llvm() -> bool:
    return _kind() == "llvm"


def _kind() -> str | None:
    target = tvm.target.Target.current()
    return None if target is None else target.kind.name
