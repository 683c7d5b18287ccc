"""A stable radix sort for LLVM, of numbers by keys that lie elsewhere."""

from __future__ import annotations

from .._kernel import between
from .._tvm import BufferVar, DataType, IRBuilder, tir

BITS = 11
BINS = 1 << BITS


def emit_radix_sort(
    ib: IRBuilder,
    numbers: BufferVar,
    keys: BufferVar,
    spread: tir.PrimExpr,
    swap: BufferVar,
    begin: tir.PrimExpr,
    end: tir.PrimExpr,
) -> None:
    """Sort `numbers[begin:end]` by `keys[number]`, a signed integer.

    `spread` has all bits in which keys differ: where a digit has none, its pass is skipped, so that small
    class ids cost one pass whatever their type. `swap[begin:end]` is overwritten.
    """
    bins = ib.allocate("int32", BINS, "bins")
    here = ib.allocate("int32", 1, "here", scope="global")
    place = ib.allocate("int32", 1, "place", scope="global")
    bits = DataType(keys.dtype).bits
    lowest = tir.const(-(1 << (bits - 1)), keys.dtype)  # makes signed order that of the bits

    with ib.for_range(0, -(-bits // BITS), "digit") as digit:
        shift = (digit * BITS).astype(keys.dtype)

        def digit_of(key: tir.PrimExpr) -> tir.PrimExpr:
            return ((key >> shift) & tir.const(BINS - 1, keys.dtype)).astype("int32")

        with ib.if_scope(digit_of(spread) != 0):
            with ib.for_range(0, BINS, "bin") as i:
                bins[i] = 0
            with between(ib, begin, end) as j:
                here[0] = digit_of(keys[numbers[j]] ^ lowest)
                bins[here[0]] += 1
            place[0] = begin
            with ib.for_range(0, BINS, "bin") as i:
                here[0] = bins[i]
                bins[i] = place[0]
                place[0] += here[0]
            with between(ib, begin, end) as j:
                here[0] = digit_of(keys[numbers[j]] ^ lowest)
                place[0] = bins[here[0]]
                bins[here[0]] = place[0] + 1
                swap[place[0]] = numbers[j]
            with between(ib, begin, end) as j:
                numbers[j] = swap[j]
