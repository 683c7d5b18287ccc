"""Attention on CUDA by this project's own kernels: on tensor cores where they multiply the type, else not."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import te, tir
from tvm.topi.generic import schedule_extern

from ..conv2d_nhwc.cuda import arch_of
from ..conv2d_nhwc.plan import KIB, SHARED_MEMORY, known_arch
from .cuda_rows import emit_rows
from .cuda_tiles import emit_tiles, fits
from .plan import choose_plan
from .problem import Problem

FIRST_ARCH = {"float16": 75, "bfloat16": 80}  # with tensor cores for the type


def attention(problem: Problem, tensors: Sequence[te.Tensor], target: tvm.target.Target) -> te.Tensor:
    """See `topi_ext.attention`."""
    first = FIRST_ARCH.get(problem.dtype)
    arch = arch_of(target)
    has_tensor_cores = first is not None and arch >= first
    is_tiled = has_tensor_cores and fits(problem)

    def kernel(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        if is_tiled:
            most_bytes = SHARED_MEMORY[known_arch(arch) or min(SHARED_MEMORY)] * KIB
            return emit_tiles(problem, choose_plan(problem, most_bytes), [*ins, *outs])
        return emit_rows(problem, [*ins, *outs])

    return te.extern(
        problem.shape, list(tensors), kernel, dtype=problem.dtype, name="attention", tag="attention_gpu"
    )


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return schedule_extern(outs)
