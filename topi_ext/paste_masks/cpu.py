"""Pasting masks for LLVM: the rows of all images in parallel, each written once."""

from __future__ import annotations

from collections.abc import Sequence

from .._tvm import IRBuilder, te, tir
from .._types import IntExpr
from .kernel import Masks


def paste_masks(
    masks: te.Tensor,
    boxes: te.Tensor,
    image_size: Sequence[int],
    threshold: float | None,
    images: te.Tensor | None = None,
) -> te.Tensor:
    """The result of `topi_ext.paste_masks`, or with images, of `topi_ext.paste_masks_over`."""
    height, width = image_size
    count = masks.shape[0]
    dtype = "float32" if threshold is None else "uint8"

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        placed = Masks(ib, ins[0], ins[1], image_size, threshold, scope="global")
        (out,) = map(ib.buffer_ptr, outs)
        with ib.for_range(0, count * height, "row", kind="parallel") as row:
            number, y = tir.truncdiv(row, height), tir.truncmod(row, height)
            rows, columns = placed.spans(number)

            def fill(begin: IntExpr, end: IntExpr) -> None:
                with ib.for_range(0, end - begin, "x") as x:
                    place = number, 0, y, begin + x
                    out[place] = placed.nothing if images is None else ib.buffer_ptr(ins[2])[place]

            with ib.if_scope(tir.all(rows.holds(y), columns.begin < columns.end)):
                ys = placed.neighbours(rows, y)
                fill(0, columns.begin)
                with ib.for_range(0, columns.end - columns.begin, "x") as x:
                    x = columns.begin + x
                    xs = placed.neighbours(columns, x)
                    out[number, 0, y, x] = placed.pixel(number, ys, xs, rows.zero)
                fill(columns.end, width)
            with ib.else_scope():
                fill(0, width)
        return ib.get()

    given = [masks, boxes] if images is None else [masks, boxes, images]
    return te.extern([[count, 1, *image_size]], given, emit, dtype=[dtype], name="paste_masks")
