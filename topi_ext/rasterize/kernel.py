"""What is drawn where, emitted alike for every target: places in an image, lines, colours.

Places are int32, 1/65536 of a pixel each, as in `reference.py`; and as there, all is rounded as OpenCV rounds
it. Corners are moved to within `MAX_COORDINATE` pixels, and images are no larger, so that no sum or
difference overflows; products and quotients that might are of int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .._floats import Locals, is_finite, rounded
from .._kernel import clamp
from .._register import known
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir
from .._types import IntExpr
from .._warp import Part
from .reference import CORNERS, LENGTHENING, MAX_COORDINATE, MAX_YAW, ONE, PROFILE, SUBPIXELS

REACH = 3  # pixels that a line is drawn beyond its ends and sides, at most
TABLE = PROFILE + LENGTHENING
Palette = Sequence[tuple[Sequence[int], str]]  # of each style its colour, and "fill" or "line"


@dataclass(frozen=True)
class Image:
    """What images are like."""

    height: int
    width: int
    layout: str
    dtype: str

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    def shape(self, samples: IntExpr, channels: int) -> list[IntExpr]:
        extents = {"N": samples, "C": channels, "H": self.height, "W": self.width}
        return [extents[axis] for axis in self.layout]

    def value(self, local: Locals, level: tir.PrimExpr) -> tir.PrimExpr:
        """What stands in the result for a level from 0 to 255."""
        if self.dtype == "uint8":
            return level.astype("uint8")
        return level.astype("float32") / local.exact(255)


class Contours:
    """Where the points of each shape are among all; those of boxes are their corners, with no offsets."""

    def __init__(self, ib: IRBuilder, local: Locals, offsets: tir.Buffer | None, points: IntExpr) -> None:
        self._local, self._points = local, points
        self._offsets = None if offsets is None else ib.buffer_ptr(offsets)
        self.count = tir.truncdiv(points, 4) if offsets is None else te.max(length(offsets, 0) - 1, 0)

    def span(self, number: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The first point, and how many there are."""
        if self._offsets is None:
            return self._local("first", number * 4), tir.const(4)
        first = self._bound(self._offsets, number, 0)
        return first, self._local("count", self._bound(self._offsets, number + 1, first) - first)

    def _bound(self, offsets: BufferVar, at: tir.PrimExpr, least: IntExpr) -> tir.PrimExpr:
        return self._local("bound", within(offsets[at], least, self._points))


def length(buffer: tir.Buffer | te.Tensor, axis: int) -> IntExpr:
    """An int where it is known."""
    extent = buffer.shape[axis]
    return known(extent) if known(extent) is not None else extent.astype("int32")


def within(offset: tir.PrimExpr, least: IntExpr, most: IntExpr) -> tir.PrimExpr:
    """An offset of any integer type as an int32 between two of them."""
    dtype = dtype_of(offset)
    least, most = (tir.const(n, dtype) if isinstance(n, int) else n.astype(dtype) for n in (least, most))
    return clamp(offset, least, most).astype("int32")


def corners_of_box(
    local: Locals, boxes: BufferVar, number: tir.PrimExpr
) -> Iterator[tuple[tir.PrimExpr, tir.PrimExpr]]:
    """x and y of the corners of a box of centre x and y, length, width, and yaw or its cosine and sine."""
    columns = int(boxes.asobject().shape[1])
    x, y, length, width, *turn = (local("box", boxes[number, at].astype("float64")) for at in range(columns))
    cosine, sine = turn if len(turn) == 2 else _cosine_and_sine(local, *turn)
    product = _product(local, zero_if_finite(local, x, y))
    for along, aside in CORNERS:
        along, aside = length * (along / 2), width * (aside / 2)
        yield (
            product(along, cosine) - product(aside, sine) + x,
            product(along, sine) + product(aside, cosine) + y,
        )


def zero_if_finite(local: Locals, *offsets: tir.PrimExpr) -> tir.PrimExpr:
    """0, as an int64 that no compiler knows to be one, if these are all finite; else what makes them NaN."""
    return local("zero", tir.all(*map(is_finite, offsets)).astype("int64") - 1)


def _product(local: Locals, zero: tir.PrimExpr) -> Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]:
    """Multiplies, and rounds by itself, what is to be added to something else.

    Corners often are on the very edge of a 1/512 of a pixel, where the last bit decides.
    """
    return lambda a, b: local("product", rounded(local("product", a * b), zero))


def _cosine_and_sine(local: Locals, angle: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    """By their series about the nearest quarter of a turn. NaN for what is no angle, or none any more."""
    half_pi = local.exact(np.pi / 2, "float64")
    known = local("known", tir.all(is_finite(angle), tir.abs(angle) <= MAX_YAW).astype("int32"))
    angle = local("angle", tir.Select(known != 0, angle, tir.const(0.0, "float64")))
    quarter = local("quarter", tir.floor(angle / half_pi + 0.5))
    rest = local("rest", angle - quarter * half_pi)
    square = local("square", rest * rest)
    sine, cosine = tir.const(1.0, "float64"), tir.const(1.0, "float64")
    for n in range(14, 1, -2):
        sine = 1.0 - square / local.exact(n * (n + 1), "float64") * sine
        cosine = 1.0 - square / local.exact(n * (n - 1), "float64") * cosine
    sine, cosine = local("sine", rest * sine), local("cosine", cosine)
    turn = local("turn", quarter.astype("int32") & 3)
    swapped = (turn & 1) != 0
    nan = local.exact(np.nan, "float64")

    def signed(value: tir.PrimExpr, negative: tir.PrimExpr) -> tir.PrimExpr:
        return local("of_angle", tir.Select(known != 0, tir.Select(negative, -value, value), nan))

    return (
        signed(tir.Select(swapped, sine, cosine), tir.any(turn == 1, turn == 2)),
        signed(tir.Select(swapped, cosine, sine), turn >= 2),
    )


@dataclass(frozen=True)
class Corner:
    """Where a corner is, in 1/512 of a pixel, int32; at 0 if it is not finite."""

    x: tir.PrimExpr
    y: tir.PrimExpr
    finite: tir.PrimExpr | None = None

    def place(self, on_row: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """In 1/65536; `on_row`, as the corner of a polygon, in the middle of a row."""
        y = tir.Select(on_row, row_of(self.y) * ONE, self.y * (ONE // SUBPIXELS))
        return self.x * (ONE // SUBPIXELS), y


def row_of(y: tir.PrimExpr) -> tir.PrimExpr:
    return (y + SUBPIXELS // 2) >> 9


class Camera:
    """Brings points into the image of a sample."""

    def __init__(
        self,
        ib: IRBuilder,
        local: Locals,
        points: BufferVar,
        rows: list[list[tir.PrimExpr]],
        zero: tir.PrimExpr,
    ) -> None:
        self._ib, self._local, self._points, self.rows, self._zero = ib, local, points, rows, zero

    @classmethod
    def of(
        cls, ib: IRBuilder, local: Locals, points: BufferVar, matrices: BufferVar, sample: tir.PrimExpr
    ) -> Camera:
        """With the matrix in variables."""
        rows = [
            [local("coefficient", matrices[sample, row, column].astype("float64")) for column in range(3)]
            for row in range(2)
        ]
        return cls(ib, local, points, rows, zero_if_finite(local, rows[0][2], rows[1][2]))

    def corner(self, number: tir.PrimExpr) -> Corner:
        x, y = (self._local("point", self._points[number, axis].astype("float64")) for axis in range(2))
        product = _product(self._local, self._zero)
        places = [self._local("place", product(a, x) + product(b, y) + c) for a, b, c in self.rows]
        finite = self._local("finite", tir.all(*map(is_finite, places)).astype("int32"))
        x, y = (self._local("corner", self._truncated(place, finite)) for place in places)
        return Corner(x, y, finite)

    def extent(
        self, first: tir.PrimExpr, count: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, list[tuple[tir.PrimExpr, tir.PrimExpr]]]:
        """Whether these points are all finite, and lowest and highest x and y of their corners."""
        variable = self._local.variable
        spans = [[variable("bound", tir.const(bound)) for bound in (2**30, -(2**30))] for _ in range(2)]
        finite = variable("all_finite", tir.const(1))
        with self._ib.for_range(0, count, "point") as point:
            corner = self.corner(first + point)
            for (low, high), value in zip(spans, (corner.x, corner.y)):
                low[0], high[0] = te.min(low[0], value), te.max(high[0], value)
            finite[0] = finite[0] & corner.finite
        return finite[0] != 0, [(low[0], high[0]) for low, high in spans]

    def _truncated(self, place: tir.PrimExpr, finite: tir.PrimExpr) -> tir.PrimExpr:
        far = tir.const(float(MAX_COORDINATE), "float64")
        near = tir.Select(finite != 0, clamp(place, -far, far), tir.const(0.0, "float64"))
        return tir.Cast("int32", near * float(SUBPIXELS))


class Bounds:
    """Of each shape the centre and half the size, along x and y; negative if the shape is not finite."""

    def __init__(self, ib: IRBuilder, local: Locals, bounds: BufferVar) -> None:
        self._ib, self._local, self._bounds = ib, local, bounds

    def note(self, points: BufferVar, shape: tir.PrimExpr, first: tir.PrimExpr, count: tir.PrimExpr) -> None:
        """Find those of a shape."""
        ib, local, most = self._ib, self._local, tir.const(1e308, "float64")
        low, high = ([local.variable("bound", bound) for _ in range(2)] for bound in (most, -most))
        finite = local.variable("finite", (count > 0).astype("int32"))
        with ib.for_range(0, count, "point") as point:
            for axis in range(2):
                value = local("point", points[first + point, axis].astype("float64"))
                finite[0] = finite[0] & is_finite(value).astype("int32")
                low[axis][0] = te.min(low[axis][0], value)
                high[axis][0] = te.max(high[axis][0], value)
        for axis in range(2):
            half = [local("half", bound[axis][0] * 0.5) for bound in (low, high)]
            self._bounds[shape, axis] = half[0] + half[1]
            self._bounds[shape, 2 + axis] = tir.Select(
                finite[0] != 0, half[1] - half[0], tir.const(-1.0, "float64")
            )

    def in_image(
        self, shape: tir.PrimExpr, camera: Camera
    ) -> tuple[tir.PrimExpr, list[tuple[tir.PrimExpr, tir.PrimExpr]]]:
        """Whether the shape is finite, and its bounds in the image: of x and of y, low and high."""
        local = self._local
        x, y, width, height = (local("bound", self._bounds[shape, at]) for at in range(4))
        spans, finite = [], [width >= tir.const(0.0, "float64")]
        for a, b, c in camera.rows:
            centre = local("centre", a * x + b * y + c)
            half = local("half", tir.abs(a) * width + tir.abs(b) * height)
            spans.append((centre - half, centre + half))
            finite += [is_finite(centre), is_finite(half)]
        return tir.all(*finite), spans


def near(span: Sequence[tir.PrimExpr], length: int) -> tir.PrimExpr:
    """Whether what is drawn of a shape, within these bounds along an axis, may be on the image."""
    low, high = span
    return tir.all(high >= -float(REACH), low <= float(length + REACH))


def style_of(local: Locals, palette: Palette, style: tir.PrimExpr) -> tuple[list[tir.PrimExpr], tir.PrimExpr]:
    """The colour of a style, and whether it is one of polygons."""

    def chosen(values: Sequence[int]) -> tir.PrimExpr:
        first, *others = map(tir.const, values)
        for number, value in enumerate(others, 1):
            first = tir.Select(style == number, value, first)
        return local("of_style", first)

    color = [chosen(levels) for levels in zip(*(color for color, _ in palette))]
    return color, chosen([int(kind == "fill") for _, kind in palette]) != 0


@dataclass(frozen=True)
class Edge:
    """An edge of a polygon, which crosses the rows from `top` up to but not including `bottom`."""

    top: tir.PrimExpr
    bottom: tir.PrimExpr
    x: tir.PrimExpr
    slope: tir.PrimExpr

    @classmethod
    def between(cls, ib: IRBuilder, local: Locals, p: Corner, q: Corner) -> Edge:
        rows = [local("row", row_of(corner.y)) for corner in (p, q)]
        x = [local("x", corner.x * (ONE // SUBPIXELS)) for corner in (p, q)]
        slope = local.variable("slope", tir.const(0))
        with ib.if_scope(rows[0] != rows[1]):
            slope[0] = tir.truncdiv(x[1] - x[0], rows[1] - rows[0])
        upward = local("upward", (rows[1] < rows[0]).astype("int32"))
        top, bottom = (local("row", tir.Select(upward != 0, *rows[::order])) for order in (-1, 1))
        return cls(top, bottom, local("x", tir.Select(upward != 0, x[1], x[0])), slope[0])

    def at(self, row: tir.PrimExpr) -> tir.PrimExpr:
        """Where it crosses a row."""
        return self.x + (row - self.top) * self.slope


@dataclass(frozen=True)
class Line:
    """A line in the image: step k is at the pixel `start + k` along it, and across at `at + k * step`."""

    flat: tir.PrimExpr  # whether along is x
    start: tir.PrimExpr
    last: tir.PrimExpr  # step
    at: tir.PrimExpr
    step: tir.PrimExpr
    # At the first step, the second, the last but one, the last, and at all between.
    strengths: Sequence[tir.PrimExpr]

    def strength(self, k: tir.PrimExpr) -> tir.PrimExpr:
        first, second, last_but_one, last, between = self.strengths
        inner = tir.Select(k == 1, second, tir.Select(k == self.last - 1, last_but_one, between))
        return tir.Select(k == 0, first, tir.Select(k == self.last, last, inner))

    def across(self, k: tir.PrimExpr) -> tir.PrimExpr:
        return self.at + k * self.step


def alpha(
    table: BufferVar | Part, strength: tir.PrimExpr, across: tir.PrimExpr, offset: IntExpr
) -> tir.PrimExpr:
    """How much a line changes the pixel that is `offset` from its own, which is -1, 0 or 1."""
    distance = (across >> 11) & 31
    if isinstance(offset, int):
        index = {-1: distance + 32, 0: distance, 1: 63 - distance}[offset]
    else:
        index = tir.Select(offset < 0, distance + 32, tir.Select(offset == 0, distance, 63 - distance))
    return ((strength * table[index]) >> 8) & 0xFF


def blended(local: Locals, before: tir.PrimExpr, color: tir.PrimExpr, alpha: tir.PrimExpr) -> tir.PrimExpr:
    """A pixel's value as a line leaves it: OpenCV blends it twice."""
    once = local("once", before + (((color - before) * alpha + 127) >> 8))
    return once + (((color - once) * alpha + 127) >> 8)


class Lines:
    """Emits the lines of images of one size; `table` is `TABLE`, wherever the target keeps it."""

    def __init__(
        self, ib: IRBuilder, local: Locals, table: BufferVar | Part, image_size: Sequence[int]
    ) -> None:
        self._ib, self._local, self._table = ib, local, table
        self._bottom, self._right = (length * ONE - 1 for length in image_size)

    @contextmanager
    def line(self, p: Sequence[tir.PrimExpr], q: Sequence[tir.PrimExpr]) -> Iterator[Line]:
        """The line between two places, for what is emitted if any of it is in the image."""
        ib, variable = self._ib, self._local.variable
        ends = [[variable("end", coordinate) for coordinate in end] for end in (p, q)]
        sides = [variable("beyond", self._beyond(x[0], y[0])) for x, y in ends]
        with ib.if_scope(self._crosses(sides)):
            self._clip(ends, sides)
        outside = self._local("outside", sides[0][0] | sides[1][0])
        with ib.if_scope(outside == 0):
            yield self._steps(*(coordinate[0] for end in ends for coordinate in end))

    def _beyond_sides(self, x: tir.PrimExpr) -> tir.PrimExpr:
        return (x < 0).astype("int32") + (x > self._right).astype("int32") * 2

    def _beyond(self, x: tir.PrimExpr, y: tir.PrimExpr) -> tir.PrimExpr:
        return self._beyond_sides(x) + (y < 0).astype("int32") * 4 + (y > self._bottom).astype("int32") * 8

    def _clip(self, ends: list[list[BufferVar]], sides: list[BufferVar]) -> None:
        """Move the ends into the image: each to the edge above or below, then to that on a side."""
        ib, ((x1, y1), (x2, y2)) = self._ib, ends
        for (x, y), beyond in zip(ends, sides):
            with ib.if_scope((beyond[0] & 12) != 0):
                edge = self._local("edge", tir.Select(beyond[0] < 8, 0, self._bottom))
                x[0] += self._product_over(edge - y[0], x2[0] - x1[0], y2[0] - y1[0])
                y[0] = edge
                beyond[0] = self._beyond_sides(x[0])
        with ib.if_scope(self._crosses(sides)):
            for (x, y), beyond in zip(ends, sides):
                with ib.if_scope(beyond[0] != 0):
                    edge = self._local("edge", tir.Select(beyond[0] == 1, 0, self._right))
                    y[0] += self._product_over(edge - x[0], y2[0] - y1[0], x2[0] - x1[0])
                    x[0] = edge
                    beyond[0] = tir.const(0)

    def _crosses(self, sides: list[BufferVar]) -> tir.PrimExpr:
        """Whether a line that ends on these sides of the image may have a part in it, and one outside.

        In variables of its own: TVM would take what held before for what holds after an assignment.
        """
        common = self._local("common", sides[0][0] & sides[1][0])
        either = self._local("either", sides[0][0] | sides[1][0])
        return tir.all(common == 0, either != 0)

    def _steps(self, x1: tir.PrimExpr, y1: tir.PrimExpr, x2: tir.PrimExpr, y2: tir.PrimExpr) -> Line:
        local = self._local
        flat = local("flat", (tir.abs(x2 - x1) > tir.abs(y2 - y1)).astype("int32"))
        along = [tir.Select(flat != 0, x, y) for x, y in ((x1, y1), (x2, y2))]
        across = [tir.Select(flat != 0, y, x) for x, y in ((x1, y1), (x2, y2))]
        swap = local("swap", (along[1] < along[0]).astype("int32"))
        u1, u2 = (local("along", tir.Select(swap != 0, *along[::order])) for order in (-1, 1))
        v1, v2 = (local("across", tir.Select(swap != 0, *across[::order])) for order in (-1, 1))
        step = local("step", self._product_over(v2 - v1, ONE, (u2 - u1) | 1))
        last = local("last", ((u2 + ONE) >> 16) - (u1 >> 16))
        back = ((-(u1 & (ONE - 1))).astype("int64") * step.astype("int64")) >> 16
        at = local("at", v1 + back.astype("int32") + ONE // 2)
        return Line(flat, u1 >> 16, last, at, step, self._strengths(u1, u2, step, last))

    def _strengths(
        self, u1: tir.PrimExpr, u2: tir.PrimExpr, step: tir.PrimExpr, last: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, ...]:
        """See `reference.draw_line`."""
        local = self._local
        slope = local("slope", ((step >> 11) & 63) ^ tir.Select(step < 0, 63, 0))
        lengthening = self._table[len(PROFILE) + (slope & 31)]
        full = local("full", tir.Select((slope & 32) != 0, 256, lengthening))
        i, j = local("i", (u1 >> 9) & 0x78), local("j", (u2 >> 9) & 0x78)
        head, tail = local("head", ((0x78 - i) | 4) * full), local("tail", (j | 4) * full)
        one, two = (((j - i) & 0x78) | 4) * full, ((j - i + 0x80) | 4) * full
        strengths = (
            tir.Select(last == 1, one, head),
            tir.Select(last == 2, two, head + full * 128),
            tir.Select(last == 2, two, tail + full * 128),
            tir.Select(last == 1, one, tail),
        )
        return *(local("strength", (strength >> 8) & 0x1FF) for strength in strengths), full

    def _product_over(self, a: IntExpr, b: IntExpr, divisor: tir.PrimExpr) -> tir.PrimExpr:
        """a * b / divisor, toward zero, where it is an int32: estimated, and corrected by the remainder.

        That takes a GPU a fraction of the time of a division of int64.
        """
        local = self._local
        product = local("product", tir.Cast("int64", a) * tir.Cast("int64", b))
        negative = local("negative", ((product < 0).astype("int32") ^ (divisor < 0).astype("int32")))
        product, divisor = local("size", tir.abs(product)), local("divisor", tir.abs(divisor).astype("int64"))
        estimate = local("estimate", (product.astype("float64") / divisor.astype("float64")).astype("int32"))
        rest = local("rest", product - estimate.astype("int64") * divisor)
        quotient = local(
            "quotient", estimate + (rest >= divisor).astype("int32") - (rest < 0).astype("int32")
        )
        return tir.Select(negative != 0, -quotient, quotient)
