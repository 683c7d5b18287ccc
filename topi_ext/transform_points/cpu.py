"""Transforming points for LLVM: in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tir

from .._floats import Locals
from .kernel import emit_point, rows_of


def transform_points(points: te.Tensor, matrix: te.Tensor, offsets: te.Tensor | None) -> te.Tensor:
    """The result of `topi_ext.transform_points`; `offsets` is None where points are not ragged."""

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        local = Locals(ib, "global")
        with ib.for_range(0, rows_of(points), "number", kind="parallel") as number:
            emit_point(ib, local, ins, outs[0], number)
        return ib.get()

    inputs = [tensor for tensor in (points, matrix, offsets) if tensor is not None]
    return te.extern([points.shape], inputs, emit, dtype=[points.dtype], name="transform_points")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return te.create_schedule([out.op for out in outs])
