"""Draw shapes on a tile of an image: what one block of the CUDA rasteriser does, phase by phase.

A block owns a tile, 32x32 pixels of the image of one sample, and keeps its pixels in shared memory. `cuda.py`
makes and clears the `Tile`, draws one `Drawing` after another, each in a single colour (a layer of masks, or
a style of a map), and writes the tile to the result. `Drawing.draw` takes its shapes in order, in chunks of
256, one for each thread. For each chunk:

1. Select (`HeldShapes.select`). Each thread tests whether its shape may touch the tile.
   Result: in registers, the shape's first point and its number of points; 0 points, if it cannot touch.
   The chunk ends here if no thread has points.
2. Share (`HeldShapes.share`). A prefix sum over the threads numbers the edges of all shapes of the chunk.
   Result: in shared memory, the points and the first edge of each thread's shape; the number of edges.
3. Find inside (`Inside.find`), for polygons. Each warp takes a polygon at a time. Its lanes load an edge
   each, and the edges that cross rows of the tile are broadcast one by one; each lane, which has one row of
   the tile, flips the pixels right of the edge (the even-odd rule).
   Result: in registers, for each warp and row, a word of the pixels inside.
4. List lines (`LineList.add`). Each thread turns an edge into a line, 256 edges a round. Those that touch the
   tile are appended to a list in the order of the edges.
   Result: in shared memory, the lines, each with a word of the parts of the tile that it touches.
5. Blend lines (`LineList.blend`), whenever the list has more than 256 lines and once after the last chunk.
   Each warp takes a part of the tile at a time, each lane a pixel of it. A ballot finds the listed lines that
   touch the part, and each lane blends them into its pixel in order.
   Result: the pixels with these lines, and an empty list.

After the last chunk, once:

6. Paint (`Inside.paint`), for polygons. The words of all warps are combined; pixels inside get the colour.
   The oracle fills each polygon after its outline, with the same result: all is of one colour, and blending
   a pixel with the colour that it has does not change it.

Conventions
-----------
- Units: pixels; subpixels, 1/512 of a pixel, for corners; places, 1/65536 of a pixel, for lines and for where
  edges cross rows. All are int32 and count from the image's first pixel, as in `kernel.py`.
- A level is one channel of a pixel, from 0 to 255.
- A word is 32 bits. A word of a row has a bit for each column of the tile, a ballot one for each lane of the
  warp, a word of parts one for each part of the tile. Bit 0 is the leftmost column, lane 0, part 0.
- A part of a tile is 4 rows by 8 columns, one pixel for each lane of a warp. A tile has 8 by 4 parts,
  numbered row by row. (`_warp.Part` is something else: a stretch of an array.)
- An edge is a side of a polygon or a segment of a polyline. It is drawn as one line, one pixel wide.

Synchronization
---------------
All threads of the block reach every barrier (`barrier`, `count_threads`, `sum_over_warps`): the branches and
loops around one depend only on what is the same in all threads. That is what `Drawing` and `draw` are given,
`found`, the number of edges and the length of the list. All lanes of a warp reach every ballot and shuffle:
the loops around one may depend, besides, on a ballot's word and on the polygon that the warp is at. Branches
that differ between lanes, `candidate` among them, contain neither.

There is a barrier between a write to shared memory and each read or write of the same place by another
thread, so the result does not depend on the order in which threads run:

    array                   written in      read in    barrier before reading   barrier before writing again
    constants, matrix       Tile, camera    all        in `Tile.camera`         (written once)
    starts, points, counts  2               3, 4       at the end of 2          `count_threads`
    totals                  2, 4            2, 4       in `sum_over_warps`      (its two halves take turns)
    lines                   4               5          at the start of 5        after 5, or `count_threads`
    inside                  6               6          in 6                     `count_threads`
    levels                  clear, 5, 6     5, write   see below

Phase 5 gives a pixel to the same thread each time, so it needs no barrier for levels within itself. Between
clearing and 5 is the barrier in `Tile.camera`, between 5 and 6 the one in 6, between 6 and the next drawing's
5 its `count_threads`, and before all is read the one in `Tile.write`.

Bounds and termination
----------------------
- `Contours.span` clamps the offsets of a shape to the points that exist, and `HeldShapes` numbers the points
  and edges of a shape below their count.
- The list has at most 256 lines before a round of 4, which adds at most 256: there is room for 512.
- A lane blends a line only at the steps that the line has, into the three pixels across for which there is a
  profile.
- Pixels of the tile beyond the image are drawn like all others, but `Tile.write` leaves them out.
- Every loop has a count that is known when it begins, or clears a bit of a word each time. No block waits for
  another.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import ceil_div
from .._tvm import tir
from .._types import IntExpr
from .._warp import count_threads
from .cuda_block import LANES, THREADS
from .cuda_lines import LineList
from .cuda_pixels import SIDE, Brush, Tile
from .cuda_polygons import Inside
from .cuda_shapes import Candidate, HeldShapes
from .kernel import Camera, Contours

__all__ = ["LANES", "SIDE", "THREADS", "Drawing", "Tile"]


class Drawing:
    """Shapes that are drawn on a tile in one colour: polygons, if `is_fill` holds, or else polylines.

    `together`: polygons are one figure, and what an even number of them covers is outside.
    """

    def __init__(
        self,
        tile: Tile,
        camera: Camera,
        contours: Contours,
        color: Sequence[tir.PrimExpr],
        is_fill: tir.PrimExpr,
        channel: IntExpr,
        together: bool,
    ) -> None:
        self._tile, self._is_fill, self._brush = tile, is_fill, Brush(color, channel)
        self._shapes = HeldShapes(tile, camera, contours, is_fill)
        self._inside = Inside(tile, together)
        self._drawn = tile.local.variable("drawn", tir.const(0))  # whether any shape may be on the tile
        self._lines = LineList(tile, self._brush)

    def draw(self, begin: IntExpr, end: IntExpr, candidate: Candidate) -> None:
        """Draw the shapes `candidate(at)`, for each `at` from `begin` to `end`."""
        ib, local, shapes = self._tile.ib, self._tile.local, self._shapes
        with ib.for_range(0, ceil_div(end - begin, THREADS), "chunk") as chunk:
            at = local("shape", begin + chunk * THREADS + self._tile.block.thread)
            first, count = shapes.select(at, end, candidate)  # 1
            found = local("found", count_threads(count > 0))
            with ib.if_scope(found > 0):
                self._drawn[0] = tir.const(1)
                edges = shapes.share(first, count)  # 2
                with ib.if_scope(self._is_fill):
                    self._inside.find(shapes)  # 3
                self._lines.add(shapes, edges)  # 4, and 5 if the list gets full
        self._lines.finish()  # 5
        with ib.if_scope(tir.all(self._is_fill, self._drawn[0] != 0)):
            self._inside.paint(self._brush)  # 6
