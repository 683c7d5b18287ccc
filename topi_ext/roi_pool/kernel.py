"""Pool one bin of a region, emitted alike for every target.

No input makes an access out of bounds or a loop longer than the map: corners are finite, bounds are clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._floats import BITS_OF_INFINITY, MAGNITUDE, Locals, bits, is_finite
from .._kernel import clamp
from .._tvm import IRBuilder, te, tir

FARTHEST = 2.0**20  # corners beyond this are moved there, which changes no bin


@dataclass(frozen=True)
class Options:
    pooled_size: tuple[int, int]
    spatial_scale: float
    by_position: bool  # the mean of the channels that belong to a bin, and not the maximum of all

    @property
    def bins(self) -> int:
        return self.pooled_size[0] * self.pooled_size[1]

    @property
    def channels_of_each(self) -> int:
        """The channels of the map for each of the result."""
        return self.bins if self.by_position else 1


class Pooling:
    """Emits bins of regions; `scope` is where the target keeps variables."""

    def __init__(
        self,
        ib: IRBuilder,
        inputs: Sequence[tir.Buffer],
        output: tir.Buffer,
        options: Options,
        scope: str,
    ) -> None:
        self.ib, self._options, self._scope, self._local = ib, options, scope, Locals(ib, scope)
        self._data, self._rois, self._output = map(ib.buffer_ptr, (*inputs, output))
        self._images, _, *self._size = inputs[0].shape

    def emit(self, row: tir.PrimExpr, channel: tir.PrimExpr, p: tir.PrimExpr, q: tir.PrimExpr) -> None:
        """Bin (p, q) of a channel of the result."""
        ib, (down, across) = self.ib, self._options.pooled_size
        lowest = 0.0 if self._options.by_position else float(te.min_value("float32").value)
        best, result = (ib.allocate("float32", 1, name, scope=self._scope) for name in ("best", "result"))
        best[0], result[0] = tir.const(lowest, "float32"), tir.const(0.0, "float32")
        index, *corners = (
            self._local(name, self._rois[row, at].astype("float32"))
            for at, name in enumerate(("index", "x1", "y1", "x2", "y2"))
        )
        is_valid = [*map(is_finite, (index, *corners)), index > -1.0, index < self._images.astype("float32")]
        with ib.if_scope(tir.all(*is_valid)):
            x1, y1, x2, y2 = map(self._pixel, corners)
            top, bottom = self._bounds(y1, y2, p, down, self._size[0])
            left, right = self._bounds(x1, x2, q, across, self._size[1])
            image = self._local("image", index.astype("int32"))
            source = channel * self._options.bins + p * across + q if self._options.by_position else channel
            with ib.if_scope(tir.all(top < bottom, left < right)):
                with ib.for_range(0, bottom - top, "y") as y, ib.for_range(0, right - left, "x") as x:
                    value = self._local(
                        "value", self._data[image, source, top + y, left + x].astype("float32")
                    )
                    if self._options.by_position:
                        best[0] += value
                    else:
                        is_number = bits(value) & MAGNITUDE <= BITS_OF_INFINITY
                        with ib.if_scope(tir.all(is_number, value > best[0])):
                            best[0] = value
                area = ((bottom - top) * (right - left)).astype("float32")
                result[0] = best[0] / area if self._options.by_position else best[0]
        self._output[row, channel, p, q] = result[0].astype(self._output.dtype)

    def _pixel(self, corner: tir.PrimExpr) -> tir.PrimExpr:
        """The nearest pixel, halves away from zero."""
        scaled = clamp(corner * self._local.exact(self._options.spatial_scale), -FARTHEST, FARTHEST)
        scaled = self._local("scaled", scaled)
        away = tir.floor(tir.abs(scaled) + tir.const(0.5, "float32"))
        return self._local("pixel", tir.Select(scaled < tir.const(0.0, "float32"), -away, away))

    def _bounds(
        self, first: tir.PrimExpr, last: tir.PrimExpr, place: tir.PrimExpr, bins: int, length: tir.PrimExpr
    ) -> list[tir.PrimExpr]:
        """The pixels of a bin along a side, as begin and end."""
        extra, end = (0.0, length - 1) if self._options.by_position else (1.0, length)
        whole = te.max(last - first + tir.const(extra, "float32"), tir.const(1.0, "float32"))
        size = self._local("size", whole / self._local.exact(bins))
        place = place.astype("float32")
        bounds = tir.floor(place * size) + first, tir.ceil((place + 1.0) * size) + first
        return [
            self._local(
                "bound", clamp(bound, tir.const(0.0, "float32"), end.astype("float32")).astype("int32")
            )
            for bound in bounds
        ]
