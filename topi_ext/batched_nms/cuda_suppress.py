"""The kernel that decides which boxes are kept, once they are sorted by class and score.

A block takes a tile of the sorted boxes. Within it, each box notes by which boxes before it in the tile it
would be suppressed. Then the tiles before it that hold boxes of its first class are waited for in turn, and
tested against: only boxes that are kept count. Last, the tile resolves what is left within itself, and
publishes it. Classes that begin within the tile need not wait, and are published at once.

Blocks take tiles in the order in which they start to run. So a block that waits, waits for blocks that run
already, and some block always goes on: there can be no deadlock, however few blocks fit onto the GPU.

What is published is a word of 64 bits for 32 boxes: which of them are kept, and how much of that is final.
It is read and written by atomic functions only, so it needs no fences; the boxes themselves were written by
a kernel before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar, IRBuilder

from .._kernel import barrier, ceil_div, clamp, launch, local, variables
from .._types import IntExpr
from .._warp import ALL_LANES, Part, ballot, count_bits, count_threads
from .cuda_overlap import CORNERS, PROBES, Box, BoxList, Overlap, area

LAST = 2**63 - 1  # the key of boxes that do not take part
NOT_KEPT = 2**31 - 1  # a verdict; that of a kept box is less, and the lesser the higher its score
LATER_CLASSES_FINAL, FIRST_CLASS_FINAL = 1 << 32, 2 << 32  # in a published word
ALL_FINAL = LATER_CLASSES_FINAL | FIRST_CLASS_FINAL


@dataclass(frozen=True)
class SuppressShape:
    boxes: int  # in a tile; a multiple of 32
    slices: int  # threads that share the tests of one box

    @property
    def words(self) -> int:
        return self.boxes // 32

    @property
    def threads(self) -> int:
        return self.boxes * self.slices


SHAPE = SuppressShape(256, 2)


def emit_suppress(
    ib: IRBuilder, rows: IntExpr, length: IntExpr, limit: int | None, views: dict[str, Any]
) -> None:
    """Emit the kernel: from `keys`, `sorted_boxes` and the like to `verdicts` and `count`."""
    tiles = ceil_div(length, SHAPE.boxes)
    with launch(ib, rows * tiles, SHAPE.threads) as (_, thread):
        _Suppress(ib, thread, rows, length, limit, views).emit()


class _Suppress:
    """A block's code; its parts share what they have in shared memory and in registers."""

    def __init__(
        self,
        ib: IRBuilder,
        thread: tir.PrimExpr,
        rows: IntExpr,
        length: IntExpr,
        limit: int | None,
        views: dict[str, Any],
    ) -> None:
        self.ib, self.thread, self.length, self.limit, self.views = ib, thread, length, limit, views
        self.box = local(ib, "box", tir.truncmod(thread, SHAPE.boxes))  # of the tile, this thread's
        self.slice = local(ib, "slice", tir.truncdiv(thread, SHAPE.boxes))
        self.lane = local(ib, "lane", tir.truncmod(thread, 32))
        self.word = local(ib, "word", tir.truncdiv(self.box, 32))
        # One array, since TVM would let one of several take the place of another that is no longer used, and
        # leave out the barrier which that needs. Bits of the tile's boxes: begins a class; needs no earlier
        # tile; needs them; is suppressed by them; is kept. Then those kept of an earlier tile.
        bits = self._shared("uint32", 6 * SHAPE.words + 1, "bits")
        self.heads, self.free, self.bound, self.struck, self.kept, self.earlier_kept, ticket = (
            Part(bits, start * SHAPE.words) for start in range(7)
        )
        with ib.if_scope(thread == 0):
            ticket[0] = _atomic("uint32", "Add", views["ticket"][0], tir.const(1, "uint32"))
        barrier(ib)
        number = local(ib, "number", ticket[0].astype("int32"))
        self.row = local(ib, "row", tir.truncmod(number, rows))
        self.tile = local(ib, "tile", tir.truncdiv(number, rows))
        self.first = local(ib, "first", self.tile * SHAPE.boxes)
        self.overlap = Overlap(ib, views["iou_threshold"][()])
        self.list = BoxList(ib, SHAPE.boxes + (PROBES - 1) * SHAPE.slices, "rest_of_id" in views)
        # Bit j of before[word][box]: the j-th box of that word would suppress the box.
        self.before = self._shared("uint32", SHAPE.words * SHAPE.boxes, "before")

    def emit(self) -> None:
        ib = self.ib
        self._load()
        self._look_within_tile()
        barrier(ib)
        with ib.if_scope(self.thread < 32):
            self._resolve(
                lambda word: self.free[word],
                tir.Select(self.waits != 0, _u64(LATER_CLASSES_FINAL), _u64(ALL_FINAL)),
            )
        with ib.if_scope(self.waits != 0):
            self._test_against_earlier_tiles()
            barrier(ib)
            with ib.if_scope(self.thread < 32):
                self._resolve(lambda word: self.bound[word] & ~self.struck[word], _u64(ALL_FINAL))
        barrier(ib)
        self._report()

    def _load(self) -> None:
        """The thread's box, and what of the tile belongs to which class."""
        ib, views, row = self.ib, self.views, self.row
        exists = self.first + self.box < self.length
        place = local(ib, "place", te.min(self.first + self.box, self.length - 1))
        key = local(ib, "key", views["keys"][row, place])
        self.takes_part = local(
            ib, "takes_part", (exists & (key != tir.const(LAST, "int64"))).astype("int32")
        )
        self.mine = self._fetch(place)

        first_key = local(ib, "first_key", views["keys"][row, self.first])
        self.first_class = local(ib, "first_class", _class_of(first_key))
        before_tile = _class_of(views["keys"][row, te.max(self.first - 1, 0)])
        waits = (self.tile > 0) & (first_key != tir.const(LAST, "int64")) & (before_tile == self.first_class)
        self.waits = local(ib, "waits", waits.astype("int32"))

        class_before = _class_of(views["keys"][row, te.max(place - 1, 0)])
        begins = local(ib, "begins", ballot((self.box == 0) | (class_before != _class_of(key))))
        with ib.if_scope(self.slice == 0):
            self.list[self.box] = self.mine
            with ib.if_scope(self.lane == 0):
                self.heads[self.word] = begins
                self.struck[self.word] = tir.const(0, "uint32")
                self.kept[self.word] = tir.const(0, "uint32")
        barrier(ib)

    def _fetch(self, place: tir.PrimExpr) -> Box:
        """The box at this place of the row, in registers."""
        corners = self.ib.allocate("float32", (4,), name="fetched", scope="local")
        corners[CORNERS] = self.views["sorted_boxes"][self.row, place, CORNERS]
        rest = None
        if "rest_of_id" in self.views:
            rest = local(self.ib, "fetched_rest", self.views["rest_of_id"][self.row, place])
        return Box(corners, local(self.ib, "fetched_area", area(*[corners[i] for i in range(4)])), rest)

    def _look_within_tile(self) -> None:
        """Note for each box which of the boxes before it, of its class and in the tile, would suppress it."""
        ib = self.ib
        (head,) = variables(ib, "int32", "head")  # where in the tile the box's class begins
        head[0] = tir.const(0)
        up_to_lane = ALL_LANES >> (31 - self.lane).astype("uint32")
        with ib.for_range(0, SHAPE.words, "head_word", kind="unroll") as word:
            all_or_some = tir.Select(word == self.word, up_to_lane, ALL_LANES)
            begins = local(ib, "begins_here", self.heads[word] & all_or_some)
            with ib.if_scope((word <= self.word) & (begins != tir.const(0, "uint32"))):
                head[0] = word * 32 + 31 - tir.call_pure_extern("int32", "__clz", begins)
        is_bound = (self.waits != 0) & (head[0] == 0)
        bound = local(ib, "bound", ballot((self.takes_part != 0) & is_bound))
        free = local(ib, "free", ballot((self.takes_part != 0) & ((self.waits == 0) | (head[0] != 0))))
        with ib.if_scope((self.slice == 0) & (self.lane == 0)):
            self.bound[self.word] = bound
            self.free[self.word] = free

        (bits,) = variables(ib, "uint32", "bits")
        with ib.for_range(0, SHAPE.words // SHAPE.slices, "round") as turn:
            word = local(ib, "of_word", turn * SHAPE.slices + self.slice)
            with ib.if_scope(word <= self.word):
                bits[0] = tir.const(0, "uint32")

                def found(at: tir.PrimExpr, word: tir.PrimExpr = word) -> None:
                    bits[0] = bits[0] | (tir.const(1, "uint32") << (at - word * 32).astype("uint32"))

                begin = te.max(word * 32, head[0])
                end = local(ib, "end", te.min(word * 32 + 32, self.box))
                with ib.if_scope(self.takes_part != 0):
                    self.overlap.suppressors(self.list, self.mine, begin, end, 1, tir.const(True), found)
                self.before[word * SHAPE.boxes + self.box] = bits[0]

    def _test_against_earlier_tiles(self) -> None:
        """Strike out the boxes of the first class that kept boxes of earlier tiles suppress."""
        ib = self.ib
        start = self._start_of_first_class()
        (hit,) = variables(ib, "int32", "hit")
        hit[0] = tir.Select(self._has(self.bound[self.word]), 0, 1)
        earliest = local(ib, "earliest", tir.truncdiv(start, SHAPE.boxes))
        with ib.for_range(0, self.tile - earliest, "earlier") as number:
            base = local(ib, "base", (earliest + number) * SHAPE.boxes)
            count = self._list_kept(base, start)

            def found(_at: tir.PrimExpr) -> None:
                hit[0] = tir.const(1)

            self.overlap.suppressors(
                self.list, self.mine, self.slice, count, SHAPE.slices, hit[0] == 0, found
            )
        struck = local(ib, "struck_here", ballot(hit[0] != 0))
        with ib.if_scope(self.lane == 0):
            ib.emit(_atomic("uint32", "Or", self.struck[self.word], struck))

    def _start_of_first_class(self) -> tir.PrimExpr:
        """Where in the row the class begins that the tile begins with.

        The threads look at the first boxes of as many tiles at once, and then into the tile before those.
        """
        ib, keys, row = self.ib, self.views["keys"], self.row
        full, found = variables(ib, "int32", "full", "found")
        full[0] = tir.const(0)
        found[0] = tir.const(SHAPE.threads)
        with ib.while_loop(found[0] == SHAPE.threads):
            tile = local(ib, "probed", self.tile - 1 - full[0] - self.thread)
            probed = _class_of(keys[row, te.max(tile, 0) * SHAPE.boxes])
            found[0] = count_threads((tile >= 0) & (probed == self.first_class))
            full[0] = full[0] + found[0]
        begin = local(ib, "begin", (self.tile - full[0]) * SHAPE.boxes)
        probed = _class_of(keys[row, te.max(begin - SHAPE.boxes, 0) + self.box])
        found[0] = count_threads((self.slice == 0) & (begin > 0) & (probed == self.first_class))
        return local(ib, "start", begin - found[0])

    def _list_kept(self, base: tir.PrimExpr, start: tir.PrimExpr) -> tir.PrimExpr:
        """Wait for the tile at `base`, list its kept boxes from `start` on, and answer how many there are."""
        ib = self.ib
        fetched = self._fetch(base + self.box)  # while waiting, since most tiles are waited for
        with ib.if_scope(self.thread < SHAPE.words):
            state = ib.allocate("uint64", (1,), name="state", scope="local")
            published = self.views["states"][self.row, tir.truncdiv(base, 32) + self.thread]
            this_class = tir.Select(base < start, _u64(LATER_CLASSES_FINAL), _u64(FIRST_CLASS_FINAL))
            needed = local(ib, "needed", this_class)
            state[0] = _atomic("uint64", "Or", published, _u64(0))
            with ib.while_loop((state[0] & needed) == _u64(0)):
                state[0] = _atomic("uint64", "Or", published, _u64(0))
            before_start = clamp(start - base - self.thread * 32, 0, 32)
            from_start = tir.Select(
                before_start == 32,
                tir.const(0, "uint32"),
                ALL_LANES << te.min(before_start, 31).astype("uint32"),
            )
            self.earlier_kept[self.thread] = state[0].astype("uint32") & from_start
        barrier(ib)

        ahead, total = variables(ib, "int32", "ahead", "total")
        ahead[0] = tir.const(0)
        total[0] = tir.const(0)
        below_lane = (tir.const(1, "uint32") << self.lane.astype("uint32")) - tir.const(1, "uint32")
        kept = local(ib, "kept_there", self.earlier_kept[self.word])
        with ib.for_range(0, SHAPE.words, "kept_word", kind="unroll") as word:
            here = local(ib, "here", count_bits(self.earlier_kept[word]))
            ahead[0] = ahead[0] + tir.Select(word < self.word, here, 0)
            total[0] = total[0] + here
        with ib.if_scope((self.slice == 0) & self._has(kept)):
            self.list[ahead[0] + count_bits(kept & below_lane)] = fetched
        barrier(ib)
        return total[0]

    def _resolve(self, undecided: Callable[[tir.PrimExpr], tir.PrimExpr], state: tir.PrimExpr) -> None:
        """By one warp: keep of the undecided boxes, in order, those that no kept box of them suppresses.

        Of a word's boxes, each turn keeps all that no undecided box would suppress, and strikes out those
        that these suppress; the first one is always among the former.
        """
        ib = self.ib
        zero = tir.const(0, "uint32")
        kept = ib.allocate("uint32", (SHAPE.words,), name="kept_of_word", scope="local")
        rivals, open_, new, own = variables(ib, "uint32", "rivals", "undecided", "kept_now", "own")
        own[0] = zero
        mask = local(ib, "lane_mask", tir.const(1, "uint32") << self.lane.astype("uint32"))
        with ib.for_range(0, SHAPE.words, "resolved_word", kind="unroll") as word:
            kept[word] = zero
            open_[0] = undecided(word)
            with ib.if_scope(open_[0] != zero):
                rivals[0] = zero
                others = ib.for_range(0, SHAPE.words, "other_word", kind="unroll")
                with others as other, ib.if_scope(other < word):
                    rivals[0] = rivals[0] | (self._before(other, word) & kept[other])
                open_[0] = open_[0] & ballot(rivals[0] == zero)
                rivals[0] = self._before(word, word)
                with ib.while_loop(open_[0] != zero):
                    is_open = (open_[0] & mask) != zero
                    new[0] = ballot(is_open & ((rivals[0] & open_[0]) == zero))
                    kept[word] = kept[word] | new[0]
                    open_[0] = open_[0] & ~new[0] & ballot((rivals[0] & new[0]) == zero)
            own[0] = tir.Select(self.lane == word, kept[word], own[0])
        with ib.if_scope(self.lane < SHAPE.words):
            own[0] = own[0] | self.kept[self.lane]
            self.kept[self.lane] = own[0]
            published = self.views["states"][self.row, self.tile * SHAPE.words + self.lane]
            value = own[0].astype("uint64") | state
            ib.emit(_atomic("uint64", "Exch", published, value))

    def _before(self, other: tir.PrimExpr, word: tir.PrimExpr) -> tir.PrimExpr:
        """Which boxes of the other word would suppress the lane's box of the word."""
        return self.before[other * SHAPE.boxes + word * 32 + self.lane]

    def _report(self) -> None:
        """Write what became of each box to where it stood before the sort, and count the kept ones."""
        ib, views, row = self.ib, self.views, self.row
        place = self.first + self.box
        with ib.if_scope((self.slice == 0) & (place < self.length)):
            descending = views["keys"][row, place] & tir.const(0xFFFFFFFF, "int64")
            verdict = (descending - tir.const(2**31, "int64")).astype("int32")
            verdict = tir.Select(self._has(self.kept[self.word]), verdict, NOT_KEPT)
            views["verdicts"][row, views["order"][row, place]] = verdict
        with ib.if_scope(self.thread == 0):
            (total,) = variables(ib, "int32", "kept_count")
            total[0] = tir.const(0)
            with ib.for_range(0, SHAPE.words, "count_word", kind="unroll") as word:
                total[0] = total[0] + count_bits(self.kept[word])
            if self.limit is None:
                ib.emit(_atomic("int32", "Add", views["count"][row], total[0]))
            else:
                total[0] = total[0] + _atomic("int32", "Add", views["total"][row], total[0])
                ib.emit(_atomic("int32", "Max", views["count"][row], te.min(total[0], self.limit)))

    def _has(self, bits: tir.PrimExpr) -> tir.PrimExpr:
        """Whether the lane's bit is set."""
        return ((bits >> self.lane.astype("uint32")) & tir.const(1, "uint32")) != tir.const(0, "uint32")

    def _shared(self, dtype: str, size: int, name: str) -> BufferVar:
        return self.ib.allocate(dtype, (size,), name=name, scope="shared")


def _class_of(key: tir.PrimExpr) -> tir.PrimExpr:
    return (key >> 32).astype("int32")


def _atomic(dtype: str, name: str, place: tir.PrimExpr, value: tir.PrimExpr) -> tir.PrimExpr:
    return tir.call_extern(dtype, f"atomic{name}", tir.address_of(place), value)


def _u64(value: int) -> tir.PrimExpr:
    return tir.const(value, "uint64")
