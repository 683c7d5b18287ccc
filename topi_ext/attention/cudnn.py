"""Attention on CUDA by cuDNN, as one node of its graph API. `topi_ext.cudnn` calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tvm
from tvm import te, tir

from ..conv2d_nhwc.cuda import arch_of
from ..cudnn.session import ALIGNMENT, Operator, new_graph
from .cuda import schedule  # noqa: F401  a packed function needs no other schedule
from .problem import Problem

MAX_LENGTH = 128  # of the vectors of a head
FIRST_ARCH = 80
LONG = 3072  # keys: with 2048, this project's kernel is the faster one on an H200, and with 4096 cuDNN's


def is_capable(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether cuDNN computes the problem: a type of tensor cores, aligned vectors, no mask."""
    lengths = problem.depth, problem.width
    aligned = all(length % ALIGNMENT == 0 and length <= MAX_LENGTH for length in lengths)
    aligned = aligned and all(
        part is None or (part.is_aligned and not part.is_repeated) for part in problem.parts
    )
    is_half = problem.dtype != "float32"
    return is_half and aligned and problem.mask is None and arch_of(target) >= FIRST_ARCH


def is_faster(problem: Problem) -> bool:
    """Whether it takes less time than this project's kernel on tensor cores."""
    return problem.keys >= LONG


def attention(problem: Problem, tensors: Sequence[te.Tensor], _target: tvm.target.Target) -> te.Tensor:
    """See `topi_ext.attention`."""

    def body(call: Callable[..., tir.PrimExpr], *buffers: tir.Buffer) -> tir.Stmt:
        return call(*(_from_first(problem, *each) for each in enumerate(buffers)))

    return OPERATOR.call(problem.to_json(), tensors, problem.shape, problem.dtype, body)


def _from_first(problem: Problem, which: int, buffer: tir.Buffer) -> tir.Buffer:
    """A tensor from the first element that is read: cuDNN knows its shape and strides."""
    part = problem.part(which)
    if part is None or not part.first:
        return buffer
    length = part.last + 1 - part.first
    return tir.decl_buffer(
        (length,), buffer.dtype, data=buffer.data, elem_offset=buffer.elem_offset + part.first
    )


def _strides(problem: Problem, which: int) -> list[int]:
    """cuDNN takes no stride of 0, not even of an extent of 1, where nobody takes a step."""
    part = problem.part(which)
    any_step = 1 if part is None else ALIGNMENT * (part.last // ALIGNMENT + 1)
    return [stride or any_step for stride in problem.strides(which)]


def build_graph(cudnn: ModuleType, problem: Problem, handle: Any) -> Any:
    """The graph of a problem. Uids of its tensors count from 1: query, key, value, result."""
    graph = new_graph(cudnn, problem.dtype, handle)
    dims = [[problem.batch, problem.heads, *lengths] for lengths in problem.lengths]
    strides = [_strides(problem, which) for which in range(4)]
    q, k, v = (
        graph.tensor(name=name, dim=dim, stride=stride)
        for name, dim, stride in zip(("query", "key", "value"), dims, strides)
    )
    result, _ = graph.sdpa(name="attention", q=q, k=k, v=v, attn_scale=problem.scale, is_inference=True)
    result.set_output(True).set_dim(dims[3]).set_stride(strides[3])
    for uid, tensor in enumerate((q, k, v, result), 1):
        tensor.set_uid(uid)
    return graph


OPERATOR = Operator(
    "topi_ext.attention",
    lambda cudnn, text, handle: build_graph(cudnn, Problem.from_json(text), handle),
)
