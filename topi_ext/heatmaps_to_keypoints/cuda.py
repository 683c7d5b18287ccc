"""Keypoints on CUDA: a block for each heatmap, whose scaled map is never stored.

A lane takes columns, a warp some rows of them. While a lane goes down a column it keeps what the column is in
the four rows of the heatmap that it is between, so a pixel reads only the rows that the one above it was not
between; these change for all lanes of a warp at once. Between which rows a row of pixels is, and with which
weights, is computed once for a block, a part of the map at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .._floats import is_nan
from .._kernel import barrier, ceil_div, launch, local, variables
from .._tvm import IRBuilder, te, tir
from ..sort.order import ordered_bits
from .kernel import Heatmaps, Keypoints, Side, keypoints_of, weighted

LANES, WARPS = 32, 8
THREADS = LANES * WARPS
ROWS = THREADS  # of a part of the scaled map; a thread computes the weights of one
ALL_FOUR = tir.Ramp(0, 1, 4)
LAST = (1 << 31) - 1  # no place in a map is beyond


def heatmaps_to_keypoints(maps: te.Tensor, rois: te.Tensor) -> list[te.Tensor]:
    """The results of `topi_ext.heatmaps_to_keypoints`."""
    count, keypoints = maps.shape[:2]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        heatmaps = Heatmaps(ib, *ins, scope="local")
        found = Keypoints(ib, *outs)
        blocks = count * keypoints
        with ib.if_scope(tir.const(0, "int32") < blocks), launch(ib, blocks, THREADS) as (block, thread):
            keypoint = local(ib, "keypoint", tir.truncmod(block, keypoints))
            place = local(ib, "place", tir.truncdiv(block, keypoints))
            number = _largest_first(ib, heatmaps, count, place, thread)
            down, across = heatmaps.sides(number)
            best = _best_of_thread(ib, heatmaps, (number, keypoint), down, across, thread)
            best = _best_of_block(ib, best, thread)
            with ib.if_scope(thread == 0):
                sides = heatmaps.sides(number)  # again, for fewer registers until now
                position = local(ib, "position", LAST - (best & LAST).astype("int32"))
                found.write((number, keypoint), sides, position, (best >> 32).astype("int32"))
        return ib.get()

    return keypoints_of(maps, rois, emit)


def _largest_first(
    ib: IRBuilder, heatmaps: Heatmaps, count: tir.PrimExpr, place: tir.PrimExpr, thread: tir.PrimExpr
) -> tir.PrimExpr:
    """The roi at a place in the order of their sizes: blocks that begin last should not take longest.

    Each block counts for itself how many are before each, where there is a thread for each of them.
    """
    if not isinstance(count, tir.IntImm) or count.value > THREADS:
        return place
    pixels = ib.allocate("int32", THREADS, "pixels", scope="shared")
    chosen = ib.allocate("int32", 1, "chosen", scope="shared")
    with ib.if_scope(thread < count):
        down, across = heatmaps.sides(thread)
        pixels[thread] = down.pixels * across.pixels
    barrier(ib)
    with ib.if_scope(thread < count):
        (before,) = variables(ib, "int32", "before")
        before[0] = tir.const(0)
        with ib.for_range(0, count, "other") as other:
            is_first = tir.any(
                pixels[other] > pixels[thread], tir.all(pixels[other].equal(pixels[thread]), other < thread)
            )
            before[0] += is_first.astype("int32")
        with ib.if_scope(before[0] == place):
            chosen[0] = thread
    barrier(ib)
    return local(ib, "number", chosen[0])


class _Column:
    """A column of the scaled map: what it is in each of the four rows of the heatmap around a pixel."""

    def __init__(
        self,
        ib: IRBuilder,
        heatmaps: Heatmaps,
        heatmap: tuple[tir.PrimExpr, tir.PrimExpr],
        down: Side,
        across: Side,
        x: tir.PrimExpr,
    ) -> None:
        self._ib, self._maps, self._heatmap, self._down = ib, heatmaps.maps, heatmap, down
        left, self._weights = heatmaps.neighbours(across, x)
        self._places = [local(ib, "column", across.inside(left - 1 + i)) for i in range(4)]
        self._rows = variables(ib, "float32", "above", "upper", "lower", "below")
        (self._top,) = variables(ib, "int32", "read")
        self._top[0] = tir.const(-8)  # four rows before any

    def pixel(self, top: tir.PrimExpr, weights: Iterable[tir.PrimExpr]) -> tir.PrimExpr:
        """The pixel between the rows around `top`, of which those are read that the one before was not in."""
        ib, rows = self._ib, self._rows
        fresh = local(ib, "fresh", te.min(top - self._top[0], 4))
        with ib.for_range(0, fresh, "row") as row:
            for upper, lower in zip(rows, rows[1:]):
                upper[0] = lower[0]
            rows[3][0] = self._in_row(top + 3 - fresh + row)
        self._top[0] = top
        return local(ib, "value", weighted((row[0] for row in rows), weights))

    def _in_row(self, row: tir.PrimExpr) -> tir.PrimExpr:
        row = local(self._ib, "row", self._down.inside(row))
        values = (self._maps[(*self._heatmap, row, place)].astype("float32") for place in self._places)
        return weighted(values, self._weights)


def _best_of_thread(
    ib: IRBuilder,
    heatmaps: Heatmaps,
    heatmap: tuple[tir.PrimExpr, tir.PrimExpr],
    down: Side,
    across: Side,
    thread: tir.PrimExpr,
) -> tir.PrimExpr:
    """A value with its place: the greatest, and of those that are equal the first, is the greatest int64."""
    warp, lane = tir.truncdiv(thread, LANES), tir.truncmod(thread, LANES)
    tops = ib.allocate("int32", ROWS, "tops", scope="shared")
    weights = ib.allocate("float32x4", ROWS, "weights", scope="shared")
    of_row = ib.allocate("float32", 4, "of_row", scope="local")
    (best,) = variables(ib, "int64", "best")
    (greatest,) = variables(ib, "float32", "greatest")
    where, a_number = variables(ib, "int32", "where", "a_number")
    best[0] = tir.min_value("int64")
    with ib.for_range(0, ceil_div(down.pixels, ROWS), "part") as part:
        first = local(ib, "first", part * ROWS)
        count = local(ib, "count", te.min(down.pixels - first, ROWS))
        barrier(ib)  # the part before is done with
        with ib.if_scope(thread < count):
            tops[thread], computed = heatmaps.neighbours(down, first + thread)
            for i, weight in enumerate(computed):
                of_row[i] = weight
            weights[thread] = of_row[ALL_FOUR]
        barrier(ib)
        begin, end = (local(ib, "row", tir.truncdiv(count * share, WARPS)) for share in (warp, warp + 1))
        with ib.for_range(0, ceil_div(across.pixels, LANES), "step") as step:
            x = local(ib, "x", step * LANES + lane)
            with ib.if_scope(x < across.pixels):
                column = _Column(ib, heatmaps, heatmap, down, across, x)
                greatest[0], where[0] = tir.const(-math.inf, "float32"), begin
                a_number[0] = tir.const(1)
                with ib.for_range(0, end - begin, "y") as y:
                    y = local(ib, "y", begin + y)
                    of_row[ALL_FOUR] = weights[y]
                    value = column.pixel(tops[y], [of_row[i] for i in range(4)])
                    # The order of `ordered_bits`, for fewer instructions: the first NaN is the greatest.
                    nan = local(ib, "nan", is_nan(value).astype("int32"))
                    above = (value > greatest[0]).astype("int32")
                    with ib.if_scope(((above | nan) & a_number[0]) != 0):
                        greatest[0], where[0], a_number[0] = value, y, 1 - nan
                place = LAST - ((first + where[0]) * across.pixels + x)
                key = (ordered_bits(greatest[0]).astype("int64") << 32) | place.astype("int64")
                best[0] = te.max(best[0], key)
    return best[0]


def _best_of_block(ib: IRBuilder, best: tir.PrimExpr, thread: tir.PrimExpr) -> tir.PrimExpr:
    """The greatest of the threads', for the first of them."""
    barrier(ib)  # what else is shared may lie in the same place
    shared = ib.allocate("int64", THREADS, "of_threads", scope="shared")
    shared[thread] = best
    half = THREADS // 2
    while half:
        barrier(ib)
        with ib.if_scope(thread < half):
            shared[thread] = te.max(shared[thread], shared[thread + half])
        half //= 2
    return local(ib, "best", shared[thread])
