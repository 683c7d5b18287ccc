"""Compute one bin of one region; the code is the same for every target and layout.

All channels use the same samples. `lanes` channels are pooled at once: loaded as one vector, and summed in
vectors of `lanes_of_sum`, since a target may have shorter vectors of float32 than of int8. `float_of_byte` is
a target's fastest way from int8 to float32, for sums of one channel each.

No input makes a loop long or an access out of bounds. Only samples that may be on the map are visited, so a
huge region costs no more than the map has pixels; indices are computed from coordinates that were checked to
be on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from .._floats import BITS_OF_INFINITY, MAGNITUDE, Locals, bits, bits_of, is_finite, vector_type
from .._int8 import rounded
from .._kernel import bytes_of, in_a_row, ramp
from .._register import known
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir
from .._types import IntExpr

MAX_BYTES = 16  # that a target stores at once, where sums have several vectors
MAX_SAMPLES = 2.0**20  # of a side of a bin; more only where the region is millions of pixels long


@dataclass(frozen=True)
class _Samples:
    """The samples along a side of a bin; sample i is at `start + (i + 0.5) * size / count`."""

    start: tir.PrimExpr
    size: tir.PrimExpr
    count: tir.PrimExpr
    begin: IntExpr  # the first sample to visit
    visited: IntExpr  # the number to visit; all others are off the map
    length: IntExpr  # of the map, in pixels


class Pooling:
    """Emits bins of regions; `scope` is where the target keeps variables, `loop` the kind of short loops."""

    def __init__(
        self,
        ib: IRBuilder,
        features: Sequence[tir.Buffer],
        rois: tir.Buffer,
        output: tir.Buffer,
        options: dict[str, Any],
        *,
        lanes: int,
        lanes_of_sum: int,
        scope: str,
        loop: Callable[[IntExpr], str],
        float_of_byte: Callable[[tir.PrimExpr, int], tir.PrimExpr] | None = None,
    ) -> None:
        self.ib, self._options, self._lanes, self._scope, self._loop = ib, options, lanes, scope, loop
        self._float_of_byte = float_of_byte
        self._lanes_of_sum = lanes_of_sum
        self._parts = [ramp(begin, 1, lanes_of_sum) for begin in range(0, lanes, lanes_of_sum)]
        self._local = Locals(ib, scope)
        self._maps = [_Maps(ib, feature, options["layout"], lanes) for feature in features]
        self._first_corner = rois.shape[1] - 4  # behind the index in the batch, if there is one
        at_once = lanes if lanes == lanes_of_sum else min(lanes, MAX_BYTES // bytes_of(output.dtype))
        self._rois, self._output = ib.buffer_ptr(rois), _Maps(ib, output, options["layout"], at_once)

    def emit_bin(self, row: tir.PrimExpr, p: tir.PrimExpr, q: tir.PrimExpr, vector: tir.PrimExpr) -> None:
        """Pool bin (p, q) of a region, in one vector of channels."""
        ib = self.ib
        total = ib.allocate("float32", self._lanes, "total", scope=self._scope)
        for part in self._parts:
            total[part] = self._broadcast(tir.const(0, "float32"))
        index = self._index(row)
        corners = [
            self._local(name, self._rois[row, self._first_corner + at].astype("float32"))
            for at, name in enumerate(("x1", "y1", "x2", "y2"))
        ]
        level, has_level = self._level(*corners)
        for number, maps in enumerate(self._maps):
            valid = [has_level, is_finite(index), index > -1.0, index < _float(maps.count)]
            valid += [level == number] if len(self._maps) > 1 else []
            with ib.if_scope(tir.all(*valid)):
                channels = vector
                if self._options["by_position"]:  # each bin has channels of its own
                    down, across = self._options["pooled_size"]
                    channels = (vector * down + p) * across + q
                start = self._local("first", maps.start(index.astype("int32"), channels))
                with self._sides(number, maps, corners, p, q) as (rows, columns):
                    with self._each(rows) as ys, self._each(columns) as xs:
                        pixels = [
                            (self._in_parts(maps, maps[start, y, x]), down * across)
                            for y, down in ys
                            for x, across in xs
                        ]
                        for at, part in enumerate(self._parts):
                            weighted = [
                                pixel[at].astype(dtype_of(total[part])) * self._broadcast(weight)
                                for pixel, weight in pixels
                            ]
                            total[part] += reduce(add, weighted)
                    count = self._local("count", te.max(rows.count * columns.count, tir.const(1.0)))
                    scaled = self._options["factors"][number]
                    factor = None if scaled == 1 else self._local("factor", self._local.exact(scaled))
                    for part in self._parts:
                        mean = total[part] / self._broadcast(count)
                        total[part] = mean if factor is None else mean * self._broadcast(factor)
        self._write(total, row, p, q, vector)

    def _in_parts(self, maps: _Maps, pixel: tir.PrimExpr) -> list[tir.PrimExpr]:
        """The channels of a pixel, for each vector of sums."""
        if len(self._parts) == 1:
            return [pixel]
        if self._float_of_byte is not None:
            count = self._lanes // 4
            words = self.ib.allocate("int32", count, "words", scope=self._scope)
            words[ramp(0, 1, count)] = tir.reinterpret(vector_type("int32", count), pixel)
            return [self._float_of_byte(words[at // 4], at % 4) for at in range(self._lanes)]
        loaded = self.ib.allocate(maps.dtype, self._lanes, "pixel", scope=self._scope)
        loaded[ramp(0, 1, self._lanes)] = pixel
        return [loaded[part] for part in self._parts]

    def _write(
        self, total: BufferVar, row: tir.PrimExpr, p: tir.PrimExpr, q: tir.PrimExpr, vector: tir.PrimExpr
    ) -> None:
        output, dtype = self._output, self._output.dtype
        results = [rounded(total[part], vector_type(dtype, self._lanes_of_sum)) for part in self._parts]
        if len(results) > 1:
            together = self.ib.allocate(dtype, self._lanes, "result", scope=self._scope)
            for part, result in zip(self._parts, results):
                together[part] = result
            results = [
                together[ramp(begin, 1, output.lanes)] for begin in range(0, self._lanes, output.lanes)
            ]
        for at, result in enumerate(results):
            start = self._local("first", output.start(row, vector * len(results) + at))
            output[start, p, q] = result

    def _index(self, row: tir.PrimExpr) -> tir.PrimExpr:
        """The index of a region's image in the batch."""
        given = self._rois[row, 0].astype("float32")
        return self._local("index", tir.if_then_else(self._first_corner > 0, given, tir.const(0, "float32")))

    def _level(
        self, x1: tir.PrimExpr, y1: tir.PrimExpr, x2: tir.PrimExpr, y2: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The index of the feature map that a region is pooled from, and whether there is one."""
        least_areas = self._options["least_areas"]
        if least_areas is None:
            return tir.const(0), tir.const(True)
        area = self._local("area", (x2 - x1) * (y2 - y1))
        reached = ((bits(area) >= bits_of(least)).astype("int32") for least in least_areas)
        level = reduce(add, reached, tir.const(0))
        magnitude = bits(area) & MAGNITUDE
        is_negative = tir.all(bits(area) < 0, magnitude > 0)
        return self._local("level", level), tir.all(magnitude <= BITS_OF_INFINITY, tir.Not(is_negative))

    @contextmanager
    def _sides(
        self, number: int, maps: _Maps, corners: list[tir.PrimExpr], p: tir.PrimExpr, q: tir.PrimExpr
    ) -> Iterator[tuple[_Samples, _Samples]]:
        """The samples in height and width, if the region has a finite position and size."""
        scale, offset = self._local.exact(self._options["scales"][number]), 0.5 * self._options["aligned"]
        x1, y1, x2, y2 = (self._local("corner", corner * scale - offset) for corner in corners)
        height, width = self._local("height", y2 - y1), self._local("width", x2 - x1)
        has_pixels = [length > 0 for length in (maps.height, maps.width) if known(length) is None]
        with self.ib.if_scope(tir.all(*map(is_finite, (x1, y1, height, width)), *has_pixels)):
            down, across = self._options["pooled_size"]
            yield (
                self._samples(y1, height, down, p, maps.height),
                self._samples(x1, width, across, q, maps.width),
            )

    def _samples(
        self, start: tir.PrimExpr, size: tir.PrimExpr, bins: int, place: tir.PrimExpr, length: IntExpr
    ) -> _Samples:
        """The samples of one bin along a side."""
        if not self._options["aligned"]:
            size = te.max(size, tir.const(1.0))
        size = self._local("size", size / self._local.exact(bins))
        start = self._local("start", start + _float(place) * size)
        if self._options["sampling_ratio"]:
            count = self._options["sampling_ratio"]
            return _Samples(start, size, self._local.exact(count), 0, count, length)
        count = self._local("count", te.min(tir.ceil(size), tir.const(MAX_SAMPLES)))
        # Those on the map, and one more on either side because of rounding.
        step = self._local("step", size / te.max(count, tir.const(1.0)))
        begin = tir.floor((-1.0 - start) / step - 1.5)
        end = tir.ceil((_float(length) - start) / step + 1.5)
        begin, end = (te.max(te.min(bound, count), tir.const(0.0)) for bound in (begin, end))
        begin = self._local("begin", begin.astype("int32"))
        visited = self._local("visited", end.astype("int32") - begin)
        return _Samples(start, size, count, begin, visited, length)

    @contextmanager
    def _each(
        self, samples: _Samples
    ) -> Iterator[tuple[tuple[tir.PrimExpr, tir.PrimExpr], tuple[tir.PrimExpr, tir.PrimExpr]]]:
        """For each sample on the map, the two pixels around it, with their weights."""
        ib, last = self.ib, samples.length - 1
        with ib.for_range(0, samples.visited, "sample", kind=self._loop(samples.visited)) as i:
            i = samples.begin + i
            at = self._local("at", samples.start + (_float(i) + 0.5) * samples.size / samples.count)
            with ib.if_scope(tir.all(at >= -1.0, at <= _float(samples.length))):
                clamped = self._local("clamped", te.max(te.min(at, _float(last)), tir.const(0.0)))
                low = self._local("low", clamped.astype("int32"))
                high = self._local("high", te.min(low + 1, last))
                fraction = self._local("fraction", clamped - _float(low))
                yield (low, 1.0 - fraction), (high, fraction)

    def _broadcast(self, value: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Broadcast(value, self._lanes_of_sum) if self._lanes_of_sum > 1 else value


class _Maps:
    """A tensor of maps as `maps[start, y, x]`, a vector of channels; `start` is that of the pixel (0, 0).

    In NHWC the index of each vector is written as so many vectors, so that TVM sees that it is aligned.
    """

    def __init__(self, ib: IRBuilder, buffer: tir.Buffer, layout: str, lanes: int) -> None:
        extent = {axis: known(length) or length for axis, length in zip(layout, buffer.shape)}
        self.count, self.height, self.width, channels = (extent[axis] for axis in "NHWC")
        self._flat, self._index_type = in_a_row(ib, buffer)
        self.dtype, self.lanes, self._beside = buffer.dtype, lanes, layout == "NHWC"
        self._channels = channels // lanes if self._beside else channels

    def start(self, number: tir.PrimExpr, vector: tir.PrimExpr) -> tir.PrimExpr:
        """The vector of channels with this number, on the map of an image or region."""
        size = self.height * self.width
        start = number.astype(self._index_type) * (size * self._channels)
        return start + vector * (1 if self._beside else self.lanes * size)

    def __getitem__(self, at: tuple[tir.PrimExpr, IntExpr, IntExpr]) -> tir.PrimExpr:
        return self._flat[self._place(*at)]

    def __setitem__(self, at: tuple[tir.PrimExpr, IntExpr, IntExpr], value: tir.PrimExpr) -> None:
        self._flat[self._place(*at)] = value

    def _place(self, start: tir.PrimExpr, y: IntExpr, x: IntExpr) -> tir.PrimExpr:
        pixel = y * self.width + x
        if self._beside:
            return ramp((start + pixel * self._channels) * self.lanes, 1, self.lanes)
        return ramp(start + pixel, self.height * self.width, self.lanes)


def _float(value: IntExpr) -> tir.PrimExpr:
    return tir.const(float(value)) if isinstance(value, int) else value.astype("float32")
