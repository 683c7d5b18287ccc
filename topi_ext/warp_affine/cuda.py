"""Affine warps on CUDA: a thread computes a few contiguous pixels, in several rows, with all their channels.

A warp computes eight such groups side by side in four rows: it writes whole sectors, and reads few cache
lines under any rotation. No thread waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._kernel import ceil_div, launch, local
from .._register import known
from .._tvm import BufferVar, IRBuilder, te, tir
from .._types import IntExpr, Shape
from .kernel import Map, Place, Warp

THREADS = 256
WARPS = 4, 2  # of a block, across and down
GROUPS = 8, 4  # of a warp
ACROSS, DOWN = (warps * groups for warps, groups in zip(WARPS, GROUPS))
PIXELS = {1: 4, 2: 2, 4: 1, 8: 1}  # of a group, by the bytes of a number
ROWS = {1: 4, 2: 4, 4: 8, 8: 8}  # in which a thread makes a group, with those of the others between
BYTES = 16  # that are written at once


def warp_affine(
    data: te.Tensor, matrix: te.Tensor, out_shape: Shape, out_dtype: str, options: dict[str, Any]
) -> te.Tensor:
    """The result of `topi_ext.warp_affine`."""
    extent = dict(zip(options["layout"], out_shape))
    pixels, rows = (table[np.dtype(out_dtype).itemsize] for table in (PIXELS, ROWS))
    down, across = ceil_div(extent["H"], DOWN * rows), ceil_div(extent["W"], ACROSS * pixels)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        blocks = extent["N"] * down * across
        with ib.if_scope(tir.const(0, "int32") < extent["N"]), launch(ib, blocks, THREADS) as (block, thread):
            tile, tile_x = tir.truncdiv(block, across), tir.truncmod(block, across)
            image, tile_y = local(ib, "image", tir.truncdiv(tile, down)), tir.truncmod(tile, down)
            number, lane = tir.truncdiv(thread, 32), tir.truncmod(thread, 32)
            x = tile_x * ACROSS + tir.truncmod(number, WARPS[0]) * GROUPS[0] + tir.truncmod(lane, GROUPS[0])
            y = tir.truncdiv(number, WARPS[0]) * GROUPS[1] + tir.truncdiv(lane, GROUPS[0])
            x, y = local(ib, "x", x * pixels), local(ib, "y", tile_y * (DOWN * rows) + y)
            warp = Warp(ib, ins[0], ins[1], outs[0], options, scope="local")
            _Thread(ib, warp, image, options["layout"], pixels).emit(x, y, rows)
        return ib.get()

    return te.extern([out_shape], [data, matrix], emit, dtype=[out_dtype], name="warp_affine")


class _Thread:
    """The pixels of one thread: groups of contiguous pixels in one image."""

    def __init__(self, ib: IRBuilder, warp: Warp, image: tir.PrimExpr, layout: str, pixels: int) -> None:
        self.ib, self.warp, self._image, self._beside = ib, warp, image, layout == "NHWC"
        self._pixels = pixels
        self._channels, self._all_channels = warp.out.channels_at_once, warp.out.channels

    def emit(self, x: tir.PrimExpr, y: tir.PrimExpr, rows: int) -> None:
        ib, out = self.ib, self.warp.out
        with ib.if_scope(tir.all(x < out.width, y < out.height)):
            map_ = self.warp.map(self._image)
            with ib.for_range(0, rows, "row") as row:
                at = local(ib, "y", y + row * DOWN)
                with ib.if_scope(at < out.height):
                    self._emit_group(map_, at, x)

    def _emit_group(self, map_: Map, y: tir.PrimExpr, x: tir.PrimExpr) -> None:
        """Contiguous pixels of one row: first their source positions, then some channels at a time."""
        ib, warp, count = self.ib, self.warp, self._channels
        row = warp.row(map_, y)
        places = [warp.place(map_, row, x + pixel) for pixel in range(self._pixels)]
        with ib.for_range(0, self._all_channels // count, "part") as part:
            values = ib.allocate(warp.out.dtype, self._pixels * count, "values", scope="local")
            for pixel, place in enumerate(places):
                steps = (pixel * count, 1) if self._beside else (pixel, self._pixels)
                self._emit_pixel(map_, place, part * count, values, *steps)
            self._emit_stores(y, x, part * count, values)

    def _emit_pixel(
        self, map_: Map, place: Place, first: IntExpr, values: BufferVar, at: int, step: int
    ) -> None:
        """Some channels of a pixel, written to `values` with a stride."""
        ib, warp, source = self.ib, self.warp, self.warp.source
        weights = warp.weights(place)
        with ib.if_scope(tir.all(map_.valid, warp.inside(place))):
            start = local(ib, "start", source.at(self._image, place.y, place.x, first))
            for channel in range(self._channels):
                taps = [source[start + source.at(0, *corner, channel)] for corner in warp.corners]
                values[at + channel * step] = warp.blend(taps, weights)
        with ib.else_scope():
            with ib.if_scope(tir.any(tir.Not(map_.valid), warp.is_border(place))):
                for channel in range(self._channels):
                    values[at + channel * step] = warp.border(first + channel)
            with ib.else_scope():
                for channel in range(self._channels):
                    pixel = warp.edge_pixel(self._image, place, weights, first + channel)
                    values[at + channel * step] = pixel

    def _emit_stores(self, y: tir.PrimExpr, x: tir.PrimExpr, first: IntExpr, values: BufferVar) -> None:
        rest = tir.truncmod(self.warp.out.width, self._pixels)
        if known(rest) == 0:
            self._emit_vectors(y, x, first, values)
        elif known(rest):
            self._emit_one_by_one(y, x, first, values)
        else:
            with self.ib.if_scope(rest == 0):
                self._emit_vectors(y, x, first, values)
            with self.ib.else_scope():
                self._emit_one_by_one(y, x, first, values)

    def _emit_vectors(self, y: tir.PrimExpr, x: tir.PrimExpr, first: IntExpr, values: BufferVar) -> None:
        """Store `values` in vectors, where the row consists of whole groups."""
        out, count = self.warp.out, self._channels
        if not self._beside:
            length, runs = self._pixels, [(0, channel) for channel in range(count)]
        elif count == self._all_channels:
            length, runs = self._pixels * count, [(0, 0)]
        else:
            length, runs = count, [(pixel, 0) for pixel in range(self._pixels)]
        most = BYTES // np.dtype(out.dtype).itemsize
        lanes = next(n for n in (16, 8, 4, 2, 1) if n <= most and length % n == 0)
        for number, (pixel, channel) in enumerate(runs):
            start = local(self.ib, "start", out.at(self._image, y, x + pixel, first + channel))
            for at in range(0, length, lanes):
                place = number * length + at
                if lanes == 1:
                    out[start + at] = values[place]
                else:  # written as so many vectors, so that TVM sees that it is aligned
                    vector = tir.truncdiv(start, lanes) + at // lanes
                    out[tir.Ramp(vector * lanes, 1, lanes)] = values[tir.Ramp(place, 1, lanes)]

    def _emit_one_by_one(self, y: tir.PrimExpr, x: tir.PrimExpr, first: IntExpr, values: BufferVar) -> None:
        out, count = self.warp.out, self._channels
        for pixel in range(self._pixels):
            with self.ib.if_scope(x + pixel < out.width):
                for channel in range(count):
                    place = pixel * count + channel if self._beside else channel * self._pixels + pixel
                    out[out.at(self._image, y, x + pixel, first + channel)] = values[place]
