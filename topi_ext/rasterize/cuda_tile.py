"""A block's tile of an image, and how shapes are drawn on it.

Shapes are taken in order, as many at once as the block has threads.

1. Each thread looks whether its shape may be on the tile.
2. What is inside polygons: a warp takes a polygon, and each of its lanes a row of the tile, 32 pixels as the
   bits of a word. The lanes fetch an edge each, and tell all others of those that cross the tile's rows.
3. Lines: each thread prepares one, and those that touch the tile are listed for all to read. Once the list is
   long enough, each warp takes parts of 8x4 pixels, looks which lines touch a part, and each lane blends its
   pixel with those, in order.

Only one colour is drawn at a time, and lines change nothing where a polygon is filled with it: so that is
done last. No thread writes where another reads or writes without a barrier between: the result does not
depend on the order in which threads run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from operator import add, mul

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar, IRBuilder

from .._floats import Locals
from .._kernel import barrier, ceil_div, clamp
from .._types import IntExpr
from .._warp import (
    ALL_LANES,
    Part,
    ballot,
    below,
    count_bits,
    count_threads,
    first_bit,
    from_lane,
    from_lane_before,
)
from .kernel import (
    REACH,
    TABLE,
    Camera,
    Contours,
    Corner,
    Edge,
    Image,
    Line,
    Lines,
    Palette,
    alpha,
    blended,
    zero_if_finite,
)
from .reference import ONE, SUBPIXELS

THREADS, LANES = 256, 32
WARPS = THREADS // LANES
SIDE = 32  # of a tile: it has as many rows as a warp has lanes, as many columns as a word has bits
PART = 4, 8  # rows and columns of a part of a tile, of which each lane has a pixel
PARTS = SIDE // PART[0], SIDE // PART[1]  # as many as a word has bits
VECTOR = 4  # levels that are written at once


class Tile:
    """The pixels of a tile, what else the block shares, and where the thread stands."""

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
        self.ib, self.local, self.thread = ib, local, thread
        self.image, self.channels = image, channels
        self.top, self.left = local("top", row * SIDE), local("left", column * SIDE)
        self.lane = local("lane", tir.truncmod(thread, LANES))
        self.warp = local("warp", tir.truncdiv(thread, LANES))
        self.levels = ib.allocate("uint8", SIDE * SIDE * channels, "levels", scope="shared")
        styles = [[*color, int(kind == "fill")] for color, kind in palette]
        # One array, since TVM would let one of several take the place of another that is no longer used, and
        # leave out the barrier which that needs.
        sizes = [
            len(TABLE),
            sum(map(len, styles)),
            2 * WARPS,
            *[THREADS] * 3,
            2 * THREADS,
            *[2 * THREADS] * 6,
        ]
        shared = ib.allocate("int32", sum(sizes), "shared", scope="shared")
        parts = [Part(shared, sum(sizes[:number])) for number in range(len(sizes))]
        (
            self.table,
            self._styles,
            self.totals,
            self.starts,
            self.points,
            self.counts,
            self.inside,
            *self.lines,
        ) = parts
        self._fill(self.table, [*TABLE, *chain.from_iterable(styles)])

    def _fill(self, part: Part, numbers: Sequence[int]) -> None:
        """With numbers up to 255: four are a constant of the code."""
        with self.strided(len(numbers)) as at:
            word = tir.const(0, "uint32")
            for first in range(0, len(numbers), 4):
                four = sum(number << 8 * i for i, number in enumerate(numbers[first : first + 4]))
                word = tir.Select(at >= first, tir.const(four, "uint32"), word)
            byte = (word >> ((at & 3) * 8).astype("uint32")) & tir.const(255, "uint32")
            part[at] = byte.astype("int32")

    def style(self, number: tir.PrimExpr) -> tuple[list[tir.PrimExpr], tir.PrimExpr]:
        """The colour of a style of the palette, and whether it is one of polygons: from shared memory, since
        registers are few."""
        *color, is_fill = (self._styles[number * (self.channels + 1) + i] for i in range(self.channels + 1))
        return color, is_fill != 0

    def camera(self, points: BufferVar, matrices: BufferVar, sample: tir.PrimExpr) -> Camera:
        """With the matrix in shared memory too."""
        ib, local = self.ib, self.local
        matrix = ib.allocate("float64", 6, "matrix", scope="shared")
        with ib.if_scope(self.thread < 6):
            row, column = tir.truncdiv(self.thread, 3), tir.truncmod(self.thread, 3)
            matrix[self.thread] = matrices[sample, row, column].astype("float64")
        barrier(ib)
        rows = [[matrix[row * 3 + column] for column in range(3)] for row in range(2)]
        return Camera(ib, local, points, rows, zero_if_finite(local, rows[0][2], rows[1][2]))

    def clear(self, color: Sequence[int]) -> None:
        """Before anything is drawn; the barrier before the first drawing is enough."""
        with self.strided(SIDE * SIDE) as pixel:
            for channel, level in enumerate(color):
                self.levels[self.place(pixel, channel)] = tir.const(level, "uint8")

    def place(self, pixel: tir.PrimExpr, channel: IntExpr) -> tir.PrimExpr:
        """Where the level of a pixel of the tile is: as in the result."""
        if self.image.layout == "NCHW":
            return channel * (SIDE * SIDE) + pixel
        return pixel * self.channels + channel

    def has(self, low: tir.PrimExpr, high: tir.PrimExpr, axis: int) -> tir.PrimExpr:
        """Whether what lies between these, in 1/512 of a pixel, may be drawn on the tile."""
        begin, reach = (self.left, self.top)[axis] * SUBPIXELS, REACH * SUBPIXELS
        return tir.all(high >= begin - reach, low < begin + SIDE * SUBPIXELS + reach)

    def write(self, out: tir.Buffer, sample: tir.PrimExpr, first: IntExpr, count: IntExpr) -> None:
        """The tile as `count` channels of a sample's image, from `first` on."""
        ib, local, size = self.ib, self.local, reduce(mul, out.shape, tir.const(1, "int64"))
        flat = ib.buffer_ptr(tir.decl_buffer([size], out.dtype, "flat", data=out.data))
        run, runs, aligned, run_of = self._runs(out, sample.astype("int64"), first, count)
        vector = VECTOR if aligned else 1
        values = ib.allocate(out.dtype, vector, "values", scope="local")
        barrier(ib)
        with self.strided(runs * run // vector) as at:
            number = local("run", tir.truncdiv(at, run // vector))
            offset = local("offset", tir.truncmod(at, run // vector) * vector)
            start, levels = run_of(number)
            with ib.if_scope(offset < levels):
                for i in range(vector):
                    values[i] = self.image.value(local, self.levels[at * vector + i])
                every = tir.Ramp(0, 1, vector) if vector > 1 else 0
                place = local("place", start + offset)
                flat[tir.Ramp(place, 1, vector) if vector > 1 else place] = values[every]

    def _runs(
        self, out: tir.Buffer, sample: tir.PrimExpr, first: tir.PrimExpr, count: tir.PrimExpr
    ) -> tuple[int, int, bool, Callable[[tir.PrimExpr], tuple[tir.PrimExpr, tir.PrimExpr]]]:
        """The levels of the tile as runs that are side by side in the result too: how long, how many, and
        whether vectors fit; and of each where it begins there, and how many of it are in the image."""
        (height, width), channels = self.image.size, self.channels
        columns = te.min(width - self.left, SIDE)

        def seen(row: tir.PrimExpr, levels: IntExpr) -> tir.PrimExpr:
            return tir.Select(self.top + row < height, levels, 0)

        if self.image.layout == "NCHW":

            def run_of_plane(number: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
                channel, row = tir.truncdiv(number, SIDE), tir.truncmod(number, SIDE)
                start = (sample * out.shape[1] + first + channel) * height + self.top + row
                return start * width + self.left, seen(row, tir.Select(channel < count, columns, 0))

            return SIDE, SIDE * channels, width % VECTOR == 0, run_of_plane
        if int(out.shape[3]) == channels:

            def run_of_row(row: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
                start = (sample * height + self.top + row) * width + self.left
                return start * channels, seen(row, columns * channels)

            return SIDE * channels, SIDE, width * channels % VECTOR == 0, run_of_row

        def run_of_pixel(pixel: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            row, column = tir.truncdiv(pixel, SIDE), tir.truncmod(pixel, SIDE)
            start = (sample * height + self.top + row) * width + self.left + column
            return start * out.shape[3] + first, seen(row, tir.Select(column < columns, count, 0))

        return channels, SIDE * SIDE, out.shape[3] % VECTOR == channels % VECTOR == 0, run_of_pixel

    @contextmanager
    def strided(self, count: IntExpr) -> Iterator[tir.PrimExpr]:
        """The numbers below `count` that this thread takes: neighbours have neighbouring ones."""
        with self.ib.for_range(0, ceil_div(count, THREADS), "turn") as turn:
            at = self.local("at", turn * THREADS + self.thread)
            with self.ib.if_scope(at < count):
                yield at


class Drawing:
    """Shapes of one colour, and what of the tile is inside those that are polygons.

    `together`: polygons are one figure, and what an even number of them covers is outside.
    """

    def __init__(
        self,
        tile: Tile,
        camera: Camera,
        contours: Contours,
        color: Sequence[tir.PrimExpr],
        is_fill: tir.PrimExpr,
        channel: IntExpr,
        together: bool,
    ) -> None:
        self.ib, self.local, self.tile = tile.ib, tile.local, tile
        self._camera, self._contours, self._color, self._is_fill = camera, contours, color, is_fill
        self._channel, self._together = channel, together
        self._lines = Lines(tile.ib, tile.local, tile.table, tile.image.size)
        # Of the lane's row, which pixels are inside a polygon or on the edge of one; and, of all polygons
        # together, after an odd number of edges.
        self._covered, self._odd = (self.local.variable(name, _bits(0)) for name in ("covered", "odd"))
        self._drawn, self._listed = (self.local.variable(name, tir.const(0)) for name in ("drawn", "listed"))

    def draw(
        self,
        begin: IntExpr,
        end: IntExpr,
        candidate: Callable[[tir.PrimExpr], tuple[tir.PrimExpr, tir.PrimExpr]],
    ) -> None:
        """The shapes `candidate(i)` for i from `begin` to `end`: which, and whether it may be on the tile."""
        ib, variable, tile = self.ib, self.local.variable, self.tile
        with ib.for_range(0, ceil_div(end - begin, THREADS), "chunk") as chunk:
            at = self.local("shape", begin + chunk * THREADS + tile.thread)
            first, count = variable("first", tir.const(0)), variable("count", tir.const(0))
            with ib.if_scope(at < end):
                shape, is_near = candidate(at)
                with ib.if_scope(is_near):
                    first[0], count[0] = self._contours.span(shape)
            # All threads get here, so what earlier shapes left in shared memory is no longer needed.
            found = self.local("found", count_threads(count[0] > 0))
            with ib.if_scope(found > 0):
                self._drawn[0] = tir.const(1)
                edges = self._share_out(first[0], count[0])
                with ib.if_scope(self._is_fill):
                    self._find_inside()
                self._draw_lines(edges)
        with ib.if_scope(self._listed[0] > 0):
            self._draw_listed()
        with ib.if_scope(tir.all(self._is_fill, self._drawn[0] != 0)):
            self._fill()

    def _share_out(self, first: tir.PrimExpr, count: tir.PrimExpr) -> tir.PrimExpr:
        """Write for all which points the thread's shape has, and where its edges begin among those of all.
        Give the number of all."""
        local, tile = self.local, self.tile
        edges = local("edges", te.max(count - tir.Select(self._is_fill, 0, 1), 0))
        up_to = local.variable("up_to", edges)
        for distance in (1, 2, 4, 8, 16):
            before = local("before", from_lane_before(up_to[0], distance))
            up_to[0] = up_to[0] + tir.Select(tile.lane >= distance, before, 0)
        before, total = self._sums(up_to[0], 0)
        tile.starts[tile.thread] = before + up_to[0] - edges
        tile.points[tile.thread] = first
        tile.counts[tile.thread] = count
        barrier(self.ib)
        return total

    def _sums(self, of_warp: tir.PrimExpr, turn: IntExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Of the numbers that the warps have, that of the warps before and of all. No two calls of the same
        `turn`, 0 or 1, may follow each other without a barrier."""
        ib, local, tile = self.ib, self.local, self.tile
        with ib.if_scope(tile.lane == LANES - 1):
            tile.totals[turn * WARPS + tile.warp] = of_warp
        barrier(ib)
        totals = [local("total", tile.totals[turn * WARPS + warp]) for warp in range(WARPS)]
        before = reduce(add, (tir.Select(tile.warp > warp, total, 0) for warp, total in enumerate(totals)))
        return local("before", before), local("all", reduce(add, totals))

    # --- polygons

    def _find_inside(self) -> None:
        """Of the shapes that the threads hold; those of neighbours are for different warps."""
        tile = self.tile
        held = self.local("held", tile.lane * WARPS + tile.warp)
        with self._each_lane(tile.counts[held] > 0) as lane:
            held = self.local("held", lane * WARPS + tile.warp)
            first, count = self.local("first", tile.points[held]), self.local("count", tile.counts[held])
            odd = self._odd if self._together else self.local.variable("odd_here", _bits(0))
            with self.ib.for_range(0, ceil_div(count, LANES), "batch") as batch:
                self._cross(first, count, batch * LANES + tile.lane, odd)
            if not self._together:
                self._covered[0] = self._covered[0] | odd[0]

    def _cross(self, first: tir.PrimExpr, count: tir.PrimExpr, number: tir.PrimExpr, odd: BufferVar) -> None:
        """Take note of where the edges that the lanes hold, of these numbers, cross the lane's row."""
        ib, local, tile = self.ib, self.local, self.tile
        top, bottom, x, slope, crosses = (local.variable("edge", tir.const(0)) for _ in range(5))
        with ib.if_scope(number < count):
            corners = self._ends(first, count, number)
            edge = Edge.between(ib, local, *corners)
            top[0], bottom[0], x[0], slope[0] = edge.top, edge.bottom, edge.x, edge.slope
            below = tir.all(edge.top < tile.top + SIDE, edge.bottom > tile.top)
            left = te.min(*(corner.x for corner in corners)) < (tile.left + SIDE) * SUBPIXELS
            crosses[0] = tir.all(below, left).astype("int32")
        with self._each_lane(crosses[0] != 0) as owner:
            edge = Edge(*(local("shuffled", from_lane(value[0], owner)) for value in (top, bottom, x, slope)))
            row = local("row", tile.top + tile.lane)
            with ib.if_scope(tir.all(row >= edge.top, row < edge.bottom)):
                at = local("at", edge.at(row))
                column = local("column", (at >> 16) - tile.left)
                after = local("after", clamp(column + 1, 0, SIDE - 1).astype("uint32"))
                odd[0] = odd[0] ^ tir.Select(column < SIDE - 1, ALL_LANES << after, _bits(0))
                with ib.if_scope(tir.all((at & (ONE - 1)) == 0, column >= 0, column < SIDE)):
                    self._covered[0] = self._covered[0] | (_bits(1) << column.astype("uint32"))

    def _fill(self) -> None:
        """Paint what any warp, or all together, found inside."""
        ib, tile = self.ib, self.tile
        of_warp = tile.warp * LANES + tile.lane
        tile.inside[of_warp] = tir.reinterpret("int32", self._covered[0])
        if self._together:
            tile.inside[THREADS + of_warp] = tir.reinterpret("int32", self._odd[0])
        barrier(ib)
        with tile.strided(SIDE * SIDE) as pixel:
            row = tir.truncdiv(pixel, SIDE)
            words = [tile.inside[warp * LANES + row] for warp in range(WARPS)]
            inside = reduce(tir.bitwise_or, words)
            if self._together:
                words = [tile.inside[THREADS + warp * LANES + row] for warp in range(WARPS)]
                inside = inside | reduce(tir.bitwise_xor, words)
            with ib.if_scope(((inside >> (pixel & (SIDE - 1))) & 1) != 0):
                for channel, level in enumerate(self._color):
                    tile.levels[tile.place(pixel, self._channel + channel)] = level.astype("uint8")

    # --- lines

    def _draw_lines(self, total: tir.PrimExpr) -> None:
        """Of all shapes that the threads hold, in order: as many lines at once as there are threads."""
        local, tile = self.local, self.tile
        with self.ib.for_range(0, ceil_div(total, THREADS), "round") as turn:
            number = local("number", turn * THREADS + tile.thread)
            touched, *fields = line = [local.variable("field", tir.const(0)) for _ in tile.lines]
            with self.ib.if_scope(number < total):
                self._prepare_line(number, line)
            self._list(turn, touched[0], fields)

    def _list(self, turn: tir.PrimExpr, touched: tir.PrimExpr, fields: list[BufferVar]) -> None:
        """List the threads' lines that touch the tile, and draw those listed before they are too many."""
        ib, local, tile = self.ib, self.local, self.tile
        lanes = local("lanes", ballot(touched != 0))
        before, total = self._sums(count_bits(lanes), tir.truncmod(turn, 2))
        with ib.if_scope(touched != 0):
            at = local("at", self._listed[0] + before + count_bits(lanes & below(tile.lane)))
            for field, value in zip(tile.lines, [touched, *(field[0] for field in fields)]):
                field[at] = value
        self._listed[0] = self._listed[0] + total
        with ib.if_scope(self._listed[0] > THREADS):
            self._draw_listed()
            barrier(ib)

    def _prepare_line(self, number: tir.PrimExpr, fields: list[BufferVar]) -> None:
        """The line of this number: first which parts of the tile it may touch, then what `_line` takes."""
        ib, local, tile = self.ib, self.local, self.tile
        owner = local.variable("owner", tir.const(0))
        step = THREADS // 2
        while step:  # the last shape that begins at the number or before it
            owner[0] = tir.Select(tile.starts[owner[0] + step] <= number, owner[0] + step, owner[0])
            step //= 2
        first, count = local("first", tile.points[owner[0]]), local("count", tile.counts[owner[0]])
        p, q = self._ends(first, count, local("own", number - tile.starts[owner[0]]))
        spans = [(te.min(*ends), te.max(*ends)) for ends in ((p.x, q.x), (p.y, q.y))]
        with ib.if_scope(tir.all(*(tile.has(*span, axis) for axis, span in enumerate(spans)))):
            places = (corner.place(self._is_fill) for corner in (p, q))
            with self._lines.line(*places) as line:
                first, second, last_but_one, last, between = line.strengths
                place = line.start | line.last << 15 | line.flat << 30
                strengths = first | second << 9 | last_but_one << 18, last | between << 9
                values = self._parts(line), line.at, line.step, place, *strengths
                for field, value in zip(fields, values):
                    field[0] = value

    def _parts(self, line: Line) -> tir.PrimExpr:
        """A bit for each part of the tile that the line may touch."""
        local, tile = self.local, self.tile
        end = local("end", line.across(line.last))
        along = line.start, line.start + line.last
        across = (te.min(line.at, end) >> 16) - 1, (te.max(line.at, end) >> 16) + 1
        bits = tir.const(1, "uint32")
        for axis, begin, spans in ((1, tile.left, (along, across)), (0, tile.top, (across, along))):
            low, high = (tir.Select(line.flat != 0, *ends) - begin for ends in zip(*spans))
            low = local("low", tir.truncdiv(te.max(low, 0), PART[axis]))
            high = local("high", tir.truncdiv(te.min(high, SIDE - 1), PART[axis]))
            stride = 1 if axis else PARTS[1]
            every = tir.const(sum(1 << stride * number for number in range(PARTS[axis])), "uint32")
            spare = te.max((PARTS[axis] - 1 - high + low) * stride, 0).astype("uint32")
            some = (every >> spare) << te.min(low * stride, LANES - 1).astype("uint32")
            bits = local("bits", tir.Select(low <= high, bits * some, _bits(0)))
        return tir.reinterpret("int32", bits)

    def _line(self, number: tir.PrimExpr) -> Line:
        at, step, places, strong, weak = (self.local("field", field[number]) for field in self.tile.lines[1:])
        last = (places >> 15) & 0x7FFF
        strengths = [strong & 511, (strong >> 9) & 511, strong >> 18, weak & 511, weak >> 9]
        return Line(places >> 30, places & 0x7FFF, self.local("last", last), at, step, strengths)

    def _draw_listed(self) -> None:
        """Each warp on its parts of the tile."""
        ib, local, tile = self.ib, self.local, self.tile
        barrier(ib)
        with ib.for_range(0, PARTS[0] * PARTS[1] // WARPS, "of_warp") as turn:
            part = local("part", turn * WARPS + tile.warp)
            row = tir.truncdiv(part, PARTS[1]) * PART[0] + tir.truncdiv(tile.lane, PART[1])
            column = tir.truncmod(part, PARTS[1]) * PART[1] + tir.truncmod(tile.lane, PART[1])
            row, column = local("row", row), local("column", column)
            places = [tile.place(row * SIDE + column, self._channel + i) for i in range(len(self._color))]
            levels = [local.variable("level", tile.levels[place].astype("int32")) for place in places]
            with ib.for_range(0, ceil_div(self._listed[0], LANES), "word") as word:
                at = local("at", word * LANES + tile.lane)
                touched = local.variable("touched", tir.const(0))
                with ib.if_scope(at < self._listed[0]):
                    touched[0] = (tile.lines[0][at] >> part) & 1
                with self._each_lane(touched[0] != 0) as owner:
                    self._blend(self._line(word * LANES + owner), tile.left + column, tile.top + row, levels)
            for place, level in zip(places, levels):
                tile.levels[place] = level[0].astype("uint8")
        self._listed[0] = tir.const(0)

    def _blend(self, line: Line, x: tir.PrimExpr, y: tir.PrimExpr, levels: list[BufferVar]) -> None:
        ib, local = self.ib, self.local
        k = local("k", tir.Select(line.flat != 0, x, y) - line.start)
        with ib.if_scope(tir.all(k >= 0, k <= line.last)):
            across = local("across", line.across(k))
            offset = local("offset", tir.Select(line.flat != 0, y, x) - (across >> 16))
            with ib.if_scope(tir.all(offset >= -1, offset <= 1)):
                weight = local("weight", alpha(self.tile.table, line.strength(k), across, offset))
                for level, color in zip(levels, self._color):
                    level[0] = blended(local, level[0], color, weight)

    def _ends(self, first: tir.PrimExpr, count: tir.PrimExpr, own: tir.PrimExpr) -> list[Corner]:
        """The corners of an edge of a polygon, or of a part of a line."""
        before = tir.Select(own == 0, count - 1, own - 1)
        numbers = tir.Select(self._is_fill, before, own), tir.Select(self._is_fill, own, own + 1)
        return [self._camera.corner(self.local("number", first + number)) for number in numbers]

    @contextmanager
    def _each_lane(self, condition: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
        """One after the other, each lane of the warp for which the condition holds; for all lanes alike."""
        lanes = self.local.variable("lanes", ballot(condition))
        with self.ib.while_loop(lanes[0] != _bits(0)):
            lane = self.local("owner", first_bit(lanes[0]))
            lanes[0] = lanes[0] & (lanes[0] - _bits(1))
            yield lane


def _bits(value: int) -> tir.PrimExpr:
    return tir.const(value, "uint32")
