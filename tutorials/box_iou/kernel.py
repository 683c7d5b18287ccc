"""One element of the result, emitted alike for every target."""

from __future__ import annotations

from topi_ext.authoring import Locals

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar

ZERO = tir.const(0, "float32")


def emit_element(
    local: Locals, boxes: BufferVar, others: BufferVar, iou: BufferVar, i: tir.PrimExpr, j: tir.PrimExpr
) -> None:
    """Write the IoU of box i with the other box j; `local` keeps what is computed once."""

    def overlap(axis: int) -> tir.PrimExpr:
        low = te.max(boxes[i, axis], others[j, axis])
        high = te.min(boxes[i, axis + 2], others[j, axis + 2])
        return te.max(high - low, ZERO)

    intersection = local("intersection", overlap(0) * overlap(1))
    union = local("union", area(boxes, i) + area(others, j) - intersection)
    iou[i, j] = tir.if_then_else(intersection > ZERO, intersection / union, ZERO)


def area(boxes: BufferVar, i: tir.PrimExpr) -> tir.PrimExpr:
    return (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
