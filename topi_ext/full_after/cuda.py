"""A tensor of one value on CUDA: a few warps, which write 16 bytes at once, again and again.

A thread's stores wait for nothing, so one warp writes some 50 GB/s. This many take an H200 three quarters of
the speed of its memory: with more, what runs at the same time waits for memory itself; with fewer, the tensor
is not there in time. A block of one warp finds room on any multiprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .._kernel import bytes_of, ceil_div, launch, local
from .._tvm import IRBuilder, te, tir, view

BLOCKS, THREADS = 64, 32


def full_after(tensor: te.Tensor, shape: Sequence[int], dtype: str, value: float) -> te.Tensor:
    """The result of `topi_ext.full_after`."""
    size = prod(shape)
    lanes = next(n for n in (16, 8, 4, 2, 1) if n * bytes_of(dtype) <= 16 and size % n == 0)
    every = tir.Ramp(0, 1, lanes) if lanes > 1 else 0
    vectors = tir.const(size // lanes, "int64")

    def emit(_ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        if not size:
            return tir.Evaluate(0)
        elements = view(ib, outs[0], [tir.const(size, "int64")])
        with launch(ib, min(BLOCKS, ceil_div(size // lanes, THREADS)), THREADS) as (block, thread):
            values = ib.allocate(dtype, lanes, "values", scope="local")
            for lane in range(lanes):
                values[lane] = tir.const(value, dtype)
            first = local(ib, "first", (block * THREADS + thread).astype("int64"))
            turns = ceil_div(te.max(vectors - first, tir.const(0, "int64")), BLOCKS * THREADS)
            with ib.for_range(tir.const(0, "int64"), turns, "turn") as turn:
                place = (first + turn * (BLOCKS * THREADS)) * lanes
                elements[tir.Ramp(place, 1, lanes) if lanes > 1 else place] = values[every]
        return ib.get()

    return te.extern([shape], [tensor], emit, dtype=[dtype], name="full_after")
