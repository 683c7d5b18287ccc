"""Compile operators of bfloat16 on CPUs: TVM computes them in float32, but has no code for vectors of them.

A loop over such elements is left to LLVM, which makes vectors of it itself.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te

_vectorize = te.schedule.Stage.vectorize


def vectorize(stage: te.schedule.Stage, axis: Any) -> None:
    target = tvm.target.Target.current()
    if target is None or target.kind.name != "llvm" or not _reads_bfloat16(stage.op, set()):
        _vectorize(stage, axis)


def _reads_bfloat16(operation: te.Operation, seen: set[te.Operation]) -> bool:
    """Whether an operation, or one that may be inlined into it, has elements of bfloat16."""
    if operation in seen:
        return False
    seen.add(operation)
    outputs = (operation.output(index) for index in range(operation.num_outputs))
    return any(output.dtype == "bfloat16" for output in outputs) or any(
        _reads_bfloat16(tensor.op, seen) for tensor in operation.input_tensors
    )


te.schedule.Stage.vectorize = vectorize
