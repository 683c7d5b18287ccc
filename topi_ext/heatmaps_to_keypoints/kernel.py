"""How a heatmap is scaled to its roi, and what is a keypoint there, emitted alike for every target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from .._floats import MAGNITUDE, Locals, bits, bits_of
from .._tvm import IRBuilder, te, tir
from ..sort.order import from_ordered_bits

MAX_SIDE = 4096  # pixels along a side; longer ones are counted as that, which bounds the work
MAX_COORDINATE = 1e9
A = -0.75  # of the family of cubic kernels, the one that torch takes


@dataclass(frozen=True)
class Side:
    """One side of a roi, and of the map that is scaled to it."""

    first: tir.PrimExpr  # where the roi begins in the image
    pixels: tir.PrimExpr  # of the scaled map; 0 where the roi is nowhere
    step: tir.PrimExpr  # how long a pixel is in the image
    ratio: tir.PrimExpr  # how long it is in the heatmap
    length: tir.PrimExpr  # of the heatmap

    def centre(self, at: tir.PrimExpr) -> tir.PrimExpr:
        return (at.astype("float32") + 0.5) * self.step + self.first

    def inside(self, at: tir.PrimExpr) -> tir.PrimExpr:
        """The nearest place that the heatmap has."""
        return te.max(te.min(at, self.length - 1), 0)


class Heatmaps:
    """Emits sides and weights; `scope` is where the target keeps variables."""

    def __init__(self, ib: IRBuilder, maps: tir.Buffer, rois: tir.Buffer, *, scope: str) -> None:
        self.local = Locals(ib, scope)
        self.maps, self._rois = ib.buffer_ptr(maps), ib.buffer_ptr(rois)
        self._lengths = maps.shape[2:]

    def sides(self, number: tir.PrimExpr) -> tuple[Side, Side]:
        """The sides of a roi, down and across."""
        read = [self.local("corner", self._rois[number, at].astype("float32")) for at in range(4)]
        somewhere = tir.all(*((bits(corner) & MAGNITUDE) <= bits_of(MAX_COORDINATE) for corner in read))
        somewhere = self.local("somewhere", somewhere.astype("int32"))
        # What is computed with a NaN, and be it not used, LLVM takes for anything.
        x1, y1, x2, y2 = (
            self.local("corner", tir.reinterpret("float32", bits(corner) & -somewhere)) for corner in read
        )
        down, across = self._lengths
        return self._side(y1, y2, somewhere, down), self._side(x1, x2, somewhere, across)

    def _side(
        self, low: tir.PrimExpr, high: tir.PrimExpr, somewhere: tir.PrimExpr, length: tir.PrimExpr
    ) -> Side:
        extent = self.local("extent", te.max(high - low, tir.const(1.0)))
        pixels = self.local("pixels", tir.ceil(te.min(extent, tir.const(float(MAX_SIDE)))).astype("int32"))
        return Side(
            low,
            self.local("visited", pixels * somewhere),
            self.local("step", extent / pixels.astype("float32")),
            self.local("ratio", tir.Cast("float32", length) / pixels.astype("float32")),
            tir.Cast("int32", length),
        )

    def neighbours(self, side: Side, at: tir.PrimExpr) -> tuple[tir.PrimExpr, list[tir.PrimExpr]]:
        """The second of the four places of the heatmap that a pixel is between, and the weights of all."""
        source = self.local("source", (at.astype("float32") + 0.5) * side.ratio - 0.5)
        low = self.local("low", tir.floor(source).astype("int32"))
        fraction = self.local("fraction", source - low.astype("float32"))
        rest = self.local("rest", 1.0 - fraction)
        weights = (_far(fraction + 1.0), _near(fraction), _near(rest), _far(rest + 1.0))
        return low, [self.local("weight", weight) for weight in weights]


class Keypoints:
    """Emits the results: places, and their scores."""

    def __init__(self, ib: IRBuilder, places: tir.Buffer, scores: tir.Buffer) -> None:
        self._ib, self._places, self._scores = ib, ib.buffer_ptr(places), ib.buffer_ptr(scores)

    def write(
        self,
        heatmap: tuple[tir.PrimExpr, tir.PrimExpr],
        sides: tuple[Side, Side],
        position: tir.PrimExpr,
        key: tir.PrimExpr,
    ) -> None:
        """The greatest value of a scaled map, by its ordered bits and its position in the map, row by row."""
        (down, across), ib = sides, self._ib
        with ib.if_scope(across.pixels > 0):
            self._places[(*heatmap, 0)] = across.centre(tir.truncmod(position, across.pixels))
            self._places[(*heatmap, 1)] = down.centre(tir.truncdiv(position, across.pixels))
            self._places[(*heatmap, 2)] = tir.const(1.0)
            self._scores[heatmap] = from_ordered_bits(key)
        with ib.else_scope():
            for i in range(3):
                self._places[(*heatmap, i)] = tir.const(0.0)
            self._scores[heatmap] = tir.const(0.0)


def keypoints_of(maps: te.Tensor, rois: te.Tensor, emit: Callable[..., tir.Stmt]) -> list[te.Tensor]:
    """The results, of which `emit` gives the kernel."""
    count, keypoints = maps.shape[:2]
    shapes = [[count, keypoints, 3], [count, keypoints]]
    return te.extern(shapes, [maps, rois], emit, dtype=["float32"] * 2, name="heatmaps_to_keypoints")


def weighted(values: Iterable[tir.PrimExpr], weights: Iterable[tir.PrimExpr]) -> tir.PrimExpr:
    return reduce(add, (value * weight for value, weight in zip(values, weights)))


def _near(x: tir.PrimExpr) -> tir.PrimExpr:
    """The weight at a distance up to 1."""
    return ((A + 2) * x - (A + 3)) * x * x + 1.0


def _far(x: tir.PrimExpr) -> tir.PrimExpr:
    """The weight at a distance from 1 to 2."""
    return ((A * x - 5 * A) * x + 8 * A) * x - 4 * A
