"""The first `k` of each row without sorting the row, emitted as CUDA kernels.

An element is represented by a number: the rank of its value in the high bits, its index in the low ones. All
numbers of a row are distinct, and to order them is to order the values with ties by index, so the result does
not depend on the order in which threads run. Three kernels:

1. Elements are dealt to groups, a slot of four neighbours at a time. One pass finds the best slot of each
   group. ("Dr. Top-k" by Gaihre and others calls it the group's delegate.)
2. Of `k` groups, or a few more, whose best slots are the first among all, the worst best slot is a bound:
   there are at least `k` elements up to it, all in these groups. Only their elements are read again; those
   up to the bound are the candidates, hardly more than `k` of them as long as the groups are many.
3. A block a row narrows the candidates down to what fits into its shared memory, usually all of them, and
   sorts these. A row that one block can read fast takes this kernel alone.

Groups are dealt like cards, so a cluster of large values, or a row in ascending order, is spread over many of
them. If the first `k` are in few groups nevertheless, there are more candidates, and the last kernel takes
longer. Ties cost nothing: they differ in their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar, IRBuilder

from .._kernel import barrier, ceil_div, in_a_row, launch, local, most_lanes, ramp, variables
from .._types import IntExpr
from .._warp import add_atomically
from .narrow import narrow, shared_out
from .order import Order
from .tile import Tile, TileShape

SLOT = 4  # elements that are read at once
AHEAD = 4  # slots that a thread reads before it looks at the first
LANES = 32
READERS = 1024  # threads per block of the first two kernels
TILES = (TileShape(1024, 1), TileShape(1024, 3))
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
    tile: TileShape
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
    def room(self) -> int:
        """The greatest possible number of candidates."""
        return min(self.survivors * SLOT * (self.slots // self.groups + 2), self.length)

    def workspace(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of the buffers that the kernels need besides the result."""
        if not self.blocks:
            return []
        best, candidates = (self.rows, self.groups), (self.rows, self.room)
        return [(best, "int64"), (candidates, "int64"), ((self.rows,), "int32")]


def plan_selection(rows: int, length: int, keep: int) -> Plan | None:
    """The plan, or None where sorting is the better way: short rows, or much of a row to keep."""
    if rows == 0 or not 1 <= keep <= length // 4 or keep > TILES[-1].size:
        return None
    tile = next((tile for tile in TILES if tile.size >= 2 * keep), TILES[-1])
    if length <= max(ONE_BLOCK, 32 * keep):
        return Plan(rows, length, keep, tile, blocks=0)
    wanted = max(ceil_div(4 * keep, LANES), BLOCKS) | 1  # of odd numbers of blocks, see BLOCKS
    most = length // (4 * SLOT * LANES)  # four slots to a group; still twice as many groups as are kept
    return Plan(rows, length, keep, tile, blocks=min(wanted, most))


def emit_selection(
    data: tir.Buffer,
    order: Order,
    plan: Plan,
    values: tir.Buffer | None,
    indices: tir.Buffer | None,
    workspace: Sequence[tir.Buffer],
) -> tir.Stmt:
    """The kernels; rows are along the last axis, and either output may be absent."""
    ib = tir.ir_builder.create()
    selection = _Selection(ib, data, order, plan, workspace)
    if plan.blocks:
        selection.find_best_slots()
        selection.collect_candidates()
    selection.sort_candidates(values, indices)
    return ib.get()


class _Selection:
    def __init__(
        self,
        ib: IRBuilder,
        data: tir.Buffer,
        order: Order,
        plan: Plan,
        workspace: Sequence[tir.Buffer],
    ) -> None:
        self.ib, self.order, self.plan, self.dtype = ib, order, plan, data.dtype
        self.data, self.index_type = in_a_row(ib, data)
        in_vectors = data.dtype in IN_VECTORS
        aligned = SLOT if plan.rows == 1 else most_lanes(plan.length, SLOT)
        self.lanes = aligned if in_vectors else 1
        if workspace:
            self.best, self.candidates, self.count = (ib.buffer_ptr(buffer) for buffer in workspace)

    def find_best_slots(self) -> None:
        ib, plan, warps = self.ib, self.plan, READERS // LANES
        with launch(ib, plan.rows * plan.blocks, READERS) as (block, thread):
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
                self.count[row] = 0

    def collect_candidates(self) -> None:
        ib, plan = self.ib, self.plan
        blocks = min(ceil_div(plan.slots, READERS * AHEAD), BLOCKS)
        with launch(ib, plan.rows * blocks, READERS) as (block, thread):
            row, block = tir.truncdiv(block, blocks), tir.truncmod(block, blocks)
            best = self.best
            bound = local(
                ib,
                "bound",
                narrow(
                    ib,
                    thread,
                    READERS,
                    lambda group: best[row, group],
                    tir.const(plan.groups, "int32"),
                    plan.keep,
                    plan.survivors,
                ),
            )

            def survives(slot: IntExpr) -> tir.PrimExpr:
                return best[row, tir.truncmod(slot, plan.groups)] <= bound

            def consider(slot: IntExpr, index: IntExpr, value: tir.PrimExpr) -> None:
                rank = local(ib, "rank", self.order.rank(value))
                with ib.if_scope(_number(rank, slot) <= bound):
                    place = local(ib, "place", add_atomically(self.count[row], 1))
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

    def sort_candidates(self, values: tir.Buffer | None, indices: tir.Buffer | None) -> None:
        ib, plan, threads = self.ib, self.plan, self.plan.tile.threads
        with launch(ib, plan.rows, threads) as (row, thread):

            def candidate(index: tir.PrimExpr) -> tir.PrimExpr:
                if plan.blocks:
                    return self.candidates[row, index]
                return _number(self.order.rank(self._element(row, index)), index)

            count = self.count[row] if plan.blocks else tir.const(plan.length, "int32")
            count = local(ib, "count", count)
            bound = narrow(ib, thread, threads, candidate, count, plan.keep, plan.tile.size)
            bound = local(ib, "bound", bound)

            tile = Tile(ib, Order("int64"), plan.tile, thread, with_places=False)
            taken = ib.allocate("int32", (1,), name="taken", scope="shared")
            with ib.if_scope(thread == 0):
                taken[0] = 0
            barrier(ib)
            with shared_out(ib, thread, threads, count) as index:
                number = local(ib, "number", candidate(index))
                with ib.if_scope(number <= bound):
                    place = local(ib, "place", add_atomically(taken[0], 1))
                    tile.keys[place] = number
            barrier(ib)
            tile.sort(local(ib, "sorted", taken[0]))
            with tile.striped(plan.keep) as rank:
                mask = tir.const((1 << INDEX_BITS) - 1, "int64")
                index = local(ib, "index", (tile.keys[rank] & mask).astype("int32"))
                at = row.astype(self.index_type) * plan.keep + rank
                if values is not None:
                    in_a_row(ib, values)[0][at] = self._element(row, index)
                if indices is not None:
                    in_a_row(ib, indices)[0][at] = index.astype(indices.dtype)

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
