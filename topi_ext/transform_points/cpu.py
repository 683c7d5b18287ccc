"""Transforming points for LLVM: in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from .._floats import Locals
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import emit_point, rows_of


def transform_points(points: te.Tensor, matrix: te.Tensor, offsets: te.Tensor | None) -> te.Tensor:
    """The result of `topi_ext.transform_points`; `offsets` is None where points are not ragged."""

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        local = Locals(ib, "global")
        with ib.for_range(0, rows_of(points), "number", kind="parallel") as number:
            emit_point(ib, local, ins, outs[0], number)
        return ib.get()

    inputs = [tensor for tensor in (points, matrix, offsets) if tensor is not None]
    return te.extern([points.shape], inputs, emit, dtype=[dtype_of(points)], name="transform_points")
