"""Reductions on CUDA whose threads read what lies side by side.

TVM gives 32 threads to each element of a result, along the axes that are reduced. Where these are not the
innermost, as in a mean over the pixels of NHWC, each thread reads another line of memory, and a mean takes
30 times as long as its data takes to be read; where few elements are reduced, most threads have nothing to do.
Importing this module replaces that schedule for reductions whose sizes are known. Only the order of the sums
changes.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import tvm
from tvm import te, tir

from .._register import known

_reduction: Any = importlib.import_module("tvm.topi.cuda.reduction")
_stock = _reduction._schedule_reduce

THREADS = 256  # of a block
WARP = 32
ENOUGH = 2**18  # threads that keep a large GPU busy
ELEMENTS = 4  # at least, that a thread reduces by itself


def _schedule(op: te.Operation, schedule: te.Schedule, is_idx_reduce: bool = False) -> te.Schedule:
    lengths = [] if is_idx_reduce else [known(axis.dom.extent) for axis in (*op.axis, *op.reduce_axis)]
    if not op.reduce_axis or not lengths or None in lengths or 0 in lengths or not len(op.axis):
        return _stock(op, schedule, is_idx_reduce)
    results, reduced = math.prod(lengths[: len(op.axis)]), math.prod(lengths[len(op.axis) :])
    inner = _reads_along_reduced(op)
    if inner is None:
        return _stock(op, schedule)
    most = min(WARP, reduced // ELEMENTS) if inner else min(WARP, reduced // ELEMENTS, ENOUGH // results)
    sharing = 1 << max(most, 1).bit_length() - 1  # threads that share an element of the result
    beside = THREADS // sharing if inner else max(THREADS // sharing, WARP)
    across, along = te.thread_axis("threadIdx.x"), te.thread_axis("threadIdx.y")
    if not inner:
        across, along = along, across  # neighbouring threads take neighbouring results
    out = op.output(0)
    if sharing > 1:
        _, part = schedule[out].split(schedule[out].fuse(*op.reduce_axis), factor=sharing)
        parts = schedule.rfactor(out, part)
        (shared,) = schedule[out].op.reduce_axis
        schedule[out].bind(shared, across)
        schedule[parts].compute_at(schedule[out], shared)
    blocks = te.thread_axis("blockIdx.x")
    block, thread = schedule[out].split(schedule[out].fuse(*schedule[out].op.axis), factor=beside)
    schedule[out].bind(block, blocks)
    schedule[out].bind(thread, along)
    if sharing > 1:  # the bound here, so that all threads reach the barriers
        is_inside = blocks.var * beside + along.var < results
        schedule[out].set_store_predicate(tir.all(across.var.equal(0), is_inside))
    return schedule


def _reads_along_reduced(op: te.Operation) -> bool | None:
    """Whether the innermost axis of the data that has elements is reduced; None if that cannot be seen."""
    found: list[bool] = []
    axes = [axis.var for axis in op.reduce_axis]

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tir.ProducerLoad):
            places = [place for place, extent in zip(node.indices, node.producer.shape) if known(extent) != 1]
            found.append(any(place.same_as(axis) for place in places[-1:] for axis in axes))

    for reduce in op.body[:1]:
        for source in reduce.source:
            tir.stmt_functor.post_order_visit(source, visit)
    return found[0] if found and len(set(found)) == 1 else None


_reduction._schedule_reduce = _schedule
