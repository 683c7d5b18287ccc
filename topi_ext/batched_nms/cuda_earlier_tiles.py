"""Phase 5 of `cuda_suppress`: which boxes of a tile are suppressed by kept boxes of earlier tiles."""

from __future__ import annotations

from .._kernel import barrier, clamp, local, variables
from .._tvm import atomic, te, tir
from .._warp import all_lanes, ballot, below, count_bits, count_threads
from .cuda_block import (
    FIRST_CLASS_FINAL,
    LATER_CLASSES_FINAL,
    Block,
    Loaded,
    Tile,
    class_of,
    fetch,
    uint32,
    uint64,
)
from .cuda_overlap import Box, BoxList, Overlap


def strike_by_earlier_tiles(block: Block, tile: Tile, own: Loaded, boxes: BoxList, overlap: Overlap) -> None:
    """Set the words `struck`: which of the bound boxes a kept box of an earlier tile suppresses.

    The threads of a box share its tests, and each goes on until it finds a box that suppresses it.
    """
    ib, shape = block.ib, block.shape
    start = _start_of_first_class(block, tile, own.first_class)
    (hit,) = variables(ib, "int32", "hit")
    hit[0] = tir.Select(block.has(block.bound[block.word]), 0, 1)  # boxes that are not bound need no tests
    earliest = local(ib, "earliest", tir.truncdiv(start, shape.boxes))
    with ib.for_range(0, tile.number - earliest, "earlier") as number:
        base = local(ib, "base", (earliest + number) * shape.boxes)
        count = _wait_and_list(block, tile, base, start, boxes)

        def found(_at: tir.PrimExpr) -> None:
            hit[0] = tir.const(1)

        overlap.suppressors(boxes, own.box, block.slice, count, shape.slices, hit[0] == 0, found)
    struck = local(ib, "struck_here", ballot(hit[0] != 0))
    with ib.if_scope(block.lane == 0):
        ib.emit(atomic("uint32", "Or", block.struck[block.word], struck))


def _start_of_first_class(block: Block, tile: Tile, first_class: tir.PrimExpr) -> tir.PrimExpr:
    """The place where the tile's first class begins.

    First the tiles that begin with this class are counted, backwards from the tile: each thread looks at the
    first box of one, in rounds until a round finds another class or the start of the row. Then the boxes of
    the class are counted in the tile before these.
    """
    ib, shape, keys = block.ib, block.shape, block.views["keys"]
    full, found = variables(ib, "int32", "full", "found")
    full[0] = tir.const(0)
    found[0] = tir.const(shape.threads)
    with ib.while_loop(found[0] == shape.threads):
        probed_tile = local(ib, "probed", tile.number - 1 - full[0] - block.thread)
        probed = class_of(keys[tile.row, te.max(probed_tile, 0) * shape.boxes])
        found[0] = count_threads((probed_tile >= 0) & (probed == first_class))
        full[0] = full[0] + found[0]
    begin = local(ib, "begin", (tile.number - full[0]) * shape.boxes)
    probed = class_of(keys[tile.row, te.max(begin - shape.boxes, 0) + block.box])
    found[0] = count_threads((block.slice == 0) & (begin > 0) & (probed == first_class))
    return local(ib, "start", begin - found[0])


def _wait_and_list(
    block: Block, tile: Tile, base: tir.PrimExpr, start: tir.PrimExpr, boxes: BoxList
) -> tir.PrimExpr:
    """Wait for the tile at `base`, and list its kept boxes from `start` on; the result is their number.

    Each thread fetches a box of that tile before the wait, since most tiles have to be waited for.
    """
    fetched = fetch(block, tile, base + block.box)
    _wait_for_kept(block, tile, base, start)
    barrier(block.ib)
    return _list_kept(block, fetched, boxes)


def _wait_for_kept(block: Block, tile: Tile, base: tir.PrimExpr, start: tir.PrimExpr) -> None:
    """Spin until the class that begins at `start` is final in the tile at `base`, and set `earlier_kept`.

    Each word is for one thread. The class is a later one of that tile, if the tile begins before `start`, and
    else its first one.
    """
    ib = block.ib
    with ib.if_scope(block.thread < block.shape.words):
        state = ib.allocate("uint64", (1,), name="state", scope="local")
        published = block.views["states"][tile.row, tir.truncdiv(base, 32) + block.thread]
        this_class = tir.Select(base < start, uint64(LATER_CLASSES_FINAL), uint64(FIRST_CLASS_FINAL))
        needed = local(ib, "needed", this_class)
        state[0] = atomic("uint64", "Or", published, uint64(0))
        with ib.while_loop((state[0] & needed) == uint64(0)):
            state[0] = atomic("uint64", "Or", published, uint64(0))
        before_start = clamp(start - base - block.thread * 32, 0, 32)
        from_start = tir.Select(
            before_start == 32,
            uint32(0),
            all_lanes() << te.min(before_start, 31).astype("uint32"),
        )
        block.earlier_kept[block.thread] = state[0].astype("uint32") & from_start


def _list_kept(block: Block, fetched: Box, boxes: BoxList) -> tir.PrimExpr:
    """List the fetched boxes that are in `earlier_kept`, in order; the result is their number."""
    ib = block.ib
    ahead, total = variables(ib, "int32", "ahead", "total")
    ahead[0] = tir.const(0)
    total[0] = tir.const(0)
    kept = local(ib, "kept_there", block.earlier_kept[block.word])
    with ib.for_range(0, block.shape.words, "kept_word", kind="unroll") as word:
        here = local(ib, "here", count_bits(block.earlier_kept[word]))
        ahead[0] = ahead[0] + tir.Select(word < block.word, here, 0)
        total[0] = total[0] + here
    with ib.if_scope((block.slice == 0) & block.has(kept)):
        boxes[ahead[0] + count_bits(kept & below(block.lane))] = fetched
    barrier(ib)
    return total[0]
