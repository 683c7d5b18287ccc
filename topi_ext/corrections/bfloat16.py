"""Compile operators of bfloat16 on CPUs: TVM computes them in float32, but has no code for vectors of them.

A loop over such elements is left to LLVM, which makes vectors of it itself. Where a tensor's shape is known
only at run time, TVM makes another buffer for its elements as integers, with a stride that nothing defines:
here, without one.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tir

from .._target import is_for_llvm

OF_ANY_STRIDES = 2  # of TVM's types of buffers
_PROLOGUE = tir.AssertStmt, tir.LetStmt, tir.AttrStmt, tir.DeclBuffer

_vectorize = te.schedule.Stage.vectorize


def vectorize(stage: te.schedule.Stage, axis: Any) -> None:
    if not is_for_llvm() or not _reads_bfloat16(stage.op, set()):
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


def without_undefined_strides(function: tir.PrimFunc) -> tir.PrimFunc:
    """A function in which all buffers can be compiled; `llvm` takes each of them through this."""
    if not _is_of_any_strides(function):
        return function
    flat: dict[tir.Buffer, tir.Buffer] = {}

    def replaced(node: tir.BufferLoad | tir.BufferStore) -> tir.BufferLoad | tir.BufferStore | None:
        buffer = node.buffer
        if buffer.buffer_type != OF_ANY_STRIDES or len(buffer.shape) > 1:
            return None
        if buffer not in flat:
            flat[buffer] = tir.decl_buffer(buffer.shape, buffer.dtype, buffer.name, buffer.data)
        if isinstance(node, tir.BufferLoad):
            return tir.BufferLoad(flat[buffer], node.indices)
        return tir.BufferStore(flat[buffer], node.value, node.indices)

    accesses = ["tir.BufferLoad", "tir.BufferStore"]
    return function.with_body(tir.stmt_functor.ir_transform(function.body, None, replaced, accesses))


def _is_of_any_strides(function: tir.PrimFunc) -> bool:
    """Whether an argument is of the type that TVM takes for bfloat16, and its shape known at run time."""
    node = function.body
    while True:
        if isinstance(node, tir.SeqStmt):
            node = node.seq[len(node.seq) - 1]
        elif isinstance(node, _PROLOGUE):
            if isinstance(node, tir.DeclBuffer):
                buffer = node.buffer
                if buffer.dtype == "uint16" and buffer.buffer_type == OF_ANY_STRIDES:
                    return True
            node = node.body
        else:
            return False


te.schedule.Stage.vectorize = vectorize
