"""The kernel that decides which boxes are kept, once they are sorted by class and score, phase by phase.

A box can only be suppressed by a box before it, of the same class. The result is that of visiting the boxes
one by one; but each block works on a tile of 128 or 256 boxes, and many tiles are worked on at the same time.
A tile depends on earlier ones only if a class goes on from one tile to the next. Then that is the later
tile's first class, the class of its first box. The phases of a block:

1. Take a tile (`take_tile`), by a ticket from a global counter.
   Result: the row, that is the item of the batch, and the tile's number in it.
2. Load (`load`). Result: in registers, the thread's box, and whether the tile waits, that is whether its
   first class begins in an earlier tile; in shared memory, the list of the tile's boxes, and `heads`.
3. Look within the tile (`look_within_tile`). Each box is tested against the boxes before it, of its class and
   in the tile. Result: in shared memory, its rivals, those that suppress it if they are kept; and which boxes
   are free, and which are bound: bound are those of the first class, if the tile waits.
4. Resolve the free boxes (`resolve`), by one warp. Result: which of them are kept, published to all blocks.

Only if the tile waits:

5. Strike (`strike_by_earlier_tiles`). For each earlier tile that has boxes of the first class, in order: wait
   until it is published, list its kept boxes of this class, and test the bound boxes against the list.
   Result: in shared memory, the bound boxes that are struck, that is suppressed by one of these.
6. Resolve the bound boxes that are not struck (`resolve`), by one warp. Result: which boxes of the tile are
   kept, published to all blocks.

For all tiles:

7. Report (`_report`). Result: in `verdicts`, which boxes are kept, and their number.

Conventions
-----------
- A class is the upper half of a key. Different class ids may share it; `Overlap` tells them apart, so this
  costs time and nothing else.
- A place is the number of a box in its row, in sorted order. A word has a bit for each of 32 boxes in a row,
  bit 0 for the first. A tile has `shape.boxes` boxes in `shape.words` words.
- Thread `slice * shape.boxes + box` is for this box of the tile: `shape.slices` threads share its tests. So a
  warp is for one word, and all its lanes are in the same slice.
- A box does not take part if its key is `LAST`, because of its score or of the valid count. Such boxes, and
  threads beyond the end of the row, are neither free nor bound.
- A published state has 64 bits for each word of boxes. The lower half says which boxes are kept. A flag says
  that this is final for the first class, another one that it is final for all later classes.

Synchronization
---------------
All threads of the block reach every barrier (`barrier`, `count_threads`): the branches and loops around one
depend only on what is the same in all threads, which is the tile, `waits`, where the first class begins, and
what `count_threads` finds. All lanes of a warp reach every ballot: the branches and loops around those in
`resolve` depend only on ballots and on words in shared memory.

There is a barrier between a write to shared memory and each read or write of the same place by another
thread:

    array                written in   read in   barrier before reading   barrier before writing again
    ticket               1            1         in 1                     (written once)
    heads                2            3         at the end of 2          (written once)
    free, bound, rivals  3            4, 5, 6   after 3                  (written once)
    list of boxes        2            3         at the end of 2          after 3
                         5            5         in 5, after listing      in 5, after waiting
    earlier_kept         5            5         in 5, after waiting      in 5, after listing
    struck               2, 5         6         after 5                  at the end of 2; in 5 it is atomic
    kept                 2, 4, 6      6, 7      before 7                 at the end of 2; in 4 and 6, a word
                                                                         belongs to the same lane

Between blocks, only the published states are written by one and read by another. They are accessed by atomic
functions, and each says by itself all that its reader needs, so there is no need for fences. The boxes and
the keys were written by earlier kernels.

Bounds and termination
----------------------
- A place is clamped to the row before anything is read there; earlier tiles are always full. The list of
  boxes has room for as much as `Overlap.suppressors` reads beyond the end.
- There can be no deadlock, however few blocks fit onto the GPU. A block waits only for tiles of lower
  tickets, and blocks that run already have taken those. So of the tiles that are not finished, the one with
  the lowest ticket waits for nothing.
- All other loops end: each turn of `resolve` decides a box, and each turn of `Overlap.suppressors` and of the
  search for the start of a class moves on in the row.
"""

from __future__ import annotations

from .._kernel import barrier, ceil_div, launch, variables
from .._tvm import atomic, te, tir
from .._warp import count_bits
from .cuda_block import (
    ALL_FINAL,
    LAST,
    LATER_CLASSES_FINAL,
    Block,
    SuppressShape,
    Tile,
    load,
    take_tile,
    uint64,
)
from .cuda_earlier_tiles import strike_by_earlier_tiles
from .cuda_overlap import PROBES, BoxList, Overlap
from .cuda_problem import Problem
from .cuda_within_tile import Rivals, look_within_tile, resolve

__all__ = ["LARGE_TILES", "LAST", "NOT_KEPT", "SMALL_TILES", "SuppressShape", "emit_suppress", "shape_for"]

NOT_KEPT = 2**31 - 1  # a verdict; that of a kept box is less, and the less, the higher its score
SMALL_TILES, LARGE_TILES = SuppressShape(128, 4), SuppressShape(256, 2)


def shape_for(are_few: bool) -> SuppressShape:
    """Measured on an H200: small tiles save up to 38% of the time of an NMS of few boxes.

    Where a class has 20,000, which wait for each other tile by tile, they cost 20%.
    """
    return SMALL_TILES if are_few else LARGE_TILES


def emit_suppress(problem: Problem) -> None:
    """Emit the kernel: from `keys`, `sorted_boxes` and the like to `verdicts` and `count`.

    The limit is for `count` only.
    """
    ib, rows, length, views, shape = problem.ib, problem.rows, problem.length, problem.views, problem.shape
    with launch(ib, rows * ceil_div(length, shape.boxes), shape.threads) as (_, thread):
        block = Block(ib, shape, thread, length, views)
        tile = take_tile(block, rows)  # 1
        overlap = Overlap(ib, views["iou_threshold"][()])
        boxes = BoxList(ib, shape.boxes + (PROBES - 1) * shape.slices, "rest_of_id" in views)
        rivals = Rivals(block)
        own = load(block, tile, boxes)  # 2
        look_within_tile(block, own, boxes, overlap, rivals)  # 3
        barrier(ib)
        with ib.if_scope(thread < 32):  # 4
            flags = tir.Select(own.waits != 0, uint64(LATER_CLASSES_FINAL), uint64(ALL_FINAL))
            resolve(block, tile, rivals, lambda word: block.free[word], flags)
        with ib.if_scope(own.waits != 0):
            strike_by_earlier_tiles(block, tile, own, boxes, overlap)  # 5
            barrier(ib)
            with ib.if_scope(thread < 32):  # 6
                resolve(
                    block,
                    tile,
                    rivals,
                    lambda word: block.bound[word] & ~block.struck[word],
                    uint64(ALL_FINAL),
                )
        barrier(ib)
        _report(block, tile, problem.limit)  # 7


def _report(block: Block, tile: Tile, limit: int | None) -> None:
    """Write the verdict of each kept box to where it stood before the sort, and count them."""
    ib, views, row = block.ib, block.views, tile.row
    place = tile.first + block.box
    is_kept = block.has(block.kept[block.word])
    with ib.if_scope((block.slice == 0) & (place < block.length) & is_kept):
        descending = views["keys"][row, place] & tir.const(0xFFFFFFFF, "int64")
        verdict = (descending - tir.const(2**31, "int64")).astype("int32")
        views["verdicts"][row, views["order"][row, place]] = verdict
    with ib.if_scope(block.thread == 0):
        (total,) = variables(ib, "int32", "kept_count")
        total[0] = tir.const(0)
        with ib.for_range(0, block.shape.words, "count_word", kind="unroll") as word:
            total[0] = total[0] + count_bits(block.kept[word])
        if limit is None:
            ib.emit(atomic("int32", "Add", views["count"][row], total[0]))
        else:
            total[0] = total[0] + atomic("int32", "Add", views["total"][row], total[0])
            ib.emit(atomic("int32", "Max", views["count"][row], te.min(total[0], limit)))
