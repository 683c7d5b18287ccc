"""`box_iou` on CUDA: a thread takes an element."""

from __future__ import annotations

from collections.abc import Sequence

from topi_ext.authoring import Locals, ceil_div, launch, local

from tvm import te, tir
from tvm.topi.generic import schedule_extern

from .kernel import emit_element

THREADS = 256


def box_iou(boxes: te.Tensor, others: te.Tensor) -> te.Tensor:
    """The result of `tutorials.box_iou`."""
    shape = boxes.shape[0], others.shape[0]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        some, other, iou = map(ib.buffer_ptr, (*ins, *outs))
        count = tir.const(1) * shape[0] * shape[1]
        # A grid of no blocks cannot be launched.
        with ib.if_scope(count > 0), launch(ib, ceil_div(count, THREADS), THREADS) as (block, thread):
            number = local(ib, "number", block * THREADS + thread)
            with ib.if_scope(number < count):
                i, j = tir.truncdiv(number, shape[1]), tir.truncmod(number, shape[1])
                emit_element(Locals(ib, "local"), some, other, iou, i, j)
        return ib.get()

    return te.extern([shape], [boxes, others], emit, dtype=["float32"], name="box_iou")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return schedule_extern(outs)
