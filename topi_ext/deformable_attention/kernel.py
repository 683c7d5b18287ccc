"""The sum of one query over its points, for a vector of channels, emitted alike for every target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._floats import Locals, is_finite
from .._kernel import in_a_row, ramp
from .._register import known
from .._tvm import IRBuilder, dtype_of, tir


class Level(NamedTuple):
    """A map of the pyramid, and how many points of each query are on it."""

    height: int
    width: int
    points: int


class Attention:
    """Emits sums over points; `scope` is where the target keeps variables, `loop` the kind of short loops."""

    def __init__(
        self,
        ib: IRBuilder,
        inputs: Sequence[tir.Buffer],
        output: tir.Buffer,
        levels: Sequence[Level],
        align_corners: bool,
        *,
        lanes: int,
        scope: str,
        loop: str,
    ) -> None:
        self.ib, self._levels, self._align_corners, self._loop = ib, levels, align_corners, loop
        self._lanes, self._scope, self._local = lanes, scope, Locals(ib, scope)
        value, points, weights = inputs
        self._value, self._output = _Rows(ib, value, lanes), _Rows(ib, output, lanes)
        self._points, self._weights = map(ib.buffer_ptr, (points, weights))

    def emit(self, item: tir.PrimExpr, query: tir.PrimExpr, vector: tir.PrimExpr) -> None:
        """One query of an item of the batch, and one vector of channels."""
        every = ramp(0, 1, self._lanes)
        total = self.ib.allocate("float32", self._lanes, "total", scope=self._scope)
        total[every] = self._vector(tir.const(0.0))
        first_pixel = first_point = 0
        for level in self._levels:
            with self.ib.for_range(0, level.points, "point", kind=self._loop) as number:
                at = item, query, first_point + number
                x, y = (self._coordinate(at, axis, length) for axis, length in enumerate(level[1::-1]))
                weight = self._local("weight", self._weights[at].astype("float32"))
                with self.ib.if_scope(tir.all(*_is_read(x, level.width), *_is_read(y, level.height))):
                    (left, right), (top, below) = self._neighbours(x), self._neighbours(y)
                    for row, down in (top, below):
                        for column, across in (left, right):
                            inside = row >= 0, row < level.height, column >= 0, column < level.width
                            with self.ib.if_scope(tir.all(*inside)):
                                pixel = first_pixel + row * level.width + column
                                share = self._local("share", down * across * weight)
                                read = self._value[item, pixel, vector].astype(dtype_of(total[every]))
                                total[every] += read * self._vector(share)
            first_pixel, first_point = first_pixel + level.height * level.width, first_point + level.points
        self._output[item, query, vector] = total[every].astype(self._output.dtype)

    def _coordinate(self, at: tuple[tir.PrimExpr, ...], axis: int, length: int) -> tir.PrimExpr:
        """Where a point is along an axis, in pixels."""
        given = self._points[(*at, axis)].astype("float32")
        if self._align_corners:
            return self._local("place", (given + 1.0) * 0.5 * float(length - 1))
        return self._local("place", ((given + 1.0) * float(length) - 1.0) * 0.5)

    def _neighbours(self, place: tir.PrimExpr) -> list[tuple[tir.PrimExpr, tir.PrimExpr]]:
        """The two pixels around a place, with their weights."""
        low = self._local("low", tir.floor(place))
        fraction = self._local("fraction", place - low)
        pixel = self._local("pixel", low.astype("int32"))
        return [(pixel, 1.0 - fraction), (pixel + 1, fraction)]

    def _vector(self, value: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Broadcast(value, self._lanes) if self._lanes > 1 else value


class _Rows:
    """A tensor (N, rows, C) as `rows[item, row, vector]`, a vector of channels."""

    def __init__(self, ib: IRBuilder, buffer: tir.Buffer, lanes: int) -> None:
        _, self._length, channels = (known(extent) or extent for extent in buffer.shape)
        self._flat, self._index_type = in_a_row(ib, buffer)
        self.dtype = buffer.dtype + (f"x{lanes}" if lanes > 1 else "")
        self._lanes, self._vectors = lanes, channels // lanes

    def __getitem__(self, at: tuple[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr]) -> tir.PrimExpr:
        return self._flat[self._place(*at)]

    def __setitem__(self, at: tuple[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr], value: tir.PrimExpr) -> None:
        self._flat[self._place(*at)] = value

    def _place(self, item: tir.PrimExpr, row: tir.PrimExpr, vector: tir.PrimExpr) -> tir.PrimExpr:
        row = item.astype(self._index_type) * self._length + row
        return ramp((row * self._vectors + vector) * self._lanes, 1, self._lanes)


def _is_read(place: tir.PrimExpr, length: int) -> list[tir.PrimExpr]:
    """Whether a pixel of the map is around a place; a place of NaN has none."""
    return [is_finite(place), place > -1.0, place < float(length)]
