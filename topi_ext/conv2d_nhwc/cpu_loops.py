"""The loops of the kernels on LLVM in TVM 0.27, which schedules functions; `schedule` in `cpu` is Relay's."""

from __future__ import annotations

from math import gcd

from tvm.s_tir import Schedule

from .._tvm import tir


def of_convolution(function: tir.PrimFunc, lanes: int, pixels: int) -> tir.PrimFunc:
    """Sums of a few pixels by a vector of filters are in registers, as `cpu` describes them."""
    s = Schedule(function)
    for name in ("padded", "packed", "conv2d_nhwc"):
        _in_vectors(s, name, lanes)
    sums = s.get_sblock("sums")
    n, y, x, k, *steps, of_pair = s.get_loops(sums)
    x, of_tile = s.split(x, [None, pixels])
    k, of_vector = s.split(k, [None, lanes])
    s.reorder(n, y, k, x, *steps, of_pair, of_tile, of_vector)
    tile = s.cache_write(sums, 0, "local")
    s.reverse_compute_at(tile, x)
    for block in (sums, tile):
        *_, of_tile, of_vector = s.get_loops(block)
        s.unroll(of_tile)
        s.vectorize(of_vector)
    s.parallel(s.fuse(n, y))
    s.decompose_reduction(sums, steps[0])  # last: the loops of what sets the sums to 0 are like these
    return s.mod["main"]


def _in_vectors(s: Schedule, name: str, lanes: int) -> None:
    """The loops of a block in parallel, the innermost one in vectors."""
    *outer, innermost = s.get_loops(s.get_sblock(name))
    if int(s.get(innermost).extent) == 1:
        *outer, innermost = outer
    s.parallel(s.fuse(*outer))
    s.vectorize(s.split(innermost, [None, gcd(int(s.get(innermost).extent), lanes)])[1])
