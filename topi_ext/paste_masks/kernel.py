"""Where a mask goes in its image, and what a pixel there is, emitted alike for every target.

The border of zeros that a mask gets is not stored: a neighbour on it counts with weight 0. Each operation is
rounded once, so that a pixel is the same to the last bit on all targets and in all kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from .._floats import Locals, is_finite, rounded
from .._kernel import clamp
from .._tvm import IRBuilder, PrimExpr, te, tir
from .._types import IntExpr

MAX_COORDINATE = 1e9
Neighbours = tuple[tuple[PrimExpr, PrimExpr], ...]  # pixels along an axis, with their weights


@dataclass(frozen=True)
class Span:
    """Where a mask is along an axis: from pixel `first` on; the image has those from `begin` to `end`."""

    first: tir.PrimExpr
    ratio: tir.PrimExpr  # pixels of the mask with its border to one of the image
    begin: tir.PrimExpr
    end: tir.PrimExpr
    zero: tir.PrimExpr  # for `rounded`

    def holds(self, at: tir.PrimExpr) -> tir.PrimExpr:
        return tir.all(at >= self.begin, at < self.end)


class Masks:
    """Emits places and pixels of masks; `scope` is where the target keeps variables."""

    def __init__(
        self,
        ib: IRBuilder,
        masks: tir.Buffer,
        boxes: tir.Buffer,
        image_size: Sequence[IntExpr],
        threshold: float | None,
        scope: str,
    ) -> None:
        self.local, self._image_size, self._threshold = Locals(ib, scope), image_size, threshold
        self._masks, self._boxes = ib.buffer_ptr(masks), ib.buffer_ptr(boxes)
        self._side = int(masks.shape[-1])

    def spans(self, number: tir.PrimExpr) -> tuple[Span, Span]:
        """Where a mask is, down and across: nowhere, if a corner is no number."""
        corners = [self.local("corner", self._boxes[number, at].astype("float32")) for at in range(4)]
        invalid = self.local("invalid", -tir.Not(tir.all(*map(is_finite, corners))).astype("int32"))
        x1, y1, x2, y2 = corners
        height, width = self._image_size
        return self._span(y1, y2, invalid, height), self._span(x1, x2, invalid, width)

    def _span(self, low: tir.PrimExpr, high: tir.PrimExpr, invalid: tir.PrimExpr, length: IntExpr) -> Span:
        side = self._side
        half = (high - low) * tir.const(0.5) * self.local.exact((side + 2) / side)
        # Rounded only once, with the sum, it would be truncated to another pixel.
        half = self.local("half", rounded(half, invalid))
        centre = self.local("centre", (high + low) * tir.const(0.5))
        limit = tir.const(MAX_COORDINATE)
        first, last = (
            self.local("bound", clamp(bound, -limit, limit).astype("int32"))
            for bound in (centre - half, centre + half)
        )
        pixels = te.max(last - first + 1, 1).astype("float32")
        end = tir.Select(invalid == 0, te.min(last + 1, length), 0)
        return Span(
            first,
            self.local("ratio", tir.const(float(side + 2)) / pixels),
            self.local("begin", te.max(first, 0)),
            self.local("end", end),
            invalid,  # 0 wherever there are pixels
        )

    @property
    def nothing(self) -> tir.PrimExpr:
        """A pixel of the result outside the box."""
        threshold = self._threshold
        return tir.const(0.0) if threshold is None else tir.const(int(threshold <= 0), "uint8")

    def pixel(self, number: tir.PrimExpr, ys: Neighbours, xs: Neighbours, zero: tir.PrimExpr) -> tir.PrimExpr:
        """A pixel of the result between these neighbours down and across; `zero` is that of a span."""
        values = (
            rounded(self._masks[number, 0, y, x].astype("float32") * (down * across), zero)
            for y, down in ys
            for x, across in xs
        )
        value = reduce(add, values)
        if self._threshold is None:
            return value
        return (value >= self.local.exact(self._threshold)).astype("uint8")

    def neighbours(self, span: Span, at: tir.PrimExpr) -> Neighbours:
        """The two pixels of the mask that one of the image is between, with their weights."""
        side, zero = self._side, tir.const(0.0)
        source = rounded(((at - span.first).astype("float32") + 0.5) * span.ratio, span.zero) - 0.5
        source = self.local("source", clamp(source, zero, tir.const(float(side + 1))))
        low = self.local("low", source.astype("int32"))
        fraction = self.local("fraction", source - low.astype("float32"))
        return (
            (
                te.max(te.min(low, side) - 1, 0),
                tir.Select(tir.all(low >= 1, low <= side), 1.0 - fraction, zero),
            ),
            (te.min(low, side - 1), tir.Select(low < side, fraction, zero)),
        )
