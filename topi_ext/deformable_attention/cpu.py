"""Deformable attention for LLVM: queries in parallel, and for each of these all vectors of channels."""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import most_lanes
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import Attention, Level

MAX_LANES = 64


def deformable_attention(
    value: te.Tensor, points: te.Tensor, weights: te.Tensor, *, levels: Sequence[Level], align_corners: bool
) -> te.Tensor:
    """The result of `topi_ext.deformable_attention`."""
    items, queries = points.shape[:2]
    channels = int(value.shape[2])
    lanes = most_lanes(channels, MAX_LANES)
    each = te.max(queries, 1)  # never 0, by which nothing can be divided

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        attention = Attention(
            ib, ins, outs[0], levels, align_corners, lanes=lanes, scope="global", loop="serial"
        )
        with ib.for_range(0, items * queries, "task", kind="parallel") as task:
            item, query = tir.truncdiv(task, each), tir.truncmod(task, each)
            with ib.for_range(0, channels // lanes, "vector") as vector:
                attention.emit(item, query, vector)
        return ib.get()

    shape = [items, queries, value.shape[2]]
    return te.extern(
        [shape], [value, points, weights], emit, dtype=[dtype_of(value)], name="deformable_attention"
    )
