"""The pixels of a tile: where they are in the image, in shared memory and in the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from operator import mul
from typing import NamedTuple

from .._floats import Locals
from .._kernel import barrier
from .._tvm import BufferVar, IRBuilder, te, tir, view
from .._types import IntExpr
from .cuda_block import Block, Shared, uint32
from .kernel import REACH, TABLE, Camera, Image, Palette, zero_if_finite
from .reference import SUBPIXELS

SIDE = 32  # pixels; a tile has as many rows as a warp has lanes, and as many columns as a word has bits
VECTOR = 4  # levels that a thread writes at once


class Tile:
    """The tile of an image that a block draws, with the block and its shared memory."""

    def __init__(
        self,
        ib: IRBuilder,
        local: Locals,
        thread: tir.PrimExpr,
        image: Image,
        channels: int,
        row: tir.PrimExpr,
        column: tir.PrimExpr,
        palette: Palette = (),
    ) -> None:
        """The tile in this row and column of tiles. The palette is for `style`; masks have none."""
        self.ib, self.local, self.image, self.channels = ib, local, image, channels
        self.top, self.left = local("top", row * SIDE), local("left", column * SIDE)  # in pixels
        self.block = Block(ib, local, thread)
        self.levels = ib.allocate("uint8", SIDE * SIDE * channels, "levels", scope="shared")
        styles = list(chain.from_iterable([*color, int(kind == "fill")] for color, kind in palette))
        self.shared = Shared(ib, len(styles))
        self._store_constants([*TABLE, *styles])

    def _store_constants(self, numbers: Sequence[int]) -> None:
        """Store numbers up to 255; the code has four of them in each of its constants."""
        with self.block.strided(len(numbers)) as at:
            word = uint32(0)
            for first in range(0, len(numbers), 4):
                four = sum(number << 8 * i for i, number in enumerate(numbers[first : first + 4]))
                word = tir.Select(at >= first, uint32(four), word)
            byte = (word >> ((at & 3) * 8).astype("uint32")) & uint32(255)
            self.shared.constants[at] = byte.astype("int32")

    def clear(self, color: Sequence[int]) -> None:
        """Give all pixels one colour, before anything is drawn."""
        with self.block.strided(SIDE * SIDE) as pixel:
            for channel, level in enumerate(color):
                self.levels[self.place(pixel, channel)] = tir.const(level, "uint8")

    def camera(self, points: BufferVar, matrices: BufferVar, sample: tir.PrimExpr) -> Camera:
        """The camera of a sample, with its matrix in shared memory.

        The barrier here is also for what `Tile()` and `clear` have written before.
        """
        ib, local, thread = self.ib, self.local, self.block.thread
        matrix = ib.allocate("float64", 6, "matrix", scope="shared")
        with ib.if_scope(thread < 6):
            row, column = tir.truncdiv(thread, 3), tir.truncmod(thread, 3)
            matrix[thread] = matrices[sample, row, column].astype("float64")
        barrier(ib)
        rows = [[matrix[row * 3 + column] for column in range(3)] for row in range(2)]
        return Camera(ib, local, points, rows, zero_if_finite(local, rows[0][2], rows[1][2]))

    def style(self, number: tir.PrimExpr) -> tuple[list[tir.PrimExpr], tir.PrimExpr]:
        """The colour of a style of the palette, and whether it fills polygons.

        They stay in shared memory until they are used, since registers are scarce.
        """
        size = self.channels + 1
        *color, is_fill = (self.shared.styles[number * size + i] for i in range(size))
        return color, is_fill != 0

    def has(self, low: tir.PrimExpr, high: tir.PrimExpr, axis: int) -> tir.PrimExpr:
        """Whether what lies between two subpixels on an axis, 0 for x or 1 for y, may touch the tile."""
        begin, reach = (self.left, self.top)[axis] * SUBPIXELS, REACH * SUBPIXELS
        return tir.all(high >= begin - reach, low < begin + SIDE * SUBPIXELS + reach)

    def place(self, pixel: tir.PrimExpr, channel: IntExpr) -> tir.PrimExpr:
        """Where in `levels` one channel of a pixel is: the order of axes is that of the result."""
        if self.image.layout == "NCHW":
            return channel * (SIDE * SIDE) + pixel
        return pixel * self.channels + channel

    def write(self, out: tir.Buffer, sample: tir.PrimExpr, first: IntExpr, count: IntExpr) -> None:
        """Write the tile to the result, as `count` channels of a sample's image, from `first` on."""
        ib, local, size = self.ib, self.local, reduce(mul, out.shape, tir.const(1, "int64"))
        flat = view(ib, out, [size])
        runs = self._runs(out, sample.astype("int64"), first, count)
        vector = VECTOR if runs.is_aligned else 1
        values = ib.allocate(out.dtype, vector, "values", scope="local")
        barrier(ib)
        with self.block.strided(runs.number * runs.length // vector) as at:
            number = local("run", tir.truncdiv(at, runs.length // vector))
            offset = local("offset", tir.truncmod(at, runs.length // vector) * vector)
            start, levels = runs.in_result(number)
            with ib.if_scope(offset < levels):
                for i in range(vector):
                    values[i] = self.image.value(local, self.levels[at * vector + i])
                every = tir.Ramp(0, 1, vector) if vector > 1 else 0
                place = local("place", start + offset)
                flat[tir.Ramp(place, 1, vector) if vector > 1 else place] = values[every]

    def _runs(self, out: tir.Buffer, sample: tir.PrimExpr, first: IntExpr, count: IntExpr) -> _Runs:
        """The runs of the tile, as long as the layout of the result allows."""
        (height, width), channels = self.image.size, self.channels
        columns = te.min(width - self.left, SIDE)

        def in_image(row: tir.PrimExpr, levels: IntExpr) -> tir.PrimExpr:
            return tir.Select(self.top + row < height, levels, 0)

        def row_of_channel(number: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            channel, row = tir.truncdiv(number, SIDE), tir.truncmod(number, SIDE)
            start = (sample * out.shape[1] + first + channel) * height + self.top + row
            return start * width + self.left, in_image(row, tir.Select(channel < count, columns, 0))

        def row_of_pixels(row: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            start = (sample * height + self.top + row) * width + self.left
            return start * channels, in_image(row, columns * channels)

        def pixel(number: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            row, column = tir.truncdiv(number, SIDE), tir.truncmod(number, SIDE)
            start = (sample * height + self.top + row) * width + self.left + column
            return start * out.shape[3] + first, in_image(row, tir.Select(column < columns, count, 0))

        if self.image.layout == "NCHW":
            return _Runs(SIDE, SIDE * channels, width % VECTOR == 0, row_of_channel)
        of_image = int(out.shape[3])
        if of_image == channels:
            return _Runs(SIDE * channels, SIDE, width * channels % VECTOR == 0, row_of_pixels)
        return _Runs(channels, SIDE * SIDE, of_image % VECTOR == channels % VECTOR == 0, pixel)


class Brush(NamedTuple):
    """A colour, and the first of the channels of the tile that it is for."""

    color: Sequence[tir.PrimExpr]
    channel: IntExpr

    def places(self, tile: Tile, pixel: tir.PrimExpr) -> list[tir.PrimExpr]:
        """Where those channels of a pixel are in `levels`."""
        return [tile.place(pixel, self.channel + i) for i in range(len(self.color))]


class _Runs(NamedTuple):
    """Levels that are contiguous in the tile and in the result, run after run."""

    length: int  # of each run in the tile; beyond the edge of the image, a part of it is left out
    number: int  # of runs
    is_aligned: bool  # whether each run begins and ends in the result at a multiple of `VECTOR`
    in_result: Callable[[tir.PrimExpr], tuple[tir.PrimExpr, tir.PrimExpr]]  # where a run begins, its length
