"""Phases 4 and 5 of `cuda_tile`: list the lines that touch the tile, and blend them into its pixels."""

from __future__ import annotations

from collections.abc import Sequence

from .._floats import Locals
from .._kernel import barrier, ceil_div
from .._tvm import BufferVar, te, tir
from .._warp import Part, ballot, below, count_bits
from .cuda_block import LANES, LINE_FIELDS, THREADS, WARPS, uint32
from .cuda_pixels import SIDE, Brush, Tile
from .cuda_shapes import HeldShapes
from .kernel import Line, Lines, alpha, blended

PART_SIZE = 4, 8  # rows and columns of a part of a tile: as many pixels as a warp has lanes
GRID = SIDE // PART_SIZE[0], SIDE // PART_SIZE[1]  # rows and columns of parts: as many as a word has bits


class LineList:
    """The lines that touch the tile and are still to be blended, in order.

    A line has six fields: a word of the parts of the tile that it may touch, and the five of `_packed`. Every
    thread keeps the length of the list; it is the same in all.
    """

    def __init__(self, tile: Tile, brush: Brush) -> None:
        self._ib, self._local, self._tile, self._block = tile.ib, tile.local, tile, tile.block
        self._fields, self._brush = tile.shared.lines, brush
        self._lines = Lines(tile.ib, tile.local, tile.shared.table, tile.image.size)
        self._listed = tile.local.variable("listed", tir.const(0))

    # --- phase 4

    def add(self, shapes: HeldShapes, edges: tir.PrimExpr) -> None:
        """List the edges of the chunk, in each round one by each thread.

        A round leaves no more than `THREADS` lines in the list, so that the next one has room for as many.
        """
        ib, local, block = self._ib, self._local, self._block
        with ib.for_range(0, ceil_div(edges, THREADS), "round") as turn:
            number = local("number", turn * THREADS + block.thread)
            line = [local.variable("field", tir.const(0)) for _ in range(LINE_FIELDS)]
            with ib.if_scope(number < edges):
                self._prepare(shapes, number, line)
            self._append(turn, [field[0] for field in line])
            with ib.if_scope(self._listed[0] > THREADS):
                self.blend()
                barrier(ib)

    def _prepare(self, shapes: HeldShapes, number: tir.PrimExpr, fields: list[BufferVar]) -> None:
        """Set the fields to the line of this edge; they stay 0 if it does not touch the tile."""
        tile = self._tile
        p, q = shapes.ends_in_chunk(number)
        spans = [(te.min(*ends), te.max(*ends)) for ends in ((p.x, q.x), (p.y, q.y))]
        near = (tile.has(*span, axis) for axis, span in enumerate(spans))
        places = (corner.place(shapes.is_fill) for corner in (p, q))
        with self._ib.if_scope(tir.all(*near)), self._lines.line(*places) as line:
            for field, value in zip(fields, [self._parts(line), *_packed(line)]):
                field[0] = value

    def _parts(self, line: Line) -> tir.PrimExpr:
        """A word of the parts of the tile that the line may touch: those that its bounding box touches."""
        local, tile = self._local, self._tile
        end = local("end", line.across(line.last))
        along = line.start, line.start + line.last
        across = (te.min(line.at, end) >> 16) - 1, (te.max(line.at, end) >> 16) + 1
        x = [tir.Select(line.flat != 0, *ends) - tile.left for ends in zip(along, across)]
        y = [tir.Select(line.flat != 0, *ends) - tile.top for ends in zip(across, along)]
        row_of_parts = self._repeated(uint32(1), 1, *x)
        return tir.reinterpret("int32", self._repeated(row_of_parts, 0, *y))

    def _repeated(self, bits: tir.PrimExpr, axis: int, low: tir.PrimExpr, high: tir.PrimExpr) -> tir.PrimExpr:
        """The bits, once for each row (axis 0) or column (axis 1) of parts that `low` to `high` touches.

        These are rows or columns of pixels, counted from the tile's first, and may be beyond the tile.
        """
        local, count = self._local, GRID[axis]
        low = local("low", tir.truncdiv(te.max(low, 0), PART_SIZE[axis]))
        high = local("high", tir.truncdiv(te.min(high, SIDE - 1), PART_SIZE[axis]))
        stride = 1 if axis == 1 else GRID[1]  # bits
        every = uint32(sum(1 << stride * number for number in range(count)))
        spare = te.max((count - 1 - high + low) * stride, 0).astype("uint32")
        ones = (every >> spare) << te.min(low * stride, LANES - 1).astype("uint32")
        return local("bits", tir.Select(low <= high, bits * ones, uint32(0)))

    def _append(self, turn: tir.PrimExpr, line: Sequence[tir.PrimExpr]) -> None:
        """Append those of the threads' lines that touch a part, in the order of the threads."""
        local, touched = self._local, line[0]
        lanes = local("lanes", ballot(touched != 0))
        totals = self._tile.shared.totals
        before, total = self._block.sum_over_warps(totals, tir.truncmod(turn, 2), count_bits(lanes))
        with self._ib.if_scope(touched != 0):
            at = local("at", self._listed[0] + before + count_bits(lanes & below(self._block.lane)))
            for field, value in zip(self._fields, line):
                field[at] = value
        self._listed[0] = self._listed[0] + total

    # --- phase 5

    def finish(self) -> None:
        """Blend the lines that are left in the list."""
        with self._ib.if_scope(self._listed[0] > 0):
            self.blend()

    def blend(self) -> None:
        """Blend all lines of the list, each warp into its parts of the tile, and empty the list."""
        ib, local, tile, block = self._ib, self._local, self._tile, self._block
        barrier(ib)
        with ib.for_range(0, GRID[0] * GRID[1] // WARPS, "of_warp") as turn:
            part = local("part", turn * WARPS + block.warp)
            row = tir.truncdiv(part, GRID[1]) * PART_SIZE[0] + tir.truncdiv(block.lane, PART_SIZE[1])
            column = tir.truncmod(part, GRID[1]) * PART_SIZE[1] + tir.truncmod(block.lane, PART_SIZE[1])
            row, column = local("row", row), local("column", column)
            places = self._brush.places(tile, row * SIDE + column)
            levels = [local.variable("level", tile.levels[place].astype("int32")) for place in places]
            with ib.for_range(0, ceil_div(self._listed[0], LANES), "word") as word:
                at = local("at", word * LANES + block.lane)
                touched = local.variable("touched", tir.const(0))
                with ib.if_scope(at < self._listed[0]):
                    touched[0] = (self._fields[0][at] >> part) & 1
                with block.each_lane(touched[0] != 0) as owner:
                    line = _unpacked(local, self._fields[1:], word * LANES + owner)
                    self._blend_pixel(line, tile.left + column, tile.top + row, levels)
            for place, level in zip(places, levels):
                tile.levels[place] = level[0].astype("uint8")
        self._listed[0] = tir.const(0)

    def _blend_pixel(self, line: Line, x: tir.PrimExpr, y: tir.PrimExpr, levels: list[BufferVar]) -> None:
        """Blend a line into the lane's pixel, if it is one of the three across at some step of the line."""
        ib, local, table = self._ib, self._local, self._tile.shared.table
        k = local("k", tir.Select(line.flat != 0, x, y) - line.start)
        with ib.if_scope(tir.all(k >= 0, k <= line.last)):
            across = local("across", line.across(k))
            offset = local("offset", tir.Select(line.flat != 0, y, x) - (across >> 16))
            with ib.if_scope(tir.all(offset >= -1, offset <= 1)):
                weight = local("weight", alpha(table, line.strength(k), across, offset))
                for level, color in zip(levels, self._brush.color):
                    level[0] = blended(local, level[0], color, weight)


def _packed(line: Line) -> Sequence[tir.PrimExpr]:
    """A line as five int32.

    It is clipped to the image, so its start and its last step take 15 bits each; a strength takes 9.
    """
    first, second, last_but_one, last, between = line.strengths
    place = line.start | line.last << 15 | line.flat << 30
    return line.at, line.step, place, first | second << 9 | last_but_one << 18, last | between << 9


def _unpacked(local: Locals, fields: Sequence[Part], number: tir.PrimExpr) -> Line:
    """The line of this number, from the fields of `_packed`."""
    at, step, place, strong, weak = (local("field", field[number]) for field in fields)
    last = (place >> 15) & 0x7FFF
    strengths = [strong & 511, (strong >> 9) & 511, strong >> 18, weak & 511, weak >> 9]
    return Line(place >> 30, place & 0x7FFF, local("last", last), at, step, strengths)
