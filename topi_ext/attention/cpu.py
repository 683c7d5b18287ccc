"""Attention on LLVM: a row of scores at a time, the rows in parallel.

A network for CPUs keeps its matrix products, which TVM schedules by itself: this is for calls from torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import te, tir

from .._floats import Locals
from .._kernel import in_a_row
from .problem import Problem, offset


def attention(problem: Problem, tensors: Sequence[te.Tensor], _target: tvm.target.Target) -> te.Tensor:
    """See `topi_ext.attention`."""

    def kernel(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        return _emit(problem, [*ins, *outs])

    return te.extern(problem.shape, list(tensors), kernel, dtype=problem.dtype, name="attention")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return te.create_schedule([out.op for out in outs])


def _emit(problem: Problem, buffers: Sequence[tir.Buffer]) -> tir.Stmt:
    ib = tir.ir_builder.create()
    flat = [in_a_row(ib, buffer)[0] for buffer in buffers]
    (query, key, value), result = flat[:3], flat[-1]
    mask = flat[3] if problem.mask is not None else None
    keep = Locals(ib, "global")
    rows = problem.batch * problem.heads * problem.queries
    with ib.for_range(0, rows, "row", kind="parallel") as row:
        of_head, item = tir.truncdiv(row, problem.queries), tir.truncmod(row, problem.queries)
        place = tir.truncdiv(of_head, problem.heads), tir.truncmod(of_head, problem.heads)
        own, to = (keep("at", problem.at(which, *place, item)) for which in (0, 3))
        keys, values = (keep("at", problem.at(which, *place)) for which in (1, 2))
        zero = tir.const(0.0, "float32")
        scores = ib.allocate("float32", problem.keys, "scores", scope="global")
        sums = ib.allocate("float32", problem.width, "sums", scope="global")
        greatest, total = keep.variable("greatest", tir.min_value("float32")), keep.variable("total", zero)
        scale = keep.exact(problem.scale)
        with ib.for_range(0, problem.keys, "number") as number:
            at = keep("at", keys + number * problem.strides(1)[2])
            score = keep.variable("score", zero)
            with ib.for_range(0, problem.depth, "d") as d:
                score[0] = score[0] + query[own + d].astype("float32") * key[at + d].astype("float32")
            score[0] = score[0] * scale
            if mask is not None:
                of_mask = offset(problem.mask_strides, *place, item, number)
                score[0] = score[0] + mask[of_mask].astype("float32")
            scores[number] = score[0]
            greatest[0] = te.max(greatest[0], score[0])
        with ib.for_range(0, problem.width, "e") as e:
            sums[e] = zero
        with ib.for_range(0, problem.keys, "number") as number:
            weight = keep("weight", tir.exp(scores[number] - greatest[0]))
            total[0] = total[0] + weight
            at = keep("at", values + number * problem.strides(2)[2])
            with ib.for_range(0, problem.width, "e") as e:
                sums[e] = sums[e] + weight * value[at + e].astype("float32")
        with ib.for_range(0, problem.width, "e") as e:
            result[to + e] = (sums[e] / total[0]).astype(problem.dtype)
    return ib.get()
