"""Keypoints for LLVM: the heatmaps in parallel, each row by row, of which only one is there at a time."""

from __future__ import annotations

from collections.abc import Sequence

from .._tvm import IRBuilder, te, tir
from ..sort.order import ordered_bits
from .kernel import MAX_SIDE, Heatmaps, Keypoints, keypoints_of, weighted

BEFORE, BEYOND = 2, 2  # places that are read before the first of a row, and beyond the last


def heatmaps_to_keypoints(maps: te.Tensor, rois: te.Tensor) -> list[te.Tensor]:
    """The results of `topi_ext.heatmaps_to_keypoints`."""
    count, keypoints, _, length = maps.shape

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        heatmaps = Heatmaps(ib, *ins, scope="global")
        found = Keypoints(ib, *outs)
        with ib.for_range(0, count * keypoints, "heatmap", kind="parallel") as heatmap:
            number, keypoint = tir.truncdiv(heatmap, keypoints), tir.truncmod(heatmap, keypoints)
            down, across = heatmaps.sides(number)
            firsts = ib.allocate("int32", MAX_SIDE, "firsts", scope="global")
            columns = ib.allocate("float32", MAX_SIDE * 4, "columns", scope="global")
            with ib.for_range(0, across.pixels, "x") as x:
                low, weights = heatmaps.neighbours(across, x)
                firsts[x] = low - 1 + BEFORE
                for i, weight in enumerate(weights):
                    columns[x * 4 + i] = weight

            row = ib.allocate("float32", length + (BEFORE + BEYOND), "row", scope="global")
            best = heatmaps.local.variable("best", tir.min_value("int32"))
            position = heatmaps.local.variable("position", tir.const(0))
            with ib.for_range(0, down.pixels, "y") as y:
                low, weights = heatmaps.neighbours(down, y)
                with ib.for_range(0, length + (BEFORE + BEYOND), "at") as at:
                    column = across.inside(at - BEFORE)
                    above = (
                        heatmaps.maps[number, keypoint, down.inside(low - 1 + i), column] for i in range(4)
                    )
                    row[at] = weighted((value.astype("float32") for value in above), weights)
                with ib.for_range(0, across.pixels, "x") as x:
                    values = (row[firsts[x] + i] for i in range(4))
                    value = heatmaps.local("value", weighted(values, (columns[x * 4 + i] for i in range(4))))
                    key = heatmaps.local("key", ordered_bits(value))
                    with ib.if_scope(key > best[0]):
                        best[0] = key
                        position[0] = y * across.pixels + x

            found.write((number, keypoint), (down, across), position[0], best[0])
        return ib.get()

    return keypoints_of(maps, rois, emit)
