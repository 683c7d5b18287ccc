"""Phases 3, 4 and 6 of `cuda_suppress`: which boxes of a tile suppress which others of it."""

from __future__ import annotations

from collections.abc import Callable

from .._kernel import local, variables
from .._tvm import atomic, te, tir
from .._warp import all_lanes, ballot
from .cuda_block import Block, Loaded, Tile, uint32
from .cuda_overlap import BoxList, Overlap


class Rivals:
    """The rivals of each box: the boxes of the tile that suppress it, if they are kept.

    They are of its class and come before it. In shared memory, each box has a word for each word of the tile
    up to its own; words after that are neither written nor read.
    """

    def __init__(self, block: Block) -> None:
        shape, self._block = block.shape, block
        self._words = block.ib.allocate("uint32", (shape.words * shape.boxes,), name="before", scope="shared")

    def find(self, own: Loaded, begin_of_class: tir.PrimExpr, boxes: BoxList, overlap: Overlap) -> None:
        """Write the words of the thread's box; the threads of a box share its words."""
        block, ib, shape = self._block, self._block.ib, self._block.shape
        (bits,) = variables(ib, "uint32", "bits")
        with ib.for_range(0, shape.words // shape.slices, "round") as turn:
            word = local(ib, "of_word", turn * shape.slices + block.slice)
            with ib.if_scope(word <= block.word):
                bits[0] = uint32(0)

                def found(at: tir.PrimExpr, word: tir.PrimExpr = word) -> None:
                    bits[0] = bits[0] | (uint32(1) << (at - word * 32).astype("uint32"))

                begin = te.max(word * 32, begin_of_class)
                end = local(ib, "end", te.min(word * 32 + 32, block.box))
                with ib.if_scope(own.takes_part != 0):
                    overlap.suppressors(boxes, own.box, begin, end, 1, tir.const(True), found)
                self._words[word * shape.boxes + block.box] = bits[0]

    def of_lane(self, other: tir.PrimExpr, word: tir.PrimExpr) -> tir.PrimExpr:
        """Which boxes of another word are rivals of the lane's box of a word."""
        return self._words[other * self._block.shape.boxes + word * 32 + self._block.lane]


# --- phase 3


def look_within_tile(block: Block, own: Loaded, boxes: BoxList, overlap: Overlap, rivals: Rivals) -> None:
    """Write which boxes of the tile are free and which are bound, and the rivals of each box."""
    begin_of_class = _begin_of_class(block)
    _tell_free_from_bound(block, own, begin_of_class)
    rivals.find(own, begin_of_class, boxes, overlap)


def _begin_of_class(block: Block) -> tir.PrimExpr:
    """Where in the tile the class of the thread's box begins: the last head up to this box."""
    ib = block.ib
    (head,) = variables(ib, "int32", "head")
    head[0] = tir.const(0)
    up_to_lane = all_lanes() >> (31 - block.lane).astype("uint32")
    with ib.for_range(0, block.shape.words, "head_word", kind="unroll") as word:
        all_or_some = tir.Select(word == block.word, up_to_lane, all_lanes())
        begins = local(ib, "begins_here", block.heads[word] & all_or_some)
        with ib.if_scope((word <= block.word) & (begins != uint32(0))):
            head[0] = word * 32 + 31 - tir.call_pure_extern("int32", "__clz", begins)
    return head[0]


def _tell_free_from_bound(block: Block, own: Loaded, begin_of_class: tir.PrimExpr) -> None:
    """Write `free` and `bound`: bound are the boxes of the first class, if the tile waits."""
    ib = block.ib
    is_bound = (own.waits != 0) & (begin_of_class == 0)
    bound = local(ib, "bound", ballot((own.takes_part != 0) & is_bound))
    free = local(ib, "free", ballot((own.takes_part != 0) & ((own.waits == 0) | (begin_of_class != 0))))
    with ib.if_scope((block.slice == 0) & (block.lane == 0)):
        block.bound[block.word] = bound
        block.free[block.word] = free


# --- phases 4 and 6


def resolve(
    block: Block,
    tile: Tile,
    rivals: Rivals,
    undecided: Callable[[tir.PrimExpr], tir.PrimExpr],  # the bits of a word
    flags: tir.PrimExpr,
) -> None:
    """Decide which of the undecided boxes are kept, and publish them with these flags.

    One warp does it, word after word, each lane for one box of the word. First it drops the boxes with kept
    rivals in the words before. Then, in each turn, it keeps all boxes that have no undecided rivals, and
    drops the boxes that have these as rivals. Each turn decides at least one box: the first undecided one has
    no undecided rivals.
    """
    ib, words, zero = block.ib, block.shape.words, uint32(0)
    kept = ib.allocate("uint32", (words,), name="kept_of_word", scope="local")
    of_box, open_, new, own = variables(ib, "uint32", "rivals", "undecided", "kept_now", "own")
    own[0] = zero
    mask = local(ib, "lane_mask", uint32(1) << block.lane.astype("uint32"))
    with ib.for_range(0, words, "resolved_word", kind="unroll") as word:
        kept[word] = zero
        open_[0] = undecided(word)
        with ib.if_scope(open_[0] != zero):
            of_box[0] = zero  # of the lane's box, the kept rivals in the words before
            others = ib.for_range(0, words, "other_word", kind="unroll")
            with others as other, ib.if_scope(other < word):
                of_box[0] = of_box[0] | (rivals.of_lane(other, word) & kept[other])
            open_[0] = open_[0] & ballot(of_box[0] == zero)
            of_box[0] = rivals.of_lane(word, word)  # and now all rivals in the word
            with ib.while_loop(open_[0] != zero):
                is_open = (open_[0] & mask) != zero
                new[0] = ballot(is_open & ((of_box[0] & open_[0]) == zero))
                kept[word] = kept[word] | new[0]
                open_[0] = open_[0] & ~new[0] & ballot((of_box[0] & new[0]) == zero)
        own[0] = tir.Select(block.lane == word, kept[word], own[0])
    with ib.if_scope(block.lane < words):
        own[0] = own[0] | block.kept[block.lane]
        block.kept[block.lane] = own[0]
        published = block.views["states"][tile.row, tile.number * words + block.lane]
        value = own[0].astype("uint64") | flags
        ib.emit(atomic("uint64", "Exch", published, value))
