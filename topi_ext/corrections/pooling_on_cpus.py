"""Max and average pooling of images whose channels come last, on CPUs: sums and maxima stay in registers.

TVM makes vectors of all channels, or of up to 64, and goes over a window outside of them, so each element of
a window reads and writes the result. Where the number of channels is no power of two, such as 80 or 24, it
takes four to eight times as long for padded images. Importing this module replaces that schedule where the
number of channels is known and even; results stay the same.
"""

from __future__ import annotations

import importlib
from typing import Any

from tvm import te

from .._kernel import bytes_of, most_lanes
from .._register import known
from .pooling import inline_but, pool_below

_pooling: Any = importlib.import_module("tvm.topi.x86")
_stock = _pooling.schedule_pool

MAX_BYTES = 64  # of a vector
MAX_UNROLLED = 16  # elements of a window


def schedule_pool(outs: list[te.Tensor] | te.Tensor, layout: str) -> te.Schedule:
    """The schedule of pooling and of what is fused behind."""
    (out,) = [outs] if isinstance(outs, te.Tensor) else outs
    pool = pool_below(out)
    lanes = 1
    if layout[-1:] in ("C", "c") and pool is not None and list(pool.shape) == list(out.shape):
        channels, widest = known(out.shape[-1]), max(map(bytes_of, (out.dtype, pool.dtype)))
        lanes = most_lanes(channels, MAX_BYTES // widest) if channels else 1
    if lanes == 1 or pool is None:
        return _stock(outs, layout)
    schedule = te.create_schedule(out.op)
    inline_but(schedule, out, pool)
    if pool.op.same_as(out.op):
        pool = schedule.cache_write(out, "local")
    *rows, column, channel = schedule[out].op.axis
    run, lane = schedule[out].split(channel, factor=lanes)
    row = schedule[out].fuse(*rows)
    schedule[out].reorder(row, column, run, lane)
    schedule[out].parallel(row)
    schedule[out].vectorize(lane)
    schedule[pool].compute_at(schedule[out], run)
    *_, of_pool = schedule[pool].op.axis
    reduced = schedule[pool].op.reduce_axis
    schedule[pool].reorder(*reduced, of_pool)
    schedule[pool].vectorize(of_pool)
    elements = 1
    for axis in reversed(reduced):
        elements *= int(axis.dom.extent)
        if elements <= MAX_UNROLLED:
            schedule[pool].unroll(axis)
    return schedule


_pooling.schedule_pool = schedule_pool
