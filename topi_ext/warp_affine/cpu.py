"""Affine warps for LLVM: blocks of rows in parallel, and each row strip by strip.

For a strip, first all positions and weights are computed, in vectors; then the pixels are loaded. Those from
inside the source form a run, which needs no further checks; those around it are handled one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._kernel import between
from .._tvm import IRBuilder, as_bits, te, tir
from .._types import IntExpr, Shape
from .kernel import Map, Place, Warp

ROWS = 16  # of a block: the source of its strips stays in the cache
STRIP = 64  # pixels: as many as there are bits to mark them
LANES = 16  # places computed at once


def warp_affine(
    data: te.Tensor, matrix: te.Tensor, out_shape: Shape, out_dtype: str, options: dict[str, Any]
) -> te.Tensor:
    """The result of `topi_ext.warp_affine`."""

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        count, height = (out_shape[options["layout"].index(axis)] for axis in "NH")
        blocks = tir.truncdiv(height + (ROWS - 1), ROWS)
        with ib.for_range(0, count * blocks, "block", kind="parallel") as block:
            image, first = tir.truncdiv(block, blocks), tir.truncmod(block, blocks) * ROWS
            warp = Warp(ib, ins[0], ins[1], outs[0], options, scope="global")
            _Block(ib, warp, image, options["layout"]).emit(first, te.min(height - first, ROWS))
        return ib.get()

    return te.extern([out_shape], [data, matrix], emit, dtype=[out_dtype], name="warp_affine")


class _Block:
    """Rows of one image."""

    def __init__(self, ib: IRBuilder, warp: Warp, image: tir.PrimExpr, layout: str) -> None:
        self.ib, self.warp, self._image = ib, warp, image
        self._channels = warp.source.channels
        # Fetched at once: some channels of a pixel, or one channel of some pixels.
        self._by_channels = layout == "NHWC" and self._channels >= 3
        if self._by_channels:
            self._lanes = next(lanes for lanes in (16, 8, 4) if lanes <= max(self._channels, 4))
            self._excess = max(self._lanes - self._channels, 0)
        else:
            self._lanes, self._excess = 16 if warp.source.dtype == "uint8" else 1, 0

    def emit(self, first: tir.PrimExpr, count: tir.PrimExpr) -> None:
        ib, warp = self.ib, self.warp
        map_, width = warp.map(self._image), warp.out.width
        with ib.if_scope(map_.valid):
            strips = tir.truncdiv(width + (STRIP - 1), STRIP)
            with ib.for_range(0, strips, "strip") as strip, ib.for_range(0, count, "y") as y:
                self._emit_strip(map_, first + y, strip * STRIP)
        with ib.else_scope(), ib.for_range(0, count, "y") as y, ib.for_range(0, width, "x") as x:
            self._emit_border(first + y, x)

    def _emit_strip(self, map_: Map, y: tir.PrimExpr, first: tir.PrimExpr) -> None:
        ib, warp = self.ib, self.warp
        xs, ys = (ib.allocate("int32", STRIP, name, scope="global") for name in ("xs", "ys"))
        self._starts = ib.allocate(warp.source.index_type, STRIP, "starts", scope="global")
        self._weights = [ib.allocate(warp.sum_type, STRIP, "weights", scope="global") for _ in warp.corners]
        inside = ib.allocate("uint64", 1, "inside", scope="global")
        inside[0] = tir.const(0, "uint64")
        row = warp.row(map_, y)
        for number in range(STRIP // LANES):
            lanes = tir.Ramp(number * LANES, 1, LANES)
            place = warp.place(map_, row, first + lanes)
            ys[lanes], xs[lanes] = place.y, place.x
            self._starts[lanes] = warp.source.at(self._image, place.y, place.x)
            for array, weight in zip(self._weights, warp.weights(place)):
                array[lanes] = weight
            marks = as_bits(warp.inside(place, beyond=min(self._excess, 1)))
            inside[0] = inside[0] | (marks.astype("uint64") << (number * LANES))

        length = warp.local("length", te.min(warp.out.width - first, STRIP))
        # Elements that a vector writes too many are overwritten later, except for the last pixel of a row.
        most = te.min(warp.out.width - first - 1, STRIP) if self._excess else length
        begin = warp.local("begin", te.min(_first_bit(inside[0]), most))
        run = _first_bit(~(inside[0] >> te.min(begin, STRIP - 1).astype("uint64")))
        end = warp.local("end", te.min(begin + tir.Select(inside[0] == tir.const(0, "uint64"), 0, run), most))
        self._emit_run(y, first, begin, end)
        for before, after in ((0, begin), (end, length)):
            with between(ib, before, after) as i:
                place = Place(warp.local("y", ys[i]), warp.local("x", xs[i]), None)
                with ib.if_scope(warp.is_border(place)):
                    self._emit_border(y, first + i)
                with ib.else_scope(), ib.for_range(0, self._channels, "channel") as channel:
                    weights = [array[i] for array in self._weights]
                    pixel = warp.edge_pixel(self._image, place, weights, channel)
                    self._store(y, first + i, channel, pixel)

    def _emit_run(self, y: tir.PrimExpr, first: tir.PrimExpr, begin: tir.PrimExpr, end: tir.PrimExpr) -> None:
        """The pixels `begin` to `end` of a strip, all from inside the source."""
        ib, lanes, channels = self.ib, self._lanes, self._channels
        if self._by_channels:
            with between(ib, begin, end) as i:
                with ib.for_range(0, max(channels // lanes, 1), "vector") as vector:
                    self._emit_vector(y, first, i, tir.Ramp(vector * lanes, 1, lanes))
                if channels > lanes and channels % lanes:  # some for a second time
                    self._emit_vector(y, first, i, tir.Ramp(channels - lanes, 1, lanes))
            return
        count = self.warp.source.channels_at_once
        vectors = tir.truncdiv(end - begin, lanes)
        with ib.for_range(0, channels // count, "part") as part:
            if lanes > 1:
                with ib.for_range(0, vectors, "vector") as vector:
                    for channel in range(count):
                        pixels = tir.Ramp(begin + vector * lanes, 1, lanes)
                        self._emit_vector(y, first, pixels, part * count + channel)
            with between(ib, begin + vectors * lanes if lanes > 1 else begin, end) as i:
                for channel in range(count):
                    self._emit_vector(y, first, i, part * count + channel)

    def _emit_vector(self, y: tir.PrimExpr, first: tir.PrimExpr, i: tir.PrimExpr, channel: IntExpr) -> None:
        source = self.warp.source
        taps = [
            source[self._starts[i] + source.at(0, down, across, channel)]
            for down, across in self.warp.corners
        ]
        weights = [array[i] for array in self._weights]
        self._store(y, first + i, channel, self.warp.blend(taps, weights))

    def _emit_border(self, y: tir.PrimExpr, x: tir.PrimExpr) -> None:
        with self.ib.for_range(0, self._channels, "channel") as channel:
            self._store(y, x, channel, self.warp.border(channel))

    def _store(self, y: tir.PrimExpr, x: tir.PrimExpr, channel: IntExpr, value: tir.PrimExpr) -> None:
        out = self.warp.out
        out[out.at(self._image, y, x, channel)] = value


def _first_bit(marks: tir.PrimExpr) -> tir.PrimExpr:
    """The index of the lowest set bit of 64, or 64."""
    return tir.popcount(~marks & (marks - tir.const(1, "uint64"))).astype("int32")
