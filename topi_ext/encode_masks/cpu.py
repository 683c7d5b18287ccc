"""Encoding masks for LLVM: the masks, or the rows of all images, in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import between, ceil_div
from .._tvm import IRBuilder, te, tir
from .._types import IntExpr
from ..paste_masks.kernel import Masks
from .kernel import Runs, Window, eight_pixels, encoded, pixel, write


def run_lengths(
    masks: te.Tensor, boxes: te.Tensor, image_size: Sequence[IntExpr], threshold: float, capacity: IntExpr
) -> te.Tensor:
    """The result of `topi_ext.encode_masks` in the form "rle"."""
    height, width = image_size
    count = masks.shape[0]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        placed = Masks(ib, ins[0], ins[1], image_size, threshold, scope="global")
        local, out = placed.local, ib.buffer_ptr(outs[0])
        with ib.for_range(0, count, "number", kind="parallel") as number:
            rows, columns = spans = placed.spans(number)
            window = Window.of(local, rows, columns, image_size, int(threshold <= 0))
            runs, at = Runs(local), local.variable("at", tir.const(0))
            before = local.variable("before", tir.const(0))

            def put(place: tir.PrimExpr, byte: tir.PrimExpr) -> None:
                with ib.if_scope(place < capacity):
                    out[number, place] = byte

            with between(ib, window.left, window.right) as x:
                xs = placed.neighbours(columns, x)
                with between(ib, window.top, window.bottom) as y:
                    value = pixel(ib, placed, number, spans, (y, x), xs)
                    with ib.if_scope(value != before[0]):
                        before[0] = value
                        write(ib, local, runs.next(x * height + y), at, put)
            write(ib, local, runs.next(height * width), at, put)
            used = local("used", tir.Select(at[0] <= capacity, at[0], 0))
            with between(ib, used, capacity) as place:
                out[number, place] = tir.const(0, "uint8")
        return ib.get()

    return encoded([masks, boxes], image_size, [([count, capacity], "uint8")], emit)


def packed_bits(
    masks: te.Tensor, boxes: te.Tensor, image_size: Sequence[IntExpr], threshold: float
) -> te.Tensor:
    """The result of `topi_ext.encode_masks` in the form "bits"."""
    height, width = image_size
    count, row_bytes = masks.shape[0], ceil_div(width, 8)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        placed = Masks(ib, ins[0], ins[1], image_size, threshold, scope="global")
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, count * height, "row", kind="parallel") as row:
            number, y = tir.truncdiv(row, height), tir.truncmod(row, height)
            with ib.for_range(0, row_bytes, "at") as at:
                out[number, y, at] = eight_pixels(ib, placed, number, y, at, width)
        return ib.get()

    return encoded([masks, boxes], image_size, [([count, height, row_bytes], "uint8")], emit)
