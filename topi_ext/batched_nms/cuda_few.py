"""Few of many boxes take part: as a detector asks for all classes of all regions, and a threshold leaves few.

How many they are is known on the GPU only. So the kernels for any number are launched too, and do nothing.

1. Collect (`emit_collect`): a block writes the keys and indices of those of its chunk that take part, in
   order, and how many there are.
2. Place (`emit_place_by_class`): their places by class and score are counted, as in `cuda_rank`.
3. After the suppression, the places of the kept ones by score are counted (`emit_place_by_score`).

Where more than `FEW` of a row take part, 2 and 3 do nothing for it, and `are_many` says that the boxes are to
be sorted. That gives the same result for other rows.
"""

from __future__ import annotations

from collections.abc import Callable

from .._floats import Locals
from .._kernel import barrier, ceil_div, launch, local, variables
from .._tvm import BufferVar, tir
from .._types import IntExpr
from .._warp import ballot, below, count_bits, sum_up_to
from . import cuda_rank
from .cuda_problem import Problem
from .cuda_rank import WARP
from .cuda_suppress import LAST, NOT_KEPT

FEW = 2048  # in a row
MAX_ROWS = 16  # each of which all kernels ask for
CHUNK = cuda_rank.THREADS  # boxes, each with a thread; of the chunks of a row, each has one in `cuda_rank`
WARPS = CHUNK // WARP


def chunks_of(length: int, limit: int | None) -> int:
    """Chunks that have all boxes and all indices of a row."""
    return ceil_div(max(length, limit or 0), CHUNK)


def may_be_few(rows: int, length: int, limit: int | None) -> bool:
    """Whether it pays to find out: fewer boxes are counted anyway, and of more, a row has too many chunks."""
    return rows <= MAX_ROWS and length > cuda_rank.MAX_KEYS and chunks_of(length, limit) <= CHUNK


def are_many(problem: Problem) -> tir.PrimExpr:
    """Whether more than a few boxes of some row take part; after `emit_place_by_class`, in a kernel."""
    numbers = [problem.views["taking_part"][row] for row in range(problem.rows)]
    return tir.any(*(number > FEW for number in numbers))


def emit_collect(problem: Problem, initialize: Callable[[tir.PrimExpr, tir.PrimExpr], None]) -> None:
    """`initialize(row, index)` is called for each box and each index."""
    ib, views = problem.ib, problem.views
    chunks = chunks_of(problem.length, problem.limit)
    with launch(ib, problem.rows * chunks, CHUNK) as (block, thread):
        row = local(ib, "row", tir.truncdiv(block, chunks))
        chunk = local(ib, "chunk", tir.truncmod(block, chunks))
        index = local(ib, "index", chunk * CHUNK + thread)
        lane, warp = _lane_and_warp(problem, thread)
        (key,) = variables(ib, "int64", "key")
        key[0] = tir.const(LAST, "int64")
        initialize(row, index)
        with ib.if_scope(index < problem.length):
            key[0] = problem.key(row, index)
            views["keys"][row, index] = tir.const(LAST, "int64")
        takes_part = key[0] != tir.const(LAST, "int64")
        votes = local(ib, "votes", ballot(takes_part))
        of_warps = ib.allocate("int32", (WARPS,), name="of_warps", scope="shared")
        before = _before_warp(problem, of_warps, count_bits(votes), lane == 0, warp)
        with ib.if_scope(takes_part):
            at = chunk * CHUNK + before + count_bits(votes & below(lane))
            at = local(ib, "at", at)
            views["keys_swap"][row, at] = key[0]
            views["order_swap"][row, at] = index
        with ib.if_scope(thread == CHUNK - 1):
            views["of_chunks"][row, chunk] = before + count_bits(votes)


def emit_place_by_class(problem: Problem, place: Callable[..., None]) -> None:
    """`place(row, index, lane, key, rank)` is called in all lanes of a warp for each box that takes part."""
    ib, views = problem.ib, problem.views
    chunks = chunks_of(problem.length, problem.limit)
    before_chunk: BufferVar = None

    def number(row: tir.PrimExpr, part: tir.PrimExpr, thread: tir.PrimExpr) -> tir.PrimExpr:
        nonlocal before_chunk
        lane, warp = _lane_and_warp(problem, thread)
        (own,) = variables(ib, "int32", "own")
        own[0] = tir.const(0)
        with ib.if_scope(thread < chunks):
            own[0] = views["of_chunks"][row, thread]
        until = sum_up_to(Locals(ib, "local"), own[0], lane)
        of_warps = ib.allocate("int32", (WARPS,), name="of_warps", scope="shared")
        before = _before_warp(problem, of_warps, until, lane == WARP - 1, warp)
        before_chunk = ib.allocate("int32", (CHUNK,), name="before_chunk", scope="shared")
        before_chunk[thread] = before + until - own[0]
        total = local(ib, "total", _sum_until(problem, of_warps, WARPS))
        with ib.if_scope((part == 0) & (thread == 0)):
            views["taking_part"][row] = total
        barrier(ib)
        return _if_few(problem, total)

    def place_of(at: tir.PrimExpr) -> tir.PrimExpr:
        """Where the box of this number is, of those that were collected: in the last chunk before its end."""
        (chunk,) = variables(ib, "int32", "chunk")
        chunk[0] = tir.const(0)
        step = CHUNK // 2
        while step:
            with ib.if_scope(before_chunk[chunk[0] + step] <= at):
                chunk[0] = chunk[0] + step
            step //= 2
        return local(ib, "collected", chunk[0] * CHUNK + at - before_chunk[chunk[0]])

    cuda_rank.emit_ranks(
        ib,
        problem.rows,
        FEW,
        "int64",
        lambda row, at: views["keys_swap"][row, place_of(at)],
        lambda row, at, lane, key, rank: place(
            row, local(ib, "index", views["order_swap"][row, place_of(at)]), lane, key, rank
        ),
        number=number,
    )


def emit_place_by_score(problem: Problem) -> None:
    """Write the indices of the kept boxes; all others are -1 already."""
    ib, views = problem.ib, problem.views

    def number(row: tir.PrimExpr, _part: tir.PrimExpr, _thread: tir.PrimExpr) -> tir.PrimExpr:
        return _if_few(problem, local(ib, "total", views["taking_part"][row]))

    def verdict_and_index(row: tir.PrimExpr, place: tir.PrimExpr) -> tir.PrimExpr:
        index = local(ib, "index", views["order"][row, place])
        return (views["verdicts"][row, index].astype("int64") << 32) | index.astype("int64")

    def write(
        row: tir.PrimExpr, _at: tir.PrimExpr, lane: tir.PrimExpr, key: tir.PrimExpr, rank: tir.PrimExpr
    ) -> None:
        is_wanted = [] if problem.limit is None else [rank < problem.limit]
        is_kept = (key >> 32).astype("int32") != tir.const(NOT_KEPT)
        with ib.if_scope(tir.all(lane == 0, is_kept, *is_wanted)):
            views["indices"][row, rank] = key & tir.const(0xFFFFFFFF, "int64")

    cuda_rank.emit_ranks(ib, problem.rows, FEW, "int64", verdict_and_index, write, number=number)


# --- parts of kernels


def _if_few(problem: Problem, total: tir.PrimExpr) -> tir.PrimExpr:
    """How many boxes of a row to count the places of."""
    return local(problem.ib, "number", tir.Select(total > FEW, 0, total))


def _lane_and_warp(problem: Problem, thread: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    lane = local(problem.ib, "lane", tir.truncmod(thread, WARP))
    return lane, local(problem.ib, "warp", tir.truncdiv(thread, WARP))


def _before_warp(
    problem: Problem, of_warps: BufferVar, number: tir.PrimExpr, tells: tir.PrimExpr, warp: tir.PrimExpr
) -> tir.PrimExpr:
    """The sum of the numbers of all warps before; in each of them, one lane tells its number."""
    with problem.ib.if_scope(tells):
        of_warps[warp] = number
    barrier(problem.ib)
    return local(problem.ib, "before", _sum_until(problem, of_warps, warp))


def _sum_until(problem: Problem, of_warps: BufferVar, end: IntExpr) -> tir.PrimExpr:
    (total,) = variables(problem.ib, "int32", "sum")
    total[0] = tir.const(0)
    with problem.ib.for_range(0, end, "each") as each:
        total[0] = total[0] + of_warps[each]
    return total[0]
