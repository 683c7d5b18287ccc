"""Rasterising on CUDA: each block draws a tile of an image, see `cuda_tile.py`.

Kernels before compute the corners of boxes; and of a map the bounds of its shapes, and for each sample the
list of those that may be in its image, by style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .._floats import Locals
from .._kernel import barrier, ceil_div, clamp, launch
from .._tvm import BufferVar, IRBuilder, te, tir
from .._types import IntExpr
from .._warp import ballot, below, count_bits, count_threads
from .cuda_tile import LANES, SIDE, THREADS, Drawing, Tile
from .kernel import REACH, Bounds, Camera, Contours, Image, Palette, corners_of_box, length, near, within

MAX_CHANNELS = 24  # of a tile, whose pixels take a kilobyte for each
LISTING_THREADS = 1024
FAR = 2**15 - 1  # pixels; bounds beyond are as good as there
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
    channels = 1 if image.layout == "NCHW" else min(layer_count, MAX_CHANNELS)
    chunks = ceil_div(layer_count, channels)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        local = Locals(ib, "local")
        contours, points = _shapes(ib, local, kind, *ins[:2])
        layers, matrices = map(ib.buffer_ptr, ins[2:])
        is_fill = tir.const(kind != "polylines")
        with _tiles(ib, local, image, length(ins[3], 0), chunks, channels) as (tile, sample, chunk):
            first = local("first", chunk * channels)
            count = local("count", te.min(layer_count - first, channels))
            tile.clear([0] * channels)
            camera = tile.camera(points, matrices, sample)
            with ib.for_range(0, count, "channel") as channel:
                begin = local("begin", within(layers[sample, first + channel], 0, contours.count))
                end = local("end", within(layers[sample, first + channel + 1], begin, contours.count))
                drawing = Drawing(tile, camera, contours, WHITE, is_fill, channel, together=mode == "parity")
                drawing.draw(begin, end, lambda shape: (shape, _on_tile(tile, camera, contours, shape)))
            tile.write(outs[0], sample, first, count)
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
        local = Locals(ib, "local")
        points, _, styles, matrices = map(ib.buffer_ptr, ins)
        contours, samples = Contours(ib, local, ins[1], length(ins[0], 0)), length(ins[3], 0)
        bounds = _bounds(ib, local, points, contours)
        seen = _Seen(ib, local, contours.count, samples, len(palette))

        def style_at(sample: tir.PrimExpr, shape: tir.PrimExpr) -> tir.PrimExpr:
            return styles[(sample, shape) if len(ins[2].shape) == 2 else shape].astype("int32")

        with ib.if_scope(samples > 0), launch(ib, samples, LISTING_THREADS) as (sample, thread):
            camera = Camera.of(ib, local, points, matrices, sample)
            seen.find(thread, sample, style_at, bounds, camera, image)
        with _tiles(ib, local, image, samples, 1, channels, palette) as (tile, sample, _):
            tile.clear(background)
            camera = tile.camera(points, matrices, sample)
            with ib.for_range(0, len(palette), "style") as style:
                color, is_fill = tile.style(style)
                drawing = Drawing(tile, camera, contours, color, is_fill, 0, together=False)
                drawing.draw(*seen.span(sample, style), lambda at: seen.on_tile(tile, sample, at))
            tile.write(outs[0], sample, 0, channels)
        return ib.get()

    return te.extern(
        [image.shape(matrices.shape[0], channels)],
        [points, offsets, styles, matrices],
        emit,
        dtype=[image.dtype],
        name="rasterize_map",
    )


@contextmanager
def _tiles(
    ib: IRBuilder,
    local: Locals,
    image: Image,
    samples: IntExpr,
    chunks: int,
    channels: int,
    palette: Palette = (),
) -> Iterator[tuple[Tile, tir.PrimExpr, tir.PrimExpr]]:
    """The kernel that draws: its block's tile, and the sample and chunk of channels that it belongs to."""
    rows, columns = (ceil_div(side, SIDE) for side in image.size)
    tiles = rows * columns
    with ib.if_scope(samples > 0), launch(ib, samples * (chunks * tiles), THREADS) as (block, thread):
        place, number = tir.truncmod(block, tiles), tir.truncdiv(block, tiles)
        row, column = tir.truncdiv(place, columns), tir.truncmod(place, columns)
        sample, chunk = (local("number", part(number, chunks)) for part in (tir.truncdiv, tir.truncmod))
        yield Tile(ib, local, thread, image, channels, row, column, palette), sample, chunk


@contextmanager
def _each(ib: IRBuilder, local: Locals, count: IntExpr) -> Iterator[tir.PrimExpr]:
    """A kernel with a thread for each number below `count`."""
    with ib.if_scope(count > 0), launch(ib, ceil_div(count, THREADS), THREADS) as (block, thread):
        number = local("number", block * THREADS + thread)
        with ib.if_scope(number < count):
            yield number


def _shapes(
    ib: IRBuilder, local: Locals, kind: str, shapes: tir.Buffer, offsets: tir.Buffer
) -> tuple[Contours, BufferVar]:
    """The contours and their points, which for boxes are computed first."""
    count = length(shapes, 0)
    if kind != "boxes":
        return Contours(ib, local, offsets, count), ib.buffer_ptr(shapes)
    boxes = ib.buffer_ptr(shapes)
    corners = ib.allocate("float64", (te.max(count, 1) * 4, 2), "corners", scope="global")
    with _each(ib, local, count) as box:
        for number, corner in enumerate(corners_of_box(local, boxes, box)):
            for axis in range(2):
                corners[box * 4 + number, axis] = corner[axis]
    return Contours(ib, local, None, count * 4), corners


def _bounds(ib: IRBuilder, local: Locals, points: BufferVar, contours: Contours) -> Bounds:
    bounds = ib.allocate("float64", (te.max(contours.count, 1), 4), "bounds", scope="global")
    bounds = Bounds(ib, local, bounds)
    with _each(ib, local, contours.count) as shape:
        bounds.note(points, shape, *contours.span(shape))
    return bounds


def _on_tile(tile: Tile, camera: Camera, contours: Contours, shape: tir.PrimExpr) -> tir.PrimExpr:
    """Whether a shape is finite and may be on the tile."""
    first, count = contours.span(shape)
    finite, spans = camera.extent(first, count)
    return tir.all(finite, *(tile.has(*span, axis) for axis, span in enumerate(spans)))


class _Seen:
    """For each sample and style, the shapes that may be in the image, in order, with their bounds there.

    A shape takes three int32: its number, and bounds of x and of y, the low one in the low half and the high
    one in the high half.
    """

    def __init__(self, ib: IRBuilder, local: Locals, shapes: IntExpr, samples: IntExpr, styles: int) -> None:
        self._ib, self._local, self._shapes, self._styles = ib, local, shapes, styles
        samples, size = te.max(samples, 1), tir.const(3, "int64") * te.max(samples, 1) * te.max(shapes, 1)
        self._seen = ib.allocate("int32", size, "seen", scope="global")
        self._starts = ib.allocate("int32", (samples, styles + 1), "starts", scope="global")

    def _place(self, sample: tir.PrimExpr, at: tir.PrimExpr) -> tir.PrimExpr:
        return (sample.astype("int64") * self._shapes + at) * 3

    def find(
        self,
        thread: tir.PrimExpr,
        sample: tir.PrimExpr,
        style_at: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr],
        bounds: Bounds,
        camera: Camera,
        image: Image,
    ) -> None:
        """By one block for each sample."""
        ib, local = self._ib, self._local
        lane, warp = local("lane", tir.truncmod(thread, LANES)), local("warp", tir.truncdiv(thread, LANES))
        totals = ib.allocate("int32", LISTING_THREADS // LANES, "totals", scope="shared")
        total = local.variable("total", tir.const(0))
        with ib.for_range(0, self._styles, "style") as style:
            with ib.if_scope(thread == 0):
                self._starts[sample, style] = total[0]
            with ib.for_range(0, ceil_div(self._shapes, LISTING_THREADS), "chunk") as chunk:
                shape = local("shape", chunk * LISTING_THREADS + thread)
                low_high = [local.variable("low_high", tir.const(0)) for _ in range(2)]
                is_seen = local.variable("is_seen", tir.const(0))
                exists = shape < self._shapes
                with ib.if_scope(exists), ib.if_scope(style_at(sample, shape) == style):
                    finite, spans = bounds.in_image(shape, camera)
                    is_seen[0] = tir.all(finite, *map(near, spans, image.size[::-1])).astype("int32")
                    for value, span in zip(low_high, spans):
                        value[0] = _packed(span)
                found = local("found", count_threads(is_seen[0]))
                with ib.if_scope(found > 0):
                    lanes = local("lanes", ballot(is_seen[0]))
                    with ib.if_scope(lane == 0):
                        totals[warp] = count_bits(lanes)
                    barrier(ib)
                    place = local.variable("place", total[0])
                    with ib.for_range(0, warp, "earlier") as earlier:
                        place[0] = place[0] + totals[earlier]
                    with ib.if_scope(is_seen[0] != 0):
                        at = self._place(sample, place[0] + count_bits(lanes & below(lane)))
                        for i, value in enumerate((shape, low_high[0][0], low_high[1][0])):
                            self._seen[at + i] = value
                    total[0] = total[0] + found
        with ib.if_scope(thread == 0):
            self._starts[sample, self._styles] = total[0]

    def span(self, sample: tir.PrimExpr, style: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Where the shapes of a style begin and end."""
        begin, end = (self._local("bound", self._starts[sample, style + after]) for after in range(2))
        return begin, end

    def on_tile(
        self, tile: Tile, sample: tir.PrimExpr, at: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Which shape it is, and whether it may be on the tile."""
        place, spans = self._place(sample, at), []
        for axis, begin in enumerate((tile.left, tile.top)):
            low_high = self._local("low_high", self._seen[place + 1 + axis])
            spans.append(tir.all((low_high >> 16) >= begin, ((low_high << 16) >> 16) < begin + SIDE))
        return self._seen[place], tir.all(*spans)


def _packed(span: Sequence[tir.PrimExpr]) -> tir.PrimExpr:
    """Bounds in pixels, with what is drawn around them, in an int32."""
    far = tir.const(float(FAR), "float64")
    low, high = (
        tir.Cast("int32", clamp(tir.floor(bound), -far, far))
        for bound in (span[0] - float(REACH), span[1] + float(REACH + 1))
    )
    return (low & 0xFFFF) | (high << 16)
