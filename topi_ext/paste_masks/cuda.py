"""Pasting masks on CUDA: each pixel is written once, 16 bytes at a time.

Writing is what takes time: most pixels lie outside a box, and for those no mask is read. No thread waits for
another. Over images, only the pixels in boxes are written, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._destination import filled_from
from .._kernel import between, ceil_div, launch, local
from .._tvm import IRBuilder, te, tir, view
from .kernel import Masks, Span

THREADS, GROUPS = 128, 8  # groups of pixels that a thread writes, a group at once
MAX_PIXELS = {"float32": 4, "uint8": 16}  # of 16 bytes
BLOCKS = 64  # that share the pixels of a box, which may be the whole image


def paste_masks(
    masks: te.Tensor,
    boxes: te.Tensor,
    image_size: Sequence[int],
    threshold: float | None,
    images: te.Tensor | None = None,
) -> te.Tensor:
    """The result of `topi_ext.paste_masks`, or with images, of `topi_ext.paste_masks_over`."""
    count = masks.shape[0]
    dtype = "float32" if threshold is None else "uint8"

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        masks = Masks(ib, ins[0], ins[1], image_size, threshold, scope="local")
        with ib.if_scope(tir.const(0, "int32") < count):
            if images is None:
                _Pasting(ib, masks, outs[0], image_size).emit(count)
            else:
                _emit_over(ib, masks, outs[0], image_size, count)
        return filled_from(None if images is None else ins[2], outs[0], ib.get())

    given = [masks, boxes] if images is None else [masks, boxes, images]
    return te.extern([[count, 1, *image_size]], given, emit, dtype=[dtype], name="paste_masks")


def _emit_over(
    ib: IRBuilder, masks: Masks, out: tir.Buffer, image_size: Sequence[int], count: tir.PrimExpr
) -> None:
    """Write the pixels in boxes: neighbouring threads have neighbouring pixels of a row."""
    height, width = image_size
    pixels = view(ib, out, [out.shape[0].astype("int64") * (height * width)])
    with launch(ib, count * BLOCKS, THREADS) as (block, thread):
        number = local(ib, "number", tir.truncdiv(block, BLOCKS))
        first = local(ib, "first", tir.truncmod(block, BLOCKS) * THREADS + thread)
        rows, columns = masks.spans(number)
        down, across = (local(ib, "length", te.max(span.end - span.begin, 0)) for span in (rows, columns))
        turns = ceil_div(te.max(down * across - first, 0), BLOCKS * THREADS)
        with ib.for_range(0, turns, "turn") as turn:
            at = local(ib, "at", first + turn * (BLOCKS * THREADS))
            y = local(ib, "y", rows.begin + tir.truncdiv(at, across))
            x = local(ib, "x", columns.begin + tir.truncmod(at, across))
            ys, xs = masks.neighbours(rows, y), masks.neighbours(columns, x)
            place = number.astype("int64") * (height * width) + (y * width + x)
            pixels[place] = masks.pixel(number, ys, xs, rows.zero)


class _Pasting:
    """The one kernel; it takes the pixels of an image in groups of those that are written at once."""

    def __init__(self, ib: IRBuilder, masks: Masks, out: tir.Buffer, image_size: Sequence[int]) -> None:
        self.ib, self._masks, self._dtype = ib, masks, out.dtype
        height, self._width = image_size
        area = height * self._width
        self._pixels = next(n for n in (16, 8, 4, 2, 1) if n <= MAX_PIXELS[out.dtype] and area % n == 0)
        self._groups = area // self._pixels
        size = out.shape[0].astype("int64") * area
        self._out = view(ib, out, [size])

    def emit(self, count: tir.PrimExpr) -> None:
        ib, blocks = self.ib, ceil_div(self._groups, THREADS * GROUPS)
        with launch(ib, count * blocks, THREADS) as (block, thread):
            number = local(ib, "number", tir.truncdiv(block, blocks))
            first = local(ib, "first", tir.truncmod(block, blocks) * (THREADS * GROUPS))
            rows, columns = self._masks.spans(number)
            with ib.for_range(0, GROUPS, "group") as group:
                at = local(ib, "at", first + group * THREADS + thread)
                with ib.if_scope(at < self._groups):
                    self._emit_group(number, at, rows, columns)

    def _emit_group(self, number: tir.PrimExpr, at: tir.PrimExpr, rows: Span, columns: Span) -> None:
        """Write one group, which may go on in the next rows."""
        ib, masks, pixels, width = self.ib, self._masks, self._pixels, self._width
        values = ib.allocate(self._dtype, pixels, "values", scope="local")
        every = tir.Ramp(0, 1, pixels) if pixels > 1 else 0
        for i in range(pixels):
            values[i] = masks.nothing
        top, bottom = (local(ib, "row", tir.truncdiv(at * pixels + i, width)) for i in (0, pixels - 1))
        left = local(ib, "left", tir.truncmod(at * pixels, width))
        beside = tir.all(top == bottom, tir.any(left >= columns.end, left + pixels <= columns.begin))
        ends = te.max(top, rows.begin), te.min(bottom + 1, rows.end)
        with ib.if_scope(tir.Not(beside)), between(ib, *ends) as y:
            y = local(ib, "y", y)
            ys = masks.neighbours(rows, y)
            for i in range(pixels):
                x = local(ib, "x", left + i - (y - top) * width)
                with ib.if_scope(columns.holds(x)):
                    values[i] = masks.pixel(number, ys, masks.neighbours(columns, x), rows.zero)
        place = number.astype("int64") * self._groups + at
        self._out[tir.Ramp(place * pixels, 1, pixels) if pixels > 1 else place] = values[every]
