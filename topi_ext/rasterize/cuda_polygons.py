"""Phases 3 and 6 of `cuda_tile`: find the pixels that are inside polygons, and paint them."""

from __future__ import annotations

from functools import reduce

from .._kernel import barrier, ceil_div, clamp
from .._tvm import BufferVar, te, tir
from .._warp import all_lanes, from_lane
from .cuda_block import LANES, THREADS, WARPS, uint32
from .cuda_pixels import SIDE, Brush, Tile
from .cuda_shapes import HeldShapes
from .kernel import Edge
from .reference import ONE, SUBPIXELS


class Inside:
    """The pixels inside the polygons that a warp has seen: lane i of each warp keeps those of row i.

    Inside are the pixels right of an odd number of edges, and those that an edge hits exactly. Edges are
    counted for each polygon by itself, or for all polygons `together` as one figure.
    """

    def __init__(self, tile: Tile, together: bool) -> None:
        self._ib, self._local, self._tile, self._block = tile.ib, tile.local, tile, tile.block
        self._together = together
        # Pixels known to be inside; if polygons are one figure, these are only those that an edge hits
        # exactly, and `odd` has those right of an odd number of the edges that this warp has seen.
        self._covered = tile.local.variable("covered", uint32(0))
        self._odd = tile.local.variable("odd", uint32(0))

    # --- phase 3

    def find(self, shapes: HeldShapes) -> None:
        """Add the polygons of the chunk.

        A warp takes the polygons of every eighth thread, so that a few polygons in a row go to as many warps.
        """
        block, local = self._block, self._local
        held = local("held", block.lane * WARPS + block.warp)
        with block.each_lane(shapes.count(held) > 0) as lane:
            held = local("held", lane * WARPS + block.warp)
            first, count = shapes.span(held)
            odd = self._odd if self._together else local.variable("odd_here", uint32(0))
            with self._ib.for_range(0, ceil_div(count, LANES), "batch") as batch:
                self._count_edges(shapes, first, count, batch * LANES + block.lane, odd)
            if not self._together:
                self._covered[0] = self._covered[0] | odd[0]

    def _count_edges(
        self,
        shapes: HeldShapes,
        first: tir.PrimExpr,
        count: tir.PrimExpr,
        number: tir.PrimExpr,
        odd: BufferVar,
    ) -> None:
        """Count 32 edges of the warp's polygon; `number` is that of the edge that this lane loads."""
        ib, local, tile = self._ib, self._local, self._tile
        *loaded, crosses = (local.variable("edge", tir.const(0)) for _ in range(5))
        with ib.if_scope(number < count):
            corners = shapes.ends(first, count, number)
            edge = Edge.between(ib, local, *corners)
            for variable, value in zip(loaded, (edge.top, edge.bottom, edge.x, edge.slope)):
                variable[0] = value
            in_rows = tir.all(edge.top < tile.top + SIDE, edge.bottom > tile.top)
            # An edge left of the tile counts for all pixels of the row, one right of it for none.
            not_right = te.min(*(corner.x for corner in corners)) < (tile.left + SIDE) * SUBPIXELS
            crosses[0] = tir.all(in_rows, not_right).astype("int32")
        with self._block.each_lane(crosses[0] != 0) as owner:
            edge = Edge(*(local("shuffled", from_lane(value[0], owner)) for value in loaded))
            self._count_edge(edge, odd)

    def _count_edge(self, edge: Edge, odd: BufferVar) -> None:
        """Count an edge in the lane's row, if it crosses that row."""
        ib, local, tile = self._ib, self._local, self._tile
        row = local("row", tile.top + self._block.lane)
        with ib.if_scope(tir.all(row >= edge.top, row < edge.bottom)):
            at = local("at", edge.at(row))
            column = local("column", (at >> 16) - tile.left)
            after = local("after", clamp(column + 1, 0, SIDE - 1).astype("uint32"))
            odd[0] = odd[0] ^ tir.Select(column < SIDE - 1, all_lanes() << after, uint32(0))
            with ib.if_scope(tir.all((at & (ONE - 1)) == 0, column >= 0, column < SIDE)):
                self._covered[0] = self._covered[0] | (uint32(1) << column.astype("uint32"))

    # --- phase 6

    def paint(self, brush: Brush) -> None:
        """Combine the words of all warps, and give the pixels inside the colour."""
        ib, tile, block, inside = self._ib, self._tile, self._block, self._tile.shared.inside
        of_warp = block.warp * LANES + block.lane
        inside[of_warp] = tir.reinterpret("int32", self._covered[0])
        if self._together:
            inside[THREADS + of_warp] = tir.reinterpret("int32", self._odd[0])
        barrier(ib)
        with block.strided(SIDE * SIDE) as pixel:
            row = tir.truncdiv(pixel, SIDE)
            word = reduce(tir.bitwise_or, [inside[warp * LANES + row] for warp in range(WARPS)])
            if self._together:
                odd = [inside[THREADS + warp * LANES + row] for warp in range(WARPS)]
                word = word | reduce(tir.bitwise_xor, odd)
            with ib.if_scope(((word >> (pixel & (SIDE - 1))) & 1) != 0):
                for place, level in zip(brush.places(tile, pixel), brush.color):
                    tile.levels[place] = level.astype("uint8")
