"""Small pieces of hand-written kernels: launches, barriers, loops, variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import reduce
from operator import add, mul

from ._register import known
from ._tvm import BufferVar, DataType, IRBuilder, dtype_of, storage_sync, te, tir, view
from ._types import Condition, IntExpr


@contextmanager
def launch(
    ib: IRBuilder, blocks: IntExpr, threads: int, only_if: Condition | None = None
) -> Iterator[tuple[tir.PrimExpr, tir.PrimExpr]]:
    """A kernel whose barriers are placed by hand; yields blockIdx.x and threadIdx.x.

    Where `only_if()`, which is emitted in the kernel, does not hold, the kernel does nothing.

    The attribute `hand_threaded`, which keeps TVM from adding barriers of its own, must stand inside the
    thread extents: outside them it is lost, and barriers in divergent branches hang the GPU.
    """
    with ib.new_scope():
        block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
        ib.scope_attr(block, "thread_extent", blocks)
        ib.scope_attr(thread, "thread_extent", threads)
        ib.scope_attr(tir.const(0), "hand_threaded", 0)
        # nvcc unrolls the loops, not TVM: the source stays short.
        ib.scope_attr(tir.const(0), "pragma_unroll_explicit", False)
        with nullcontext() if only_if is None else ib.if_scope(only_if()):
            yield block.var, thread.var


def barrier(ib: IRBuilder) -> None:
    """Wait for all threads of the block; all of them must reach this point."""
    ib.emit(storage_sync("shared"))


def variables(ib: IRBuilder, dtype: str, *names: str) -> list[BufferVar]:
    """Variables of a thread, read and written as `name[0]`."""
    return [ib.allocate(dtype, (1,), name, scope="local") for name in names]


def local(ib: IRBuilder, name: str, value: tir.PrimExpr) -> tir.PrimExpr:
    """A value that the thread computes once. (TVM recomputes that of `ib.let` at each use.)"""
    (variable,) = variables(ib, dtype_of(value), name)
    variable[0] = value
    return variable[0]


def clamp(value: tir.PrimExpr, low: IntExpr, high: IntExpr) -> tir.PrimExpr:
    return te.max(te.min(value, high), low)


def ceil_div(a: IntExpr, b: IntExpr) -> IntExpr:
    """The quotient of natural numbers, rounded up; an int if both are."""
    return -(-a // b) if isinstance(a, int) and isinstance(b, int) else tir.truncdiv(a + (b - 1), b)


def most_lanes(channels: int, most: int) -> int:
    """The largest power of two that divides the number of channels, up to `most`."""
    return next(lanes for lanes in (64, 32, 16, 8, 4, 2, 1) if lanes <= most and channels % lanes == 0)


def bytes_of(dtype: str) -> int:
    return -(-DataType(dtype).bits // 8)  # a bool has one bit, in a byte


def power_of_2_from(number: int) -> int:
    """The least power of 2 that is not less."""
    return 1 << (number - 1).bit_length()


def ramp(start: IntExpr, stride: IntExpr, lanes: int) -> IntExpr:
    """The indices of a vector, or the index of a scalar."""
    return tir.Ramp(start, stride, lanes) if lanes > 1 else start


def in_a_row(ib: IRBuilder, buffer: tir.Buffer) -> tuple[BufferVar, str]:
    """The elements of a tensor as a vector, and the integer type of their indices."""
    size = reduce(mul, (known(extent) or extent for extent in buffer.shape), 1)
    index_type = "int32" if isinstance(size, int) and size < 2**31 else "int64"
    return view(ib, buffer, [tir.const(1, index_type) * size]), index_type


@contextmanager
def between(ib: IRBuilder, begin: IntExpr, end: IntExpr, kind: str = "serial") -> Iterator[tir.PrimExpr]:
    """A loop; TVM's code generator for LLVM requires it to start at 0."""
    with ib.for_range(0, end - begin, kind=kind) as offset:
        yield begin + offset


def in_vectors(ib: IRBuilder, count: int, *lanes: int) -> Iterator[tuple[tir.PrimExpr, int]]:
    """The first element and the number of those of each vector of a row; what is left over is one by one.

    Of several lengths, the greatest first, each takes what those before it have left. The body of the
    caller's loop is emitted once for each length, and once for what is left over.
    """
    begin = 0
    for length in (*lanes, 1):
        end = count - (count - begin) % length
        if begin < end:
            with ib.for_range(0, (end - begin) // length, "vector") as vector:
                yield vector * length + begin, length
        begin = end


def total_of(
    partial: BufferVar, lanes: int, combine: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr] = add
) -> tir.PrimExpr:
    """The sum of a vector in an array, which it overwrites: half is added to the other until one is left.

    For a loop over the lanes, LLVM would keep the array in memory, also while vectors are added to it.
    """
    while lanes > 1:
        lanes //= 2
        half = ramp(0, 1, lanes)
        partial[half] = combine(partial[half], partial[ramp(lanes, 1, lanes)])
    return partial[0]
