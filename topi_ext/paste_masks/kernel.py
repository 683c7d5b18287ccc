"""Where a mask goes in its picture, and what a pixel there is, emitted alike for every target.

The border of zeros that a mask gets is not stored: a neighbour on it counts with weight 0.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import te, tir

MAGNITUDE, BITS_OF_INFINITY = 0x7FFFFFFF, 0x7F800000
FARTHEST = 1e9


@dataclass(frozen=True)
class Span:
    """Where a mask is along an axis: from pixel `first` of the picture, which holds `begin` to `end` of it."""

    first: Any
    ratio: Any  # pixels of the mask with its border to one of the picture
    begin: Any
    end: Any

    def holds(self, at):
        return tir.all(at >= self.begin, at < self.end)


class Masks:
    """Emits places and pixels of masks; `scope` is where the target keeps variables."""

    def __init__(self, ib, masks, boxes, image_size, scope):
        self._ib, self._scope, self._image_size = ib, scope, image_size
        self._masks, self._boxes = ib.buffer_ptr(masks), ib.buffer_ptr(boxes)
        self._side = int(masks.shape[-1])

    def spans(self, number):
        """Where a mask is, down and across: nowhere, if a corner is no number."""
        corners = [self.local("corner", self._boxes[number, at].astype("float32")) for at in range(4)]
        invalid = tir.any(*((_bits(corner) & MAGNITUDE) >= BITS_OF_INFINITY for corner in corners))
        invalid = self.local("invalid", -invalid.astype("int32"))
        x1, y1, x2, y2 = corners
        height, width = self._image_size
        return self._span(y1, y2, invalid, height), self._span(x1, x2, invalid, width)

    def _span(self, low, high, invalid, length):
        side = self._side
        half = (high - low) * tir.const(0.5) * tir.const((side + 2) / side)
        # The compiler may fuse a product with a sum, which rounds only once, and then truncates to another
        # pixel. It cannot where something happens to the product in between.
        half = self.local("half", tir.reinterpret("float32", _bits(half) | invalid))
        centre = self.local("centre", (high + low) * tir.const(0.5))
        first, last = (
            self.local(
                "bound", te.max(te.min(bound, tir.const(FARTHEST)), tir.const(-FARTHEST)).astype("int32")
            )
            for bound in (centre - half, centre + half)
        )
        pixels = te.max(last - first + 1, 1).astype("float32")
        end = tir.Select(invalid == 0, te.min(last + 1, length), 0)
        return Span(
            first,
            self.local("ratio", tir.const(float(side + 2)) / pixels),
            self.local("begin", te.max(first, 0)),
            self.local("end", end),
        )

    def pixel(self, number, ys, xs):
        """What a pixel is between these neighbours down and across."""
        values = (
            self._masks[number, 0, y, x].astype("float32") * (down * across)
            for y, down in ys
            for x, across in xs
        )
        return reduce(add, values)

    def neighbours(self, span, at):
        """The two pixels of the mask, without its border, that one of the picture is between, with weights."""
        side, zero = self._side, tir.const(0.0)
        source = ((at - span.first).astype("float32") + 0.5) * span.ratio - 0.5
        source = self.local("source", te.max(te.min(source, tir.const(float(side + 1))), zero))
        low = self.local("low", source.astype("int32"))
        fraction = self.local("fraction", source - low.astype("float32"))
        return (
            (
                te.max(te.min(low, side) - 1, 0),
                tir.Select(tir.all(low >= 1, low <= side), 1.0 - fraction, zero),
            ),
            (te.min(low, side - 1), tir.Select(low < side, fraction, zero)),
        )

    def local(self, name, value):
        """A value that is computed once. (TVM repeats that of `ib.let` at each use.)"""
        variable = self._ib.allocate(value.dtype, 1, name, scope=self._scope)
        variable[0] = value
        return variable[0]


def shown(value, threshold):
    """A pixel as the result has it."""
    return value if threshold is None else (value >= tir.const(threshold, "float32")).astype("uint8")


def _bits(value):
    return tir.reinterpret("int32", value)
