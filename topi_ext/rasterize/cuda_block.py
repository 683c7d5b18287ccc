"""A block of threads: which thread this is, loops and sums by all threads, and what is in shared memory.

`cuda_tile` says which barrier stands between writing and reading each array, and why all threads reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from operator import add

from .._floats import Locals
from .._kernel import barrier, ceil_div
from .._tvm import IRBuilder, tir
from .._types import IntExpr
from .._warp import Part, ballot, first_bit
from .kernel import TABLE

THREADS, LANES = 256, 32  # of a block, of a warp
WARPS = THREADS // LANES
LISTED = 2 * THREADS  # lines that the list has room for
LINE_FIELDS = 6  # int32 of each


class Block:
    """The thread's number in its block, and what the threads of the block, or of a warp, do together."""

    def __init__(self, ib: IRBuilder, local: Locals, thread: tir.PrimExpr) -> None:
        self.ib, self.local, self.thread = ib, local, thread
        self.lane = local("lane", tir.truncmod(thread, LANES))
        self.warp = local("warp", tir.truncdiv(thread, LANES))

    @contextmanager
    def strided(self, count: IntExpr) -> Iterator[tir.PrimExpr]:
        """Loop over the numbers below `count`, each by one thread: neighbours take neighbouring numbers."""
        with self.ib.for_range(0, ceil_div(count, THREADS), "turn") as turn:
            at = self.local("at", turn * THREADS + self.thread)
            with self.ib.if_scope(at < count):
                yield at

    @contextmanager
    def each_lane(self, condition: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
        """Loop over the lanes of the warp for which the condition holds, in order.

        All lanes run this loop in step, and so all must get here.
        """
        lanes = self.local.variable("lanes", ballot(condition))
        with self.ib.while_loop(lanes[0] != uint32(0)):
            lane = self.local("owner", first_bit(lanes[0]))
            lanes[0] = lanes[0] & (lanes[0] - uint32(1))
            yield lane

    def sum_over_warps(
        self, totals: Part, half: IntExpr, of_warp: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The sum of what the warps before have as `of_warp`, and of what all warps have.

        The last lane speaks for its warp. All threads must get here. The barrier is between writing and
        reading a half of `totals`; two calls without a barrier between them must use different halves.
        """
        ib, local = self.ib, self.local
        with ib.if_scope(self.lane == LANES - 1):
            totals[half * WARPS + self.warp] = of_warp
        barrier(ib)
        of_each = [local("total", totals[half * WARPS + warp]) for warp in range(WARPS)]
        before = reduce(add, (tir.Select(self.warp > warp, total, 0) for warp, total in enumerate(of_each)))
        return local("before", before), local("all", reduce(add, of_each))


class Shared:
    """The int32 in shared memory.

    They are parts of one array. If they were several, TVM might put one in the place of another that is no
    longer used, without the barrier that this needs.
    """

    def __init__(self, ib: IRBuilder, style_size: int) -> None:
        sizes = {
            "table": len(TABLE),
            "styles": style_size,
            "totals": 2 * WARPS,
            "starts": THREADS,
            "points": THREADS,
            "counts": THREADS,
            "inside": 2 * THREADS,
            "lines": LINE_FIELDS * LISTED,
        }
        array = ib.allocate("int32", sum(sizes.values()), "shared", scope="shared")
        begins = dict(zip(sizes, accumulate(sizes.values(), initial=0)))
        self.constants = Part(array, 0)  # the table and the styles
        self.table = Part(array, begins["table"])  # `kernel.TABLE`, how strong lines are
        self.styles = Part(array, begins["styles"])  # of each style its colour, and 1 if it fills polygons
        self.totals = Part(array, begins["totals"])  # two halves, for `Block.sum_over_warps`
        # Of the shape that each thread holds: the number of its first edge in the chunk, its first point,
        # and its number of points.
        self.starts = Part(array, begins["starts"])
        self.points = Part(array, begins["points"])
        self.counts = Part(array, begins["counts"])
        # Of each warp and row the word `covered` of `Inside`, and in the second half the word `odd`.
        self.inside = Part(array, begins["inside"])
        # The fields of the listed lines, each by itself: neighbouring lanes read neighbouring numbers.
        self.lines = [Part(array, begins["lines"] + field * LISTED) for field in range(LINE_FIELDS)]


def uint32(value: int) -> tir.PrimExpr:
    """A constant of 32 bits."""
    return tir.const(value, "uint32")
