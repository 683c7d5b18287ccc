"""`box_iou` for LLVM: rows in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from topi_ext.authoring import Locals

from tvm import te, tir

from .kernel import emit_element


def box_iou(boxes: te.Tensor, others: te.Tensor) -> te.Tensor:
    """The result of `tutorials.box_iou`."""
    shape = boxes.shape[0], others.shape[0]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        some, other, iou = map(ib.buffer_ptr, (*ins, *outs))
        with ib.for_range(0, shape[0], "i", kind="parallel") as i, ib.for_range(0, shape[1], "j") as j:
            emit_element(Locals(ib, "global"), some, other, iou, i, j)
        return ib.get()

    return te.extern([shape], [boxes, others], emit, dtype=["float32"], name="box_iou")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return te.create_schedule([out.op for out in outs])
