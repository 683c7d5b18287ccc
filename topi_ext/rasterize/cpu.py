"""Rasterising for LLVM: samples in parallel, or their layers; shape by shape, each pixel that it changes.

Images are drawn as planes of uint8, one a channel, and then brought into the result's layout and type. What
is inside polygons is kept as bits, 64 pixels of a row in a word. Where an edge crosses a row, one bit is
flipped, which stands for all to its right; once a polygon has all its edges, crossings become pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._floats import Locals
from .._kernel import ceil_div, clamp, in_a_row
from .._tvm import BufferVar, IRBuilder, te, tir, trailing_zeros
from .kernel import (
    REACH,
    TABLE,
    Bounds,
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
    corners_of_box,
    length,
    near,
    row_of,
    style_of,
    within,
)
from .reference import ONE, SUBPIXELS

BITS = 64  # of a word
LANES = 8  # pixels of a plane that are looked at together for whether any is drawn
WHITE = [tir.const(255)]


def rasterize_masks(
    shapes: te.Tensor,
    offsets: te.Tensor,
    layers: te.Tensor,
    matrices: te.Tensor,
    image: Image,
    *,
    kind: str,
    mode: str,
) -> te.Tensor:
    """The result of `topi_ext.rasterize_masks`."""
    layer_count = int(layers.shape[1]) - 1

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        local = Locals(ib, "global")
        contours, points = _shapes(ib, local, kind, *ins[:2])
        layers, matrices = map(ib.buffer_ptr, ins[2:])
        samples, table = length(ins[3], 0), _table(ib)

        def draw(canvas: _Canvas, sample: tir.PrimExpr, layer: tir.PrimExpr) -> None:
            camera = Camera.of(ib, local, points, matrices, sample)
            begin = local("begin", within(layers[sample, layer], 0, contours.count))
            end = local("end", within(layers[sample, layer + 1], begin, contours.count))
            with ib.for_range(0, end - begin, "shape") as shape:
                canvas.draw(camera, *contours.span(begin + shape), tir.const(kind != "polylines"), WHITE)
            canvas.fill(WHITE)

        if image.layout == "NCHW":
            with ib.for_range(0, samples * layer_count, "task", kind="parallel") as task:
                planes = _Planes(ib, local, image, 1)
                planes.clear([0])
                canvas = _Canvas(ib, local, table, planes, together=mode == "parity")
                draw(canvas, tir.truncdiv(task, layer_count), tir.truncmod(task, layer_count))
                planes.write(outs[0], task)
        else:
            with ib.for_range(0, samples, "sample", kind="parallel") as sample:
                planes = _Planes(ib, local, image, layer_count)
                planes.clear([0] * layer_count)
                canvas = _Canvas(ib, local, table, planes, together=mode == "parity")
                with ib.for_range(0, layer_count, "layer") as layer:
                    canvas.first = layer * planes.size
                    draw(canvas, sample, layer)
                planes.interleave(outs[0], sample, mostly_empty=True)
        return ib.get()

    return te.extern(
        [image.shape(matrices.shape[0], layer_count)],
        [shapes, offsets, layers, matrices],
        emit,
        dtype=[image.dtype],
        name="rasterize_masks",
    )


def rasterize_map(
    points: te.Tensor,
    offsets: te.Tensor,
    styles: te.Tensor,
    matrices: te.Tensor,
    image: Image,
    *,
    palette: Palette,
    background: Sequence[int],
) -> te.Tensor:
    """The result of `topi_ext.rasterize_map`."""
    channels = len(background)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        local, table = Locals(ib, "global"), _table(ib)
        points, _, styles, matrices = map(ib.buffer_ptr, ins)
        contours = Contours(ib, local, ins[1], length(ins[0], 0))
        bounds = _bounds(ib, local, points, contours)
        with ib.for_range(0, length(ins[3], 0), "sample", kind="parallel") as sample:
            planes = _Planes(ib, local, image, channels)
            planes.clear(background)
            canvas = _Canvas(ib, local, table, planes, together=False)
            camera = Camera.of(ib, local, points, matrices, sample)
            with ib.for_range(0, len(palette), "style") as style:
                color, is_fill = style_of(local, palette, style)
                with ib.for_range(0, contours.count, "shape") as shape:
                    own = styles[(sample, shape) if len(ins[2].shape) == 2 else shape]
                    with ib.if_scope(own.astype("int32") == style):
                        finite, spans = bounds.in_image(shape, camera)
                        with ib.if_scope(tir.all(finite, *map(near, spans, image.size[::-1]))):
                            canvas.draw(camera, *contours.span(shape), is_fill, color)
                with ib.if_scope(is_fill):
                    canvas.fill(color)
            if image.layout == "NCHW":
                planes.write(outs[0], sample)
            else:
                planes.interleave(outs[0], sample, mostly_empty=False)
        return ib.get()

    return te.extern(
        [image.shape(matrices.shape[0], channels)],
        [points, offsets, styles, matrices],
        emit,
        dtype=[image.dtype],
        name="rasterize_map",
    )


def _table(ib: IRBuilder) -> BufferVar:
    table = ib.allocate("int32", len(TABLE), "table", scope="global")
    for at, value in enumerate(TABLE):
        table[at] = tir.const(value)
    return table


def _shapes(
    ib: IRBuilder, local: Locals, kind: str, shapes: tir.Buffer, offsets: tir.Buffer
) -> tuple[Contours, BufferVar]:
    """The contours and their points, which for boxes are computed first."""
    count = length(shapes, 0)
    if kind != "boxes":
        return Contours(ib, local, offsets, count), ib.buffer_ptr(shapes)
    boxes = ib.buffer_ptr(shapes)
    corners = ib.allocate("float64", (te.max(count, 1) * 4, 2), "corners", scope="global")
    with ib.for_range(0, count, "box", kind="parallel") as box:
        for number, corner in enumerate(corners_of_box(local, boxes, box)):
            for axis in range(2):
                corners[box * 4 + number, axis] = corner[axis]
    return Contours(ib, local, None, count * 4), corners


class _Planes:
    """The channels of an image, each a plane of uint8, one after the other."""

    def __init__(self, ib: IRBuilder, local: Locals, image: Image, count: int) -> None:
        self.ib, self.local, self.image, self.count = ib, local, image, count
        self.pixels = image.height * image.width
        self.size = ceil_div(self.pixels, LANES) * LANES
        self.levels = ib.allocate("uint8", count * self.size, "levels", scope="global")

    def clear(self, color: Sequence[int]) -> None:
        if len(set(color)) == 1:
            with self.ib.for_range(0, self.count * self.size, "at") as at:
                self.levels[at] = tir.const(color[0], "uint8")
            return
        for plane, level in enumerate(color):
            with self.ib.for_range(0, self.size, "at") as at:
                self.levels[plane * self.size + at] = tir.const(level, "uint8")

    def write(self, out: tir.Buffer, number: tir.PrimExpr) -> None:
        """As the planes of the result from this number on, of as many."""
        ib, flat = self.ib, in_a_row(self.ib, out)[0]
        with ib.for_range(0, self.count, "plane") as plane:
            start = (number.astype("int64") * self.count + plane) * self.pixels
            with ib.for_range(0, self.pixels, "pixel") as pixel:
                flat[start + pixel] = self.image.value(self.local, self.levels[plane * self.size + pixel])

    def interleave(self, out: tir.Buffer, sample: tir.PrimExpr, mostly_empty: bool) -> None:
        """As the channels of the result's image of a sample; `mostly_empty`: look for what is not."""
        ib, flat = self.ib, in_a_row(self.ib, out)[0]
        first = sample.astype("int64") * (self.pixels * self.count)
        with ib.for_range(0, self.size // LANES, "group") as group:
            pixels = te.min(self.pixels - group * LANES, LANES)
            start = first + group * (LANES * self.count)
            if mostly_empty:
                with ib.for_range(0, pixels * self.count, "at") as at:
                    flat[start + at] = self.image.value(self.local, tir.const(0))
            with ib.for_range(0, self.count, "plane") as plane:
                own = plane * self.size + group * LANES
                word = tir.reinterpret("uint64", self.levels[tir.Ramp(own, 1, LANES)])
                is_drawn = word != _word(0) if mostly_empty else tir.const(True)
                with ib.if_scope(is_drawn), ib.for_range(0, pixels, "pixel") as pixel:
                    level = self.image.value(self.local, self.levels[own + pixel])
                    flat[start + pixel * self.count + plane] = level


class _Canvas:
    """Draws on planes, from place `first` of their levels on, as many of them as a colour has numbers."""

    def __init__(
        self, ib: IRBuilder, local: Locals, table: BufferVar, planes: _Planes, together: bool
    ) -> None:
        self.ib, self.local, self.first = ib, local, 0
        self._planes, self._table, self._together = planes, table, together
        self._height, self._width = planes.image.size
        self._lines = Lines(ib, local, table, planes.image.size)
        self._words = self._width // BITS + 1  # so that there is a bit to the right of a row
        self._inside, self._crossings = (
            ib.allocate("uint64", self._height * self._words, name, scope="global")
            for name in ("inside", "crossings")
        )
        with ib.for_range(0, self._height * self._words, "word") as word:
            self._inside[word] = _word(0)
            self._crossings[word] = _word(0)

    def draw(
        self,
        camera: Camera,
        first: tir.PrimExpr,
        count: tir.PrimExpr,
        is_fill: tir.PrimExpr,
        color: Sequence[tir.PrimExpr],
    ) -> None:
        """The outline of a polygon or a line; what is inside a polygon is drawn by `fill`."""
        ib, (height, width) = self.ib, self._planes.image.size
        finite, spans = camera.extent(first, count)
        reach = REACH * SUBPIXELS
        seen = [
            tir.all(high >= -reach, low < side * SUBPIXELS + reach)
            for (low, high), side in zip(spans, (width, height))
        ]
        with ib.if_scope(tir.all(finite, *seen)):
            self._draw_edges(camera, first, count, is_fill, color)
            if not self._together:
                with ib.if_scope(is_fill):
                    self._resolve(*spans)

    def _draw_edges(
        self,
        camera: Camera,
        first: tir.PrimExpr,
        count: tir.PrimExpr,
        is_fill: tir.PrimExpr,
        color: Sequence[tir.PrimExpr],
    ) -> None:
        ib, variable = self.ib, self.local.variable
        corner = camera.corner(first + tir.Select(is_fill, count - 1, 0))
        x, y = variable("x", corner.x), variable("y", corner.y)
        skipped = tir.Select(is_fill, 0, 1)
        with ib.for_range(0, count - skipped, "edge") as edge:
            before = Corner(x[0], y[0], None)
            corner = camera.corner(first + skipped + edge)
            with self._lines.line(before.place(is_fill), corner.place(is_fill)) as line:
                self._draw_line(line, color)
            with ib.if_scope(is_fill):
                self._cross(before, corner)
            x[0], y[0] = corner.x, corner.y

    def _draw_line(self, line: Line, color: Sequence[tir.PrimExpr]) -> None:
        ib, local, levels = self.ib, self.local, self._planes.levels
        along, across = (
            local("stride", tir.Select(line.flat != 0, *strides))
            for strides in ((1, self._width), (self._width, 1))
        )
        end, side = (
            local("length", tir.Select(line.flat != 0, *lengths))
            for lengths in ((self._width, self._height), (self._height, self._width))
        )
        steps = te.min(line.last + 1, end - line.start)
        with ib.for_range(0, steps, "step") as k:
            at, strength = local("across", line.across(k)), local("strength", line.strength(k))
            for offset in (-1, 0, 1):
                place = local("place", (at >> 16) + offset)
                with ib.if_scope(tir.all(place >= 0, place < side)):
                    weight = local("weight", alpha(self._table, strength, at, offset))
                    pixel = local("pixel", self.first + (line.start + k) * along + place * across)
                    for channel, level in enumerate(color):
                        index = channel * self._planes.size + pixel
                        before = local("before", levels[index].astype("int32"))
                        levels[index] = blended(local, before, level, weight).astype("uint8")

    def _cross(self, p: Corner, q: Corner) -> None:
        """Note where an edge crosses rows."""
        ib, local = self.ib, self.local
        edge = Edge.between(ib, local, p, q)
        begin = local("begin", te.max(edge.top, 0))
        with ib.for_range(0, te.max(te.min(edge.bottom, self._height) - begin, 0), "row") as row:
            row = begin + row
            at = local("at", edge.at(row))
            column = local("column", at >> 16)
            after = local("after", clamp(column + 1, 0, self._width))
            self._mark(self._crossings, row, after, tir.bitwise_xor)
            exact = tir.all((at & (ONE - 1)) == 0, column >= 0, column < self._width)
            with ib.if_scope(exact):
                self._mark(self._inside, row, column, tir.bitwise_or)

    def _mark(
        self,
        words: BufferVar,
        row: tir.PrimExpr,
        column: tir.PrimExpr,
        how: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr],
    ) -> None:
        at = self.local("word", row * self._words + (column >> 6))
        words[at] = how(words[at], _word(1) << (column & (BITS - 1)).astype("uint64"))

    def _resolve(self, columns: Sequence[tir.PrimExpr], rows: Sequence[tir.PrimExpr]) -> None:
        """Crossings within these bounds become pixels."""
        ib, local = self.ib, self.local
        begin, end = (clamp(row_of(y), 0, self._height) for y in rows)
        first, last = (clamp((x >> 9) + 1, 0, self._width) >> 6 for x in columns)
        first, last = local("first_word", first), local("last_word", last)
        carry = self.local.variable("carry", _word(0))
        with ib.for_range(0, end - begin, "row") as row:
            carry[0] = _word(0)
            with ib.for_range(0, last + 1 - first, "word") as word:
                at = local("at", (begin + row) * self._words + first + word)
                crossings = self._crossings[at]
                with ib.if_scope((crossings | carry[0]) != _word(0)):
                    inside = local("inside", carry[0] ^ self._after_odd(crossings))
                    self._inside[at] = self._inside[at] | inside
                    self._crossings[at] = _word(0)
                    carry[0] = tir.Select((inside >> _word(BITS - 1)) != _word(0), ~_word(0), _word(0))

    def _after_odd(self, crossings: tir.PrimExpr) -> tir.PrimExpr:
        """The bits that have an odd number of crossings at or before them."""
        for shift in (1, 2, 4, 8, 16, 32):
            crossings = self.local("crossings", crossings ^ (crossings << _word(shift)))
        return crossings

    def fill(self, color: Sequence[tir.PrimExpr]) -> None:
        """Paint what is inside polygons, and forget them."""
        ib, local = self.ib, self.local
        if self._together:
            anywhere = tir.const(-(2**30)), tir.const(2**30)
            self._resolve(anywhere, anywhere)
        word = self.local.variable("word", _word(0))
        with ib.for_range(0, self._height, "row") as row, ib.for_range(0, self._words, "number") as number:
            word[0] = self._inside[row * self._words + number]
            self._inside[row * self._words + number] = _word(0)
            with ib.while_loop(word[0] != _word(0)):
                begin = local("begin", trailing_zeros(word[0]))
                run = local("run", trailing_zeros(~(word[0] >> begin)))
                ones = tir.Select(run == _word(BITS), ~_word(0), (_word(1) << run) - _word(1))
                word[0] = word[0] & ~(ones << begin)
                column = number * BITS + begin.astype("int32")
                start = local("start", self.first + row * self._width + column)
                for channel, level in enumerate(color):
                    with ib.for_range(0, run.astype("int32"), "pixel") as pixel:
                        at = channel * self._planes.size + start + pixel
                        self._planes.levels[at] = level.astype("uint8")


def _bounds(ib: IRBuilder, local: Locals, points: BufferVar, contours: Contours) -> Bounds:
    bounds = ib.allocate("float64", (te.max(contours.count, 1), 4), "bounds", scope="global")
    bounds = Bounds(ib, local, bounds)
    with ib.for_range(0, contours.count, "shape", kind="parallel") as shape:
        bounds.note(points, shape, *contours.span(shape))
    return bounds


def _word(value: int) -> tir.PrimExpr:
    return tir.const(value, "uint64")
