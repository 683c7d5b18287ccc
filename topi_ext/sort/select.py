"""The first `k` of each row without sorting the row, emitted as CUDA kernels.

An element is represented by a number: the rank of its value in the high bits, its index in the low ones. All
numbers of a row are distinct, and to order them is to order the values with ties by index, so the result does
not depend on the order in which threads run. Three kernels:

1. Elements are dealt to groups, a slot of four neighbours at a time. One pass finds the best slot of each
   group. ("Dr. Top-k" by Gaihre and others calls it the group's delegate.)
2. Of `k` groups, or a few more, whose best slots are the first among all, the worst best slot is a bound:
   there are at least `k` elements up to it, all in these groups. Only their elements are read again; those
   up to the bound are the candidates, hardly more than `k` of them as long as the groups are many.
3. Blocks put the candidates into shared memory, as far as they can be among the first `k`, and each writes
   some of them to their place in the result: the number of candidates before them.

Where one block can read a row fast enough, one kernel that finds the candidates takes the place of 1 and 2.

Groups are dealt like cards, so a cluster of large values, or a row in ascending order, is spread over many of
them. If the first `k` are in few groups nevertheless, there are more candidates, and the last kernel takes
longer, since each block has to narrow them down. Ties cost nothing: they differ in their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from .._kernel import barrier, ceil_div, in_a_row, launch, local, most_lanes, ramp, variables
from .._register import known
from .._tvm import BufferVar, IRBuilder, atomic, te, tir
from .._types import Condition, IntExpr
from .._warp import ballot, below, count_bits, from_lane, from_lane_across
from .narrow import LARGEST, narrow, shared_out
from .order import Order
from .tile import tile_shape

SLOT = 4  # elements that are read at once
AHEAD = 4  # slots that a thread reads before it looks at the first
LANES = 32
READERS = 1024  # threads per block of the kernels that read the data
PLACERS = 512  # and of the one that places the candidates
MAX_KEPT = 4096
ONE_BLOCK = 1 << 14  # a row that one block reads fast
BLOCKS = 131  # fills a large GPU, and shares no factor with the width of a feature map
INDEX_BITS = 31
IN_VECTORS = ("float16", "float32", "int32", "uint32")


@dataclass(frozen=True)
class Plan:
    """How to select the first `keep` of rows; without groups, by one block a row."""

    rows: int
    length: int
    keep: int
    blocks: int  # per row of the first kernel, each with a group per lane

    @property
    def groups(self) -> int:
        return self.blocks * LANES

    @property
    def slots(self) -> int:
        """How many are full."""
        return self.length // SLOT

    @property
    def last_slot(self) -> tir.PrimExpr:
        """The one after the full slots, which has the elements that remain."""
        return tir.const(self.slots, "int32")

    @property
    def remaining(self) -> range:
        return range(self.slots * SLOT, self.length)

    @property
    def survivors(self) -> int:
        """At most so many groups are read again: resolving the very last one is rarely worth a round."""
        return self.keep + self.keep // 8

    @property
    def capacity(self) -> int:
        """The greatest number of candidates to put into shared memory, where all are compared with all."""
        return min(max(2 * self.keep, PLACERS), MAX_KEPT)

    @property
    def room(self) -> int:
        """The greatest possible number of candidates."""
        if not self.blocks:
            return self.capacity
        return min(self.survivors * SLOT * (self.slots // self.groups + 2), self.length)

    def workspace(self) -> list[tuple[list[IntExpr], str]]:
        """Shapes and types of the buffers that the kernels need besides the result."""
        buffers: list[tuple[list[IntExpr], str]] = [([self.rows, self.room], "int64"), ([self.rows], "int32")]
        return [*buffers, ([self.rows, self.groups], "int64")] if self.blocks else buffers


def plan_selection(rows: IntExpr, length: IntExpr, keep: int | None) -> Plan | None:
    """The plan; None if an extent is unknown, or sorting is better: of a short row, or to keep much of it."""
    known_rows, known_length = known(rows), known(length)
    if not known_rows or known_length is None or keep is None:
        return None
    if tile_shape(known_length).size >= known_length or not 1 <= keep <= min(known_length // 2, MAX_KEPT):
        return None
    if known_length <= max(ONE_BLOCK, 20 * keep):
        return Plan(known_rows, known_length, keep, blocks=0)
    wanted = max(ceil_div(4 * keep, LANES), BLOCKS) | 1  # of odd numbers of blocks, see BLOCKS
    most = known_length // (4 * SLOT * LANES)  # four slots to a group; still more groups than are kept
    return Plan(known_rows, known_length, keep, blocks=min(wanted, most))


def emit_selection(
    ib: IRBuilder,
    data: tir.Buffer,
    order: Order,
    plan: Plan,
    workspace: Sequence[Any],
    write: Callable[[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr], None],
    only_if: Condition | None = None,
) -> None:
    """Emit the kernels that find the first keys of the rows of `data`, which are along its last axis.

    `write(row, place, index)` stores one of them, of which it is told the place in the result and the index
    in the row. The keys' type must have a rank in this order. `workspace` has what `plan.workspace()` says,
    as buffers or what can be indexed as they are. Nothing is written unless `only_if()` holds in the kernels.
    """
    selection = _Selection(ib, data, order, plan, workspace, only_if)
    if plan.blocks:
        selection.find_best_slots()
        selection.collect_candidates()
    else:
        selection.narrow_rows()
    selection.place_candidates(write)


class _Selection:
    def __init__(
        self,
        ib: IRBuilder,
        data: tir.Buffer,
        order: Order,
        plan: Plan,
        workspace: Sequence[Any],
        only_if: Condition | None,
    ) -> None:
        self.ib, self.order, self.plan, self.dtype = ib, order, plan, data.dtype
        self.launch = partial(launch, ib, only_if=only_if)
        self.data, self.index_type = in_a_row(ib, data)
        aligned = SLOT if plan.rows == 1 else most_lanes(plan.length, SLOT)
        self.lanes = aligned if data.dtype in IN_VECTORS else 1
        self.candidates, self.count, *best = workspace
        self.best: Any = best[0] if best else None

    def find_best_slots(self) -> None:
        ib, plan, warps = self.ib, self.plan, READERS // LANES
        with self.launch(plan.rows * plan.blocks, READERS) as (block, thread):
            row, block = tir.truncdiv(block, plan.blocks), tir.truncmod(block, plan.blocks)
            warp = thread >> 5
            group = local(ib, "group", block * LANES + (thread & 31))
            last = local(ib, "last", tir.truncdiv(plan.slots - 1 - group, plan.groups))
            best_rank, best_slot = variables(ib, "int32", "best_rank", "best_slot")
            best_rank[0] = tir.const(2**31 - 1, "int32")
            best_slot[0] = group + te.min(warp, last) * plan.groups

            def consider(slot: tir.PrimExpr, rank: tir.PrimExpr) -> None:
                with ib.if_scope(rank < best_rank[0]):  # not for ties: the slots come in order
                    best_rank[0] = rank
                    best_slot[0] = slot

            held = ib.allocate(self.dtype, (AHEAD * SLOT,), name="held", scope="local")
            slots = ib.allocate("int32", (AHEAD,), name="slots", scope="local")
            with ib.for_range(0, ceil_div(last + 1, warps * AHEAD), "round") as turn:
                with self._each(AHEAD) as i:
                    # Reading the last slot again does no harm, and no load waits for a comparison.
                    slots[i] = group + te.min((turn * AHEAD + i) * warps + warp, last) * plan.groups
                    self._load(held, i, row, slots[i])
                with self._each(AHEAD) as i:
                    ranks = [self.order.rank(held[i * SLOT + j]) for j in range(SLOT)]
                    ranks = [local(ib, "rank", rank) for rank in ranks]
                    rank = local(ib, "slot_rank", te.min(te.min(*ranks[:2]), te.min(*ranks[2:])))
                    consider(slots[i], rank)
            with ib.if_scope(tir.all(warp == 0, group == plan.slots % plan.groups)):
                for index in plan.remaining:
                    consider(plan.last_slot, self.order.rank(self._element(row, index)))

            best = ib.allocate("int64", (READERS,), name="bests", scope="shared")
            best[thread] = _number(best_rank[0], best_slot[0])
            barrier(ib)
            with ib.if_scope(warp == 0):
                (first,) = variables(ib, "int64", "first")
                first[0] = best[thread]
                with ib.for_range(0, warps, "other") as other:
                    first[0] = te.min(first[0], best[other * LANES + thread])
                self.best[row, group] = first[0]
            with ib.if_scope(tir.all(thread == 0, block == 0)):
                self.count[row] = tir.const(0, "int32")

    def collect_candidates(self) -> None:
        ib, plan = self.ib, self.plan
        blocks = min(ceil_div(plan.slots, READERS * AHEAD), BLOCKS)
        with self.launch(plan.rows * blocks, READERS) as (block, thread):
            row, block = tir.truncdiv(block, blocks), tir.truncmod(block, blocks)
            best, groups = self.best, tir.const(plan.groups, "int32")
            bound = narrow(
                ib, thread, READERS, lambda group: best[row, group], groups, plan.keep, plan.survivors
            )

            def survives(slot: IntExpr) -> tir.PrimExpr:
                return best[row, tir.truncmod(slot, plan.groups)] <= bound

            def consider(slot: IntExpr, index: IntExpr, value: tir.PrimExpr) -> None:
                rank = local(ib, "rank", self.order.rank(value))
                with ib.if_scope(_number(rank, slot) <= bound):
                    place = local(ib, "place", atomic("int32", "Add", self.count[row], 1))
                    self.candidates[row, place] = _number(rank, index)

            held = ib.allocate(self.dtype, (AHEAD * SLOT,), name="held", scope="local")
            slots = ib.allocate("int32", (AHEAD,), name="slots", scope="local")
            with ib.for_range(0, ceil_div(plan.slots, blocks * READERS * AHEAD), "round") as turn:
                with self._each(AHEAD) as i:
                    slot = ((turn * AHEAD + i) * blocks + block) * READERS + thread
                    slots[i] = tir.Select(slot < plan.slots, slot, -1)
                    with ib.if_scope(slots[i] >= 0):
                        with ib.if_scope(survives(slots[i])):
                            self._load(held, i, row, slots[i])
                        with ib.else_scope():
                            slots[i] = -1
                with self._each(AHEAD) as i, ib.if_scope(slots[i] >= 0), self._each(SLOT) as j:
                    consider(slots[i], slots[i] * SLOT + j, held[i * SLOT + j])
            with ib.if_scope(tir.all(block == 0, thread == 0, survives(plan.last_slot))):
                for index in plan.remaining:
                    consider(plan.last_slot, tir.const(index, "int32"), self._element(row, index))

    def narrow_rows(self) -> None:
        """The candidates of rows that a block can read."""
        ib, plan = self.ib, self.plan
        with self.launch(plan.rows, READERS) as (row, thread):

            def number_at(index: tir.PrimExpr) -> tir.PrimExpr:
                return _number(self.order.rank(self._element(row, index)), index)

            def write(place: tir.PrimExpr, number: tir.PrimExpr) -> None:
                self.candidates[row, place] = number

            count = tir.const(plan.length, "int32")
            taken = self._take_first(thread, READERS, number_at, count, write)
            with ib.if_scope(thread == 0):
                self.count[row] = taken

    def place_candidates(self, write_element: Callable) -> None:
        ib, plan, warps = self.ib, self.plan, PLACERS // LANES
        blocks = max(1, min(ceil_div(plan.keep + plan.keep // 4, warps), 2 * BLOCKS // plan.rows))
        with self.launch(plan.rows * blocks, PLACERS) as (block, thread):
            row, block = tir.truncdiv(block, blocks), tir.truncmod(block, blocks)
            warp, lane = thread >> 5, thread & 31
            numbers = ib.allocate("int64", (plan.capacity,), name="numbers", scope="shared")
            count = local(ib, "count", self.count[row])
            (kept,) = variables(ib, "int32", "kept")

            def number_at(index: tir.PrimExpr) -> tir.PrimExpr:
                return self.candidates[row, index]

            def write(place: tir.PrimExpr, number: tir.PrimExpr) -> None:
                numbers[place] = number

            with ib.if_scope(count <= plan.capacity):
                with shared_out(ib, thread, PLACERS, count) as index:
                    numbers[index] = number_at(index)
                kept[0] = count
            if plan.room > plan.capacity:
                with ib.if_scope(count > plan.capacity):
                    kept[0] = self._take_first(thread, PLACERS, number_at, count, write)
            barrier(ib)

            first = local(ib, "first", block * warps + warp)
            with shared_out(ib, first, blocks * warps, count) as index:
                number = local(ib, "number", number_at(index))
                (place,) = variables(ib, "int32", "place")
                place[0] = 0
                with shared_out(ib, lane, LANES, kept[0]) as other:
                    place[0] = place[0] + (numbers[other] < number).astype("int32")
                for mask in (16, 8, 4, 2, 1):
                    place[0] = place[0] + local(ib, "others", from_lane_across(place[0], mask))
                # What is not in shared memory comes after all that is.
                with ib.if_scope(tir.all(lane == 0, place[0] < plan.keep)):
                    element = local(ib, "element", (number & (2**INDEX_BITS - 1)).astype("int32"))
                    write_element(row, place[0], element)

    def _take_first(
        self,
        thread: tir.PrimExpr,
        threads: int,
        number_at: Callable[[tir.PrimExpr], tir.PrimExpr],
        count: tir.PrimExpr,
        write: Callable[[tir.PrimExpr, tir.PrimExpr], None],
    ) -> tir.PrimExpr:
        """Write the first of `count` numbers, at least `keep` and at most as many as fit; gives how many."""
        ib = self.ib
        taken = ib.allocate("int32", (1,), name="taken", scope="shared")
        with ib.if_scope(thread == 0):
            # Before `narrow`: its last loads, after its last barrier, may fetch this number along with
            # theirs.
            taken[0] = 0
        bound = narrow(ib, thread, threads, number_at, count, self.plan.keep, self.plan.capacity)
        start, number = variables(ib, "int32", "start")[0], variables(ib, "int64", "candidate")[0]
        barrier(ib)
        with ib.for_range(0, ceil_div(count, threads), "round") as turn:
            index = local(ib, "index", turn * threads + thread)
            number[0] = LARGEST
            with ib.if_scope(index < count):
                number[0] = number_at(index)
            votes = local(ib, "votes", ballot((index < count) & (number[0] <= bound)))
            with ib.if_scope(votes != tir.const(0, "uint32")):
                with ib.if_scope((thread & 31) == 0):
                    start[0] = atomic("int32", "Add", taken[0], count_bits(votes))
                start[0] = from_lane(start[0], tir.const(0, "int32"))
                with ib.if_scope((index < count) & (number[0] <= bound)):
                    write(start[0] + count_bits(votes & below(thread & 31)), number[0])
        barrier(ib)
        return local(ib, "all_taken", taken[0])

    def _each(self, count: int) -> AbstractContextManager[tir.PrimExpr]:
        return self.ib.for_range(0, count, "i", kind="unroll")

    def _at(self, row: tir.PrimExpr, index: IntExpr) -> tir.PrimExpr:
        return row.astype(self.index_type) * self.plan.length + index

    def _element(self, row: tir.PrimExpr, index: IntExpr) -> tir.PrimExpr:
        return self.data[self._at(row, index)]

    def _load(self, held: BufferVar, place: tir.PrimExpr, row: tir.PrimExpr, slot: tir.PrimExpr) -> None:
        for i in range(0, SLOT, self.lanes):
            at = self._at(row, slot * SLOT + i)
            held[ramp(place * SLOT + i, 1, self.lanes)] = self.data[ramp(at, 1, self.lanes)]


def _number(rank: tir.PrimExpr, index: tir.PrimExpr) -> tir.PrimExpr:
    """A number from 0 on, in order of rank and then of index, which is less than 2**31."""
    natural = rank.astype("int64") + tir.const(1 << 31, "int64")
    return (natural << INDEX_BITS) + index.astype("int64")
