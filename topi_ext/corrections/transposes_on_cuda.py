"""What is transposed on CUDA: a thread reads vectors, turns them in its registers, and stores vectors.

TVM gives neighbours of the result to neighbouring threads. Where they are far from each other in memory, each
of them reads a line of it for one element. Importing this module replaces that schedule for a result of which
another axis than the last is the one along which memory is read: a thread computes a tile of both axes. All
else keeps the schedule, and results stay the same.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm import te, tir, topi

from .._kernel import most_lanes
from .._places import computed_in, is_read_evenly, nodes_of, steps_where_transposed
from . import injective  # noqa: F401  whose schedule this one wraps

SIDE = 4  # of the tile of a thread, where it divides the axes
READERS = 8  # neighbouring threads that read neighbours
THREADS = 128  # of a block
FEW = 8  # along an axis, as the three colours: their lines in memory stay in the cache until all are read
DTYPES = ("float16", "float32")  # TVM writes vectors of them

schedule_otherwise = topi.cuda.schedule_injective


class _Tile(NamedTuple):
    axis: int  # along which memory is read
    run: int  # elements along it
    column: int  # and along the last axis


def schedule_injective(outs: list[te.Tensor] | te.Tensor) -> te.Schedule:
    (out, *others) = [outs] if isinstance(outs, te.Tensor) else list(outs)
    tile = None if others else _tile(out)
    return schedule_otherwise(outs) if tile is None else _schedule(out, tile)


def _tile(out: te.Tensor) -> _Tile | None:
    """What a thread computes of a result that is transposed."""
    if out.dtype not in DTYPES or not isinstance(out.op, te.ComputeOp):
        return None
    steps = steps_where_transposed(out)
    if steps is None or 1 not in steps:
        return None
    axis = steps.index(1)
    extents = int(out.shape[axis]), int(out.shape[-1])
    run, column = (most_lanes(extent, SIDE) for extent in extents)
    is_worth_it = run * column >= SIDE and min(extents) >= FEW and is_read_evenly(out, axis, run)
    return _Tile(axis, run, column) if is_worth_it else None


def _schedule(out: te.Tensor, tile: _Tile) -> te.Schedule:
    has_vectors = not any(map(_has_conditions, computed_in(out)))
    schedule = te.create_schedule(out.op)
    turned = schedule.cache_write(out, "local")
    te.schedule.AutoInlineInjective(schedule)

    stage = schedule[out]
    *outer, last = stage.op.axis
    column, of_column = stage.split(last, factor=tile.column)
    run, of_run = stage.split(outer.pop(tile.axis), factor=tile.run)
    runs, reader = stage.split(run, factor=READERS)
    stage.reorder(*outer, runs, column, reader, of_run, of_column)
    block, thread = stage.split(stage.fuse(*outer, runs, column, reader), factor=THREADS)
    stage.bind(block, te.thread_axis("blockIdx.x"))
    stage.bind(thread, te.thread_axis("threadIdx.x"))
    stage.unroll(of_run)
    stage.vectorize(of_column)

    stage = schedule[turned]
    stage.compute_at(schedule[out], thread)
    axes = list(stage.op.axis)
    along = axes.pop(tile.axis)
    stage.reorder(*axes, along)
    stage.unroll(axes[-1])
    (stage.vectorize if has_vectors else stage.unroll)(along)
    return schedule


def _has_conditions(operation: te.ComputeOp) -> bool:
    """Whether it chooses or calls.

    TVM takes a vector of conditions that is the same in all threads out of the kernel, and fails to pass it.
    """
    return any(isinstance(node, (tir.Select, tir.Call)) for node in nodes_of(*operation.body))


topi.cuda.schedule_injective = schedule_injective
