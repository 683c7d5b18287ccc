"""Transforming points on CUDA: a thread takes a point."""

from __future__ import annotations

from collections.abc import Sequence

from .._floats import Locals
from .._kernel import ceil_div, launch, local
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import emit_point, rows_of

THREADS = 256


def transform_points(points: te.Tensor, matrix: te.Tensor, offsets: te.Tensor | None) -> te.Tensor:
    """The result of `topi_ext.transform_points`; `offsets` is None where points are not ragged."""

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        count = rows_of(points)
        blocks = ceil_div(count, THREADS)
        with ib.if_scope(tir.const(0) < count), launch(ib, blocks, THREADS) as (block, thread):
            number = local(ib, "number", block * THREADS + thread)
            with ib.if_scope(number < count):
                emit_point(ib, Locals(ib, "local"), ins, outs[0], number)
        return ib.get()

    inputs = [tensor for tensor in (points, matrix, offsets) if tensor is not None]
    return te.extern([points.shape], inputs, emit, dtype=[dtype_of(points)], name="transform_points")
