"""Keypoints on CUDA: a block for each heatmap, whose scaled map is never stored.

A lane takes columns, a warp some rows of them. While a lane goes down a column it keeps what the column is in
the four rows of the heatmap that it is between, so a pixel reads the heatmap only where those change; they
change for all lanes of a warp at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import barrier, ceil_div, launch, local, variables
from .._tvm import IRBuilder, te, tir
from ..sort.order import from_ordered_bits, ordered_bits
from .kernel import Heatmaps, Side, weighted

LANES, WARPS = 32, 8
THREADS = LANES * WARPS
LAST = (1 << 31) - 1  # no place in a map is beyond


def heatmaps_to_keypoints(maps: te.Tensor, rois: te.Tensor) -> list[te.Tensor]:
    """The results of `topi_ext.heatmaps_to_keypoints`."""
    count, keypoints = maps.shape[:2]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        heatmaps = Heatmaps(ib, *ins, scope="local")
        places, scores = map(ib.buffer_ptr, outs)
        blocks = count * keypoints
        with ib.if_scope(tir.const(0, "int32") < blocks), launch(ib, blocks, THREADS) as (block, thread):
            number = local(ib, "number", tir.truncdiv(block, keypoints))
            keypoint = local(ib, "keypoint", tir.truncmod(block, keypoints))
            down, across = heatmaps.sides(number)
            best = _best_of_thread(ib, heatmaps, (number, keypoint), down, across, thread)
            best = _best_of_block(ib, best, thread)
            with ib.if_scope(thread == 0):
                with ib.if_scope(across.pixels > 0):
                    position = local(ib, "position", LAST - (best & LAST).astype("int32"))
                    places[number, keypoint, 0] = across.centre(tir.truncmod(position, across.pixels))
                    places[number, keypoint, 1] = down.centre(tir.truncdiv(position, across.pixels))
                    places[number, keypoint, 2] = tir.const(1.0)
                    scores[number, keypoint] = from_ordered_bits((best >> 32).astype("int32"))
                with ib.else_scope():
                    for i in range(3):
                        places[number, keypoint, i] = tir.const(0.0)
                    scores[number, keypoint] = tir.const(0.0)
        return ib.get()

    shapes = [[count, keypoints, 3], [count, keypoints]]
    return te.extern(shapes, [maps, rois], emit, dtype=["float32"] * 2, name="heatmaps_to_keypoints")


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
    begin, end = (local(ib, "row", tir.truncdiv(down.pixels * share, WARPS)) for share in (warp, warp + 1))
    (best,) = variables(ib, "int64", "best")
    (read,) = variables(ib, "int32", "read")
    rows = ib.allocate("float32", 4, "rows", scope="local")
    best[0] = tir.min_value("int64")
    with ib.for_range(0, ceil_div(across.pixels, LANES), "step") as step:
        x = local(ib, "x", step * LANES + lane)
        with ib.if_scope(x < across.pixels):
            left, across_weights = heatmaps.neighbours(across, x)
            columns = [local(ib, "column", across.inside(left - 1 + i)) for i in range(4)]
            read[0] = tir.min_value("int32")
            with ib.for_range(0, end - begin, "y") as y:
                y = local(ib, "y", begin + y)
                top, down_weights = heatmaps.neighbours(down, y)
                with ib.if_scope(top != read[0]):
                    read[0] = top
                    for i in range(4):
                        row = local(ib, "row", down.inside(top - 1 + i))
                        values = [heatmaps.maps[(*heatmap, row, column)] for column in columns]
                        rows[i] = weighted((value.astype("float32") for value in values), across_weights)
                value = local(ib, "value", weighted((rows[i] for i in range(4)), down_weights))
                place = (LAST - (y * across.pixels + x)).astype("int64")
                key = local(ib, "key", (ordered_bits(value).astype("int64") << 32) | place)
                best[0] = te.max(best[0], key)
    return best[0]


def _best_of_block(ib: IRBuilder, best: tir.PrimExpr, thread: tir.PrimExpr) -> tir.PrimExpr:
    """The greatest of the threads', for the first of them."""
    shared = ib.allocate("int64", THREADS, "of_threads", scope="shared")
    shared[thread] = best
    half = THREADS // 2
    while half:
        barrier(ib)
        with ib.if_scope(thread < half):
            shared[thread] = te.max(shared[thread], shared[thread + half])
        half //= 2
    return local(ib, "best", shared[thread])
