"""Phases 1 and 2 of `cuda_tile`: each thread selects a shape, and the threads share their shapes.

Edge i of a polygon goes from point i - 1 to point i, and edge 0 from the last point to point 0: as many edges
as points. Edge i of a polyline goes from point i to point i + 1: one less.
"""

from __future__ import annotations

from collections.abc import Callable

from .._kernel import barrier
from .._tvm import PrimExpr, te, tir
from .._types import IntExpr
from .._warp import from_lane_before
from .cuda_block import THREADS
from .cuda_pixels import Tile
from .kernel import Camera, Contours, Corner

# Answers for a position which shape is there, and whether it may touch the tile.
Candidate = Callable[[PrimExpr], tuple[PrimExpr, PrimExpr]]


class HeldShapes:
    """The shapes of a chunk: each thread of the block holds one, or none."""

    def __init__(self, tile: Tile, camera: Camera, contours: Contours, is_fill: tir.PrimExpr) -> None:
        self._ib, self._local, self._block, self._shared = tile.ib, tile.local, tile.block, tile.shared
        self._camera, self._contours, self.is_fill = camera, contours, is_fill

    # --- phase 1

    def select(
        self, at: tir.PrimExpr, end: IntExpr, candidate: Candidate
    ) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The first point and the number of points of the shape at this position.

        There are 0 points if it cannot touch the tile, or the position is not before `end`.
        """
        ib, variable = self._ib, self._local.variable
        first, count = variable("first", tir.const(0)), variable("count", tir.const(0))
        with ib.if_scope(at < end):
            shape, is_near = candidate(at)
            with ib.if_scope(is_near):
                first[0], count[0] = self._contours.span(shape)
        return first[0], count[0]

    # --- phase 2

    def share(self, first: tir.PrimExpr, count: tir.PrimExpr) -> tir.PrimExpr:
        """Write the thread's shape to shared memory; the result is the number of edges of all shapes.

        Edges are numbered in the order of the threads. The first one of a shape has as its number the sum of
        the edges before it: a prefix sum over the lanes of each warp, then over the warps.
        """
        local, block, shared = self._local, self._block, self._shared
        edges = local("edges", te.max(count - tir.Select(self.is_fill, 0, 1), 0))
        up_to = local.variable("up_to", edges)
        for distance in (1, 2, 4, 8, 16):
            before = local("before", from_lane_before(up_to[0], distance))
            up_to[0] = up_to[0] + tir.Select(block.lane >= distance, before, 0)
        before, total = block.sum_over_warps(shared.totals, 0, up_to[0])
        shared.starts[block.thread] = before + up_to[0] - edges
        shared.points[block.thread] = first
        shared.counts[block.thread] = count
        barrier(self._ib)
        return total

    # --- what phases 3 and 4 read

    def count(self, holder: tir.PrimExpr) -> tir.PrimExpr:
        """The number of points of the shape that a thread holds."""
        return self._shared.counts[holder]

    def span(self, holder: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The first point and the number of points of the shape that a thread holds."""
        local, shared = self._local, self._shared
        return local("first", shared.points[holder]), local("count", shared.counts[holder])

    def ends(self, first: tir.PrimExpr, count: tir.PrimExpr, edge: tir.PrimExpr) -> list[Corner]:
        """Both ends of an edge of the shape that has these points."""
        before = tir.Select(edge == 0, count - 1, edge - 1)
        numbers = tir.Select(self.is_fill, before, edge), tir.Select(self.is_fill, edge, edge + 1)
        return [self._camera.corner(self._local("number", first + number)) for number in numbers]

    def ends_in_chunk(self, number: tir.PrimExpr) -> list[Corner]:
        """Both ends of an edge, by its number in the chunk, which must be below the number of edges.

        A binary search over the threads finds the last shape whose first edge is not after it. That shape has
        the edge: those without edges begin where the next one does.
        """
        local, starts = self._local, self._shared.starts
        holder = local.variable("owner", tir.const(0))
        step = THREADS // 2
        while step:
            holder[0] = tir.Select(starts[holder[0] + step] <= number, holder[0] + step, holder[0])
            step //= 2
        first, count = self.span(holder[0])
        return self.ends(first, count, local("own", number - starts[holder[0]]))
