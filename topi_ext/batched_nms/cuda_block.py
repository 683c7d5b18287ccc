"""Phases 1 and 2 of `cuda_suppress`: a block of threads takes a tile of the sorted boxes, and loads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._kernel import barrier, local
from .._tvm import IRBuilder, atomic, te, tir
from .._types import IntExpr
from .._warp import Part, ballot
from .cuda_overlap import CORNERS, Box, BoxList, area

LAST = 2**63 - 1  # the key of boxes that do not take part
LATER_CLASSES_FINAL, FIRST_CLASS_FINAL = 1 << 32, 2 << 32  # in a published state
ALL_FINAL = LATER_CLASSES_FINAL | FIRST_CLASS_FINAL


@dataclass(frozen=True)
class SuppressShape:
    """The size of a tile and of a block."""

    boxes: int  # in a tile; a multiple of 32, and at most 1024, so that a warp has a lane for each word
    slices: int  # threads that share the tests of one box; divides the number of words

    def __post_init__(self) -> None:
        if self.boxes % 32 or self.words % self.slices:
            raise ValueError(f"{self}: boxes fill words of 32, and as many of these are for each slice")

    @property
    def words(self) -> int:
        return self.boxes // 32

    @property
    def threads(self) -> int:
        return self.boxes * self.slices


class Block:
    """Which thread of its block this is, and words in shared memory."""

    def __init__(
        self,
        ib: IRBuilder,
        shape: SuppressShape,
        thread: tir.PrimExpr,
        length: IntExpr,
        views: dict[str, Any],
    ) -> None:
        self.ib, self.shape, self.thread, self.length, self.views = ib, shape, thread, length, views
        self.box = local(ib, "box", tir.truncmod(thread, shape.boxes))  # of the tile, this thread's
        self.slice = local(ib, "slice", tir.truncdiv(thread, shape.boxes))
        self.lane = local(ib, "lane", tir.truncmod(thread, 32))
        self.word = local(ib, "word", tir.truncdiv(self.box, 32))  # of the tile, with a bit for the box
        # All are parts of one array. If they were several, TVM might put one in the place of another that is
        # no longer used, without the barrier that this needs. Each has a bit for each box of the tile.
        bits = ib.allocate("uint32", (6 * shape.words + 1,), name="bits", scope="shared")
        (
            self.heads,  # whether the box is the first of its class in the tile
            self.free,  # whether it takes part, and no earlier tile has boxes of its class
            self.bound,  # whether it takes part, and earlier tiles have boxes of its class
            self.struck,  # of bound boxes, whether a kept box of an earlier tile suppresses it
            self.kept,  # whether it is kept
            self.earlier_kept,  # of an earlier tile, whether its box is kept and may suppress bound ones
            self.ticket,  # one word, not of bits: the ticket of the block
        ) = (Part(bits, number * shape.words) for number in range(7))

    def has(self, bits: tir.PrimExpr) -> tir.PrimExpr:
        """Whether the lane's bit is set."""
        return ((bits >> self.lane.astype("uint32")) & uint32(1)) != uint32(0)


# --- phase 1


@dataclass(frozen=True)
class Tile:
    """The tile that a block has taken."""

    row: tir.PrimExpr
    number: tir.PrimExpr  # in the row
    first: tir.PrimExpr  # the place of its first box


def take_tile(block: Block, rows: IntExpr) -> Tile:
    """Take a ticket: the first ones are for the first tile of each row, the next ones for the second."""
    ib, shape = block.ib, block.shape
    with ib.if_scope(block.thread == 0):
        block.ticket[0] = atomic("uint32", "Add", block.views["ticket"][0], uint32(1))
    barrier(ib)
    number = local(ib, "number", block.ticket[0].astype("int32"))
    row = local(ib, "row", tir.truncmod(number, rows))
    tile = local(ib, "tile", tir.truncdiv(number, rows))
    return Tile(row, tile, local(ib, "first", tile * shape.boxes))


# --- phase 2


@dataclass(frozen=True)
class Loaded:
    """What a thread knows of its box, and of the class that the tile begins with."""

    box: Box
    takes_part: tir.PrimExpr  # int32, 0 or 1
    first_class: tir.PrimExpr
    waits: tir.PrimExpr  # int32, 0 or 1: whether the class begins in an earlier tile


def load(block: Block, tile: Tile, boxes: BoxList) -> Loaded:
    """Load the thread's box, list the boxes of the tile, and mark where classes begin."""
    ib, row, keys = block.ib, tile.row, block.views["keys"]
    exists = tile.first + block.box < block.length
    place = local(ib, "place", te.min(tile.first + block.box, block.length - 1))
    key = local(ib, "key", keys[row, place])
    takes_part = local(ib, "takes_part", (exists & (key != tir.const(LAST, "int64"))).astype("int32"))
    box = fetch(block, tile, place)

    first_key = local(ib, "first_key", keys[row, tile.first])
    first_class = local(ib, "first_class", class_of(first_key))
    before_tile = class_of(keys[row, te.max(tile.first - 1, 0)])
    waits = (tile.number > 0) & (first_key != tir.const(LAST, "int64")) & (before_tile == first_class)
    waits = local(ib, "waits", waits.astype("int32"))

    class_before = class_of(keys[row, te.max(place - 1, 0)])
    begins = local(ib, "begins", ballot((block.box == 0) | (class_before != class_of(key))))
    with ib.if_scope(block.slice == 0):
        boxes[block.box] = box
        with ib.if_scope(block.lane == 0):
            block.heads[block.word] = begins
            block.struck[block.word] = uint32(0)
            block.kept[block.word] = uint32(0)
    barrier(ib)
    return Loaded(box, takes_part, first_class, waits)


def fetch(block: Block, tile: Tile, place: tir.PrimExpr) -> Box:
    """The box at a place of the tile's row, in registers."""
    ib, views = block.ib, block.views
    corners = ib.allocate("float32", (4,), name="fetched", scope="local")
    corners[CORNERS] = views["sorted_boxes"][tile.row, place, CORNERS]
    rest = None
    if "rest_of_id" in views:
        rest = local(ib, "fetched_rest", views["rest_of_id"][tile.row, place])
    return Box(corners, local(ib, "fetched_area", area(*[corners[i] for i in range(4)])), rest)


# --- small things


def class_of(key: tir.PrimExpr) -> tir.PrimExpr:
    """The class in a key of the first sort; in `LAST` too, where it has no meaning."""
    return (key >> 32).astype("int32")


def uint32(value: int) -> tir.PrimExpr:
    return tir.const(value, "uint32")


def uint64(value: int) -> tir.PrimExpr:
    return tir.const(value, "uint64")
