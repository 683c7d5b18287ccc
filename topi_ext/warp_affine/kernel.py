"""Compute the source position and the value of a pixel of a warped image; the same code for every target.

A map is affine, or projective where the options have `units`: then a third coordinate divides the others.

Coordinates are float64, each operation rounded on its own, so that all targets use the same pixels. Those of
OpenCV are integers computed from such numbers.

No map leads to accesses out of bounds: `Place.inside` tests the very integers that make up the addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add
from typing import Any

from .._floats import Locals, bits, bits_of, lanes_of, rounded
from .._kernel import clamp
from .._register import known
from .._tvm import IRBuilder, te, tir, view
from .._types import IntExpr
from .reference import MAX_COEFFICIENT, MAX_COORDINATE, SMALLEST_DIVISOR, UNITS

MAX_CHANNELS = 4  # for which there is code one after the other
FRACTION_BITS = 5  # of OpenCV's fixed point; its weights have twice as many
SHORT = 2**15
ROUND = {"float32": 2.0**23, "float64": 1.5 * 2.0**52}  # added, it leaves no bits for a fraction


@dataclass(frozen=True)
class Place:
    """A position in the source: the pixel above and left of it, and the fractions; scalars or vectors."""

    y: tir.PrimExpr
    x: tir.PrimExpr
    fractions: Sequence[tir.PrimExpr] | None  # down, across; None where the pixel itself is meant


@dataclass(frozen=True)
class Map:
    """From columns and rows of the result to x and y of the source."""

    coefficients: Sequence[Sequence[tir.PrimExpr]]  # of x, of y, and if it is projective, of their divisor
    valid: tir.PrimExpr
    zero: tir.PrimExpr  # where it is valid


class Warp:
    """Emits positions and pixels; `scope` is where the target keeps variables."""

    def __init__(
        self,
        ib: IRBuilder,
        data: tir.Buffer,
        matrix: tir.Buffer,
        out: tir.Buffer,
        options: dict[str, Any],
        scope: str,
    ) -> None:
        self.ib, self.local, self._options = ib, Locals(ib, scope), options
        self._matrix, self._one_for_all = ib.buffer_ptr(matrix), len(matrix.shape) == 2
        self.source = Images(ib, data, options["layout"])
        self.out = Images(ib, out, options["layout"])
        self._units = options.get("units")
        self._fixed = options["mode"] == "cv2_fixed"
        self._nearest = options["interpolation"] == "nearest"
        self._in_integers = "int" in data.dtype and (self._fixed or self._nearest)
        self.sum_type = ("int64" if data.dtype == "int64" else "int32") if self._in_integers else "float32"
        border = options["border_value"]
        border = border[:1] if len(set(border)) == 1 else border
        self._border = [
            tir.const(int(value), self.sum_type) if self._in_integers else self.local.exact(value)
            for value in border
        ]

    # --- maps

    def map(self, image: tir.PrimExpr) -> Map:
        """The map of an image."""
        given = [
            self._matrix[(i, j) if self._one_for_all else (image, i, j)].astype("float64")
            for i, j in product(range(3 if self._units else 2), range(3))
        ]
        given = [self.local("given", value) for value in given]
        valid = self.local("valid", tir.all(*map(_is_usable, given)).astype("int32"))
        zero = self.local("zero", (valid - 1).astype("int64"))
        if self._options["inverse_map"]:
            coefficients = given
        else:
            coefficients = self._inverse(given, zero)
            valid = self.local("valid", tir.all(valid != 0, *map(_is_usable, coefficients)).astype("int32"))
            zero = self.local("zero", (valid - 1).astype("int64"))
        has_pixels = [
            length > 0 for length in (self.source.height, self.source.width) if known(length) is None
        ]
        rows = [coefficients[start : start + 3] for start in range(0, len(coefficients), 3)]
        return Map(rows, tir.all(valid != 0, *has_pixels), zero)

    def _inverse(self, given: list[tir.PrimExpr], zero: tir.PrimExpr) -> list[tir.PrimExpr]:
        """As OpenCV computes it: the inverse of a singular matrix is 0."""
        a, b, c, d, e, f = given

        def times(x: tir.PrimExpr, y: tir.PrimExpr) -> tir.PrimExpr:
            return self.local("product", rounded(self.local("product", x * y), zero))

        determinant = self.local("determinant", times(a, e) - times(b, d))
        nothing = tir.const(0, "float64")
        scale = tir.Select(determinant == nothing, nothing, tir.const(1, "float64") / determinant)
        scale = self.local("scale", scale)
        a, b, d, e = (
            self.local("inverse", value) for value in (e * scale, -(b * scale), -(d * scale), a * scale)
        )
        c, f = (self.local("inverse", -times(x, c) - times(y, f)) for x, y in ((a, b), (d, e)))
        return [a, b, c, d, e, f]

    # --- positions

    def row(self, map_: Map, y: tir.PrimExpr) -> list[tir.PrimExpr]:
        """The terms of x and y of the source that are constant along a row of the result."""
        y = y.astype("float64")
        starts = []
        for _, down, offset in map_.coefficients:
            down = self.local("down", rounded(self.local("down", down * y), map_.zero))
            start = self.local("start", down + offset)
            starts.append(
                self.local("start", self._in_units(start, map_) + self._half()) if self._fixed else start
            )
        return starts

    def place(self, map_: Map, row: list[tir.PrimExpr], columns: tir.PrimExpr) -> Place:
        """The source positions of pixels of a row, for one column or a vector of them."""
        columns = cast(columns, "float64")
        if self._units:
            return self._projected(map_, row, columns)
        wholes, fractions = [], []
        for (across, _, _), start in zip(map_.coefficients, row):
            across = self.local("across", columns * across)
            if self._fixed:
                whole, fraction = self._fixed_point(start + self._in_units(across, map_))
            else:
                whole, fraction = self._floating_point(rounded(across, map_.zero) + start)
            wholes.append(self.local("whole", whole))
            fractions.append(None if self._nearest else self.local("fraction", fraction))
        return Place(wholes[1], wholes[0], None if self._nearest else fractions[::-1])

    def _projected(self, map_: Map, row: list[tir.PrimExpr], columns: tir.PrimExpr) -> Place:
        """The same of a projective map, whose divisor counts as 1 where it is almost 0."""
        x, y, z = (
            self.local("term", rounded(self.local("across", columns * across), map_.zero) + start)
            for (across, _, _), start in zip(map_.coefficients, row)
        )
        one = _spread(tir.const(1, "float64"), lanes_of(z))
        z = self.local("z", tir.Select(te.max(z, -z) > self.local.exact(SMALLEST_DIVISOR, "float64"), z, one))
        wholes, fractions = [], []
        for term, side in ((x, self.source.width), (y, self.source.height)):
            place = self.local("place", term / z)
            if self._units != "pixels":  # from -1 to 1 over the image, or between its outermost pixels
                half, middle = (
                    (_as_float(side) - tir.const(less, "float64")) * tir.const(0.5, "float64")
                    for less in (int(self._units == "corners"), 1)
                )
                place = rounded(self.local("place", place * half), map_.zero) + middle
            whole, fraction = self._floating_point(place)
            wholes.append(self.local("whole", whole))
            fractions.append(None if self._nearest else self.local("fraction", fraction))
        return Place(wholes[1], wholes[0], None if self._nearest else fractions[::-1])

    def _floating_point(self, place: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        farthest = tir.const(MAX_COORDINATE, "float64")
        place = self.local("place", clamp(place, -farthest, farthest))
        if self._nearest:
            place = self.local("place", place + tir.const(0.5, "float64"))
        whole = self.local("whole", cast(place, "int32"))
        above = cast(whole, "float64") > place
        whole = self.local("whole", whole - cast(above, "int32"))
        return whole, cast(place - cast(whole, "float64"), "float32")

    def _fixed_point(self, units: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        units = self.local("units", units)
        whole = clamp(units >> (2 * FRACTION_BITS), tir.const(-SHORT), tir.const(SHORT - 1))
        fraction = (units >> FRACTION_BITS) & ((1 << FRACTION_BITS) - 1)
        if not self._in_integers:
            fraction = cast(fraction, "float32") * tir.const(0.5**FRACTION_BITS)
        return whole, fraction

    def _in_units(self, value: tir.PrimExpr, map_: Map) -> tir.PrimExpr:
        """A coordinate in OpenCV's units, as an int32: the smallest one if it does not fit."""
        units = self.local(
            "units", rounded(self.local("units", value * tir.const(UNITS, "float64")), map_.zero)
        )
        integer = self.local("integer", units + self.local.exact(ROUND["float64"], "float64"))
        integer = cast(bits(integer), "int32")
        limit = self.local("limit", self.local.exact(2.0**31, "float64"))
        fits = tir.And(units < limit, units > -limit)
        return tir.Select(fits, integer, _spread(tir.min_value("int32"), lanes_of(value)))

    def _half(self) -> int:
        return UNITS >> (1 if self._nearest else FRACTION_BITS + 1)

    def inside(self, place: Place, beyond: int = 0) -> tir.PrimExpr:
        """Whether all pixels around a position are in the source, and `beyond` more to their right."""
        reach = 0 if self._nearest else 1
        height, width = self.source.height - reach, self.source.width - (reach + beyond)
        return tir.And(tir.And(place.y >= 0, place.y < height), tir.And(place.x >= 0, place.x < width))

    # --- pixels

    def weights(self, place: Place) -> list[tir.PrimExpr]:
        """The weights of the pixels around a position, in the order of `corners`."""
        if place.fractions is None:
            return []
        one = tir.const(1 << FRACTION_BITS if self._in_integers else 1, self.sum_type)
        down, across = ((one - fraction, fraction) for fraction in place.fractions)
        return [y * x for y, x in product(down, across)]

    @property
    def corners(self) -> list[tuple[int, int]]:
        """The pixels around a position, as offsets in rows and columns from the one above and left."""
        return [(0, 0)] if self._nearest else list(product((0, 1), (0, 1)))

    def blend(self, taps: Iterable[tir.PrimExpr], weights: Iterable[tir.PrimExpr]) -> tir.PrimExpr:
        """A pixel of the result from those of the source, scalars or vectors."""
        taps = [cast(tap, self.sum_type) for tap in taps]
        if self._nearest:
            return self._as_result(taps[0])
        value = reduce(add, (tap * weight for tap, weight in zip(taps, weights)))
        if self._in_integers:
            value = (value + (1 << (2 * FRACTION_BITS - 1))) >> (2 * FRACTION_BITS)
        return self._as_result(value)

    def _as_result(self, value: tir.PrimExpr) -> tir.PrimExpr:
        if self.out.dtype == "uint8" and not self._in_integers:
            value = bits(self.local("value", value + self.local.exact(ROUND["float32"])))
        return cast(value, self.out.dtype)

    def is_border(self, place: Place) -> tir.PrimExpr:
        """Whether all pixels around a position are border."""
        if self._options["border_mode"] != "constant":
            return tir.const(False)
        reach = 0 if self._nearest else 1
        height, width = self.source.height, self.source.width
        return tir.any(place.y < -reach, place.y >= height, place.x < -reach, place.x >= width)

    def edge_pixel(
        self, image: tir.PrimExpr, place: Place, weights: list[tir.PrimExpr], channel: IntExpr
    ) -> tir.PrimExpr:
        """A pixel of the result in one channel, wherever it comes from."""
        taps = [self._tap(image, place.y + down, place.x + across, channel) for down, across in self.corners]
        return self.blend(taps, weights)

    def border(self, channel: IntExpr) -> tir.PrimExpr:
        """The border value as a pixel of the result."""
        return self._as_result(self._border_at(channel))

    def _border_at(self, channel: IntExpr) -> tir.PrimExpr:
        value = self._border[-1]
        for at, other in enumerate(self._border[:-1]):
            value = tir.Select(channel == at, other, value)
        return value

    def _tap(self, image: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, channel: IntExpr) -> tir.PrimExpr:
        source, mode = self.source, self._options["border_mode"]
        if mode == "constant":
            pixel = source[source.at(image, y, x, channel)].astype(self.sum_type)
            inside = tir.all(y >= 0, y < source.height, x >= 0, x < source.width)
            return tir.if_then_else(inside, pixel, self._border_at(channel))
        y, x = (
            self.local("continued", CONTINUED[mode](at, length))
            for at, length in ((y, source.height), (x, source.width))
        )
        return source[source.at(image, y, x, channel)]


class Images:
    """A tensor of images as if it had one axis, with the strides to find a pixel in it."""

    def __init__(self, ib: IRBuilder, buffer: tir.Buffer, layout: str) -> None:
        extent = {axis: known(length) or length for axis, length in zip(layout, buffer.shape)}
        self.count, self.channels, self.height, self.width = (extent[axis] for axis in "NCHW")
        size = self.count * self.height * self.width * self.channels
        self.index_type = "int32" if isinstance(size, int) and size < 2**31 else "int64"
        self._strides, stride = {}, tir.const(1, self.index_type)
        for axis in reversed(layout):
            self._strides[axis] = stride
            stride = stride * extent[axis]
        self._flat, self.dtype = view(ib, buffer, [stride]), buffer.dtype

    @property
    def channels_at_once(self) -> int:
        """A divisor of the number of channels."""
        return next(count for count in range(MAX_CHANNELS, 0, -1) if self.channels % count == 0)

    def at(self, image: IntExpr, y: IntExpr, x: IntExpr, channel: IntExpr = 0) -> tir.PrimExpr:
        """The index of a pixel."""
        steps = zip("NHWC", (image, y, x, channel))
        return reduce(add, (_as_index(at, self.index_type) * self._strides[axis] for axis, at in steps))

    def __getitem__(self, at: IntExpr) -> tir.PrimExpr:
        return self._flat[at]

    def __setitem__(self, at: IntExpr, value: tir.PrimExpr) -> None:
        self._flat[at] = value


def _replicate(at: tir.PrimExpr, length: IntExpr) -> tir.PrimExpr:
    return clamp(at, 0, length - 1)


def _reflect(at: tir.PrimExpr, length: IntExpr) -> tir.PrimExpr:
    at = tir.floormod(at, 2 * length)
    return te.min(at, 2 * length - 1 - at)


def _reflect_101(at: tir.PrimExpr, length: IntExpr) -> tir.PrimExpr:
    period = te.max(2 * length - 2, 1)
    at = tir.floormod(at, period)
    return te.min(at, period - at)


CONTINUED = {"replicate": _replicate, "reflect": _reflect, "reflect_101": _reflect_101}


def _is_usable(value: tir.PrimExpr) -> tir.PrimExpr:
    magnitude = bits(value) & tir.const(2**63 - 1, "int64")
    return magnitude <= tir.const(bits_of(MAX_COEFFICIENT, "float64"), "int64")


def _as_index(value: IntExpr, dtype: str) -> tir.PrimExpr:
    return tir.const(value, dtype) if isinstance(value, int) else cast(value, dtype)


def _as_float(side: IntExpr) -> tir.PrimExpr:
    return tir.const(side, "float64") if isinstance(side, int) else cast(side, "float64")


def _spread(value: tir.PrimExpr, lanes: int) -> tir.PrimExpr:
    return tir.Broadcast(value, lanes) if lanes > 1 else value


def cast(value: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """A scalar or a vector in another type."""
    lanes = lanes_of(value)
    return value.astype(dtype if lanes == 1 else f"{dtype}x{lanes}")
