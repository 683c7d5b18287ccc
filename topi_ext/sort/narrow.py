"""Bound the smallest of many distinct numbers, within one block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable

from .._floats import Locals
from .._kernel import barrier, ceil_div, local, variables
from .._tvm import BufferVar, IRBuilder, atomic, te, tir
from .._types import IntExpr
from .._warp import from_lane_across, sum_up_to

LARGEST = tir.const(2**63 - 1, "int64")
BITS = 11
BINS = 1 << BITS


@contextmanager
def shared_out(
    ib: IRBuilder, thread: tir.PrimExpr, threads: int, count: tir.PrimExpr
) -> Iterator[tir.PrimExpr]:
    """The indices below `count` of which this thread of the block takes care."""
    with ib.for_range(0, ceil_div(te.max(count - thread, 0), threads), "round") as turn:
        yield local(ib, "index", turn * threads + thread)


def narrow(
    ib: IRBuilder,
    thread: tir.PrimExpr,
    threads: int,
    read: Callable[[tir.PrimExpr], tir.PrimExpr],
    count: tir.PrimExpr,
    keep: int,
    room: int,
) -> tir.PrimExpr:
    """A bound, up to which there are at least `keep` of the numbers and at most `room`.

    `read(index)` gives `count` numbers, at least `keep`, of type int64, distinct and not negative; `room` is
    not less than `keep`. Where they fit as they are, nothing is read.

    Each round divides the range of the numbers that are still in question into bins of equal width, counts
    the numbers in each, and goes on with the bin of the last number to keep. The least and the greatest
    number never share a bin, so each round excludes some; in fact it makes the range a thousand times
    narrower, and there are at most six. The last bin is not counted: what is in no other bin is there. So
    ties of the worst value, such as all scores below a threshold, do not queue for one counter.
    """
    warps = threads // 32
    warp, lane = thread >> 5, thread & 31
    bins = ib.allocate("int32", (BINS,), name="bins", scope="shared")
    sums = ib.allocate("int32", (warps,), name="warp_sums", scope="shared")
    leasts = ib.allocate("int64", (warps,), name="warp_leasts", scope="shared")
    greatests = ib.allocate("int64", (warps,), name="warp_greatests", scope="shared")
    found = ib.allocate("int32", (3,), name="found", scope="shared")  # a bin, the numbers before and up to it

    low, high, least, greatest = variables(ib, "int64", "low", "high", "least", "greatest")
    before, through, prefix, total = variables(ib, "int32", "before", "through", "prefix", "total")
    low[0], high[0] = tir.const(0, "int64"), LARGEST
    before[0], through[0] = 0, count  # how many numbers are less than low, and how many not above high

    with ib.while_loop(through[0] > room):
        least[0], greatest[0] = LARGEST, tir.const(0, "int64")
        with shared_out(ib, thread, threads, count) as index:
            number = local(ib, "number", read(index))
            with ib.if_scope((low[0] <= number) & (number <= high[0])):
                least[0] = te.min(least[0], number)
                greatest[0] = te.max(greatest[0], number)
        for mask in (16, 8, 4, 2, 1):
            least[0] = te.min(least[0], local(ib, "other", from_lane_across(least[0], mask)))
            greatest[0] = te.max(greatest[0], local(ib, "other", from_lane_across(greatest[0], mask)))
        with ib.if_scope(lane == 0):
            leasts[warp] = least[0]
            greatests[warp] = greatest[0]
        with ib.for_range(0, BINS // threads, "i", kind="unroll") as i:
            bins[i * threads + thread] = 0
        barrier(ib)
        low[0], high[0] = leasts[0], greatests[0]
        with ib.for_range(0, warps, "w") as w:
            low[0] = te.min(low[0], leasts[w])
            high[0] = te.max(high[0], greatests[w])

        width = local(ib, "width", high[0] - low[0])
        bits_of_width = 64 - tir.call_pure_extern("int32", "__clzll", width)
        shift = local(ib, "shift", te.max(bits_of_width - BITS, 0).astype("int64"))
        last = local(ib, "last", (width >> shift).astype("int32"))
        with shared_out(ib, thread, threads, count) as index:
            number = local(ib, "number", read(index))
            with ib.if_scope((low[0] <= number) & (number <= high[0])):
                place = local(ib, "place", ((number - low[0]) >> shift).astype("int32"))
                with ib.if_scope(place < last):
                    ib.emit(atomic("int32", "Add", bins[place], 1))
        barrier(ib)

        _find_bin(ib, thread, threads, bins, sums, found, prefix, total, keep - before[0])
        with ib.if_scope(total[0] < keep - before[0]):
            before[0] = before[0] + total[0]
            low[0] = low[0] + (last.astype("int64") << shift)
        with ib.else_scope():
            low[0] = low[0] + (found[0].astype("int64") << shift)
            high[0] = low[0] + ((tir.const(1, "int64") << shift) - 1)
            through[0] = before[0] + found[2]
            before[0] = before[0] + found[1]
    return high[0]


def _find_bin(
    ib: IRBuilder,
    thread: tir.PrimExpr,
    threads: int,
    bins: BufferVar,
    sums: BufferVar,
    found: BufferVar,
    prefix: BufferVar,
    total: BufferVar,
    wanted: IntExpr,
) -> None:
    """Write into `found` the bin of the number of rank `wanted`, if so many are counted: `total`."""
    warps, share = threads // 32, BINS // threads
    warp, lane = thread >> 5, thread & 31
    (own,) = variables(ib, "int32", "own")
    own[0] = 0
    with ib.for_range(0, share, "i", kind="unroll") as i:
        own[0] = own[0] + bins[thread * share + i]
    prefix[0] = sum_up_to(Locals(ib, "local"), own[0], lane)
    with ib.if_scope(lane == 31):
        sums[warp] = prefix[0]
    barrier(ib)
    prefix[0] = prefix[0] - own[0]  # now that of the bins before this thread's
    total[0] = 0
    with ib.for_range(0, warps, "w") as w:
        prefix[0] = prefix[0] + tir.Select(w < warp, sums[w], 0)
        total[0] = total[0] + sums[w]
    with ib.for_range(0, share, "i", kind="unroll") as i:
        here = local(ib, "here", bins[thread * share + i])
        with ib.if_scope((prefix[0] < wanted) & (wanted <= prefix[0] + here)):
            found[0] = thread * share + i
            found[1] = prefix[0]
            found[2] = prefix[0] + here
        prefix[0] = prefix[0] + here
    barrier(ib)
