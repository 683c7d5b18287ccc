"""Reductions on CUDA that keep a GPU busy, and whose threads read what lies side by side.

TVM gives 32 threads to each element of a result, along the axes that are reduced; to a reduction of
everything, one block. Where these axes are not the innermost, as in a mean over the pixels of NHWC, each
thread reads another line of memory; where few elements are reduced, most threads have nothing to do; and
where few are left, most of the GPU. Importing this module replaces that schedule for reductions whose sizes
are known, and for pooling to one pixel. Only the order of the sums changes.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tir

from .._register import known

_reduction: Any = importlib.import_module("tvm.topi.cuda.reduction")
_pooling: Any = importlib.import_module("tvm.topi.cuda.pooling")
_stock = _reduction._schedule_reduce

THREADS = 256  # of a block
WARP = 32
ENOUGH = 2**17  # threads that keep a large GPU busy
ELEMENTS = 4  # at least, that a thread reduces by itself
MANY = 2**13  # elements that are worth a kernel for parts of them, and one for these parts


def _schedule(op: te.Operation, schedule: te.Schedule, is_idx_reduce: bool = False) -> te.Schedule:
    inner = None if is_idx_reduce or not op.reduce_axis else _reads_along_reduced(op)
    results, reduced = (_product(axes) for axes in (op.axis, op.reduce_axis))
    if inner is None or not results or not reduced:
        return _stock(op, schedule, is_idx_reduce)
    parts = min(ENOUGH // (results * WARP), reduced // (WARP * WARP)) if reduced >= MANY else 0
    out = op.output(0)
    if parts > 1:
        part, _ = schedule[out].split(schedule[out].fuse(*op.reduce_axis), nparts=parts)
        of_parts = schedule.rfactor(out, part)
        _bind(schedule, of_parts, inner, results * parts, -(-reduced // parts))
        _bind(schedule, out, False, results, parts)
    elif not len(op.axis):
        return _stock(op, schedule)
    else:
        _bind(schedule, out, inner, results, reduced)
    return schedule


def _product(axes: Sequence[tir.IterVar]) -> int:
    """The number of elements along some axes; 0 also where one is known only at run time."""
    simplify = tvm.arith.Analyzer().simplify  # pooling writes an extent as a difference
    return math.prod(known(simplify(axis.dom.extent)) or 0 for axis in axes)


def _bind(schedule: te.Schedule, out: te.Tensor, inner: bool, results: int, reduced: int) -> None:
    """Give threads to a reduction, along its `inner` axis or side by side along the axes that are left."""
    most = min(WARP, reduced // ELEMENTS) if inner else min(WARP, reduced // ELEMENTS, ENOUGH // results)
    sharing = 1 << max(most, 1).bit_length() - 1  # threads that share an element of the result
    beside = THREADS // sharing if inner else max(THREADS // sharing, WARP)
    across, along = te.thread_axis("threadIdx.x"), te.thread_axis("threadIdx.y")
    if not inner:
        across, along = along, across  # neighbouring threads take neighbouring results
    if sharing > 1:
        fused = schedule[out].fuse(*schedule[out].op.reduce_axis)
        _, part = schedule[out].split(fused, factor=sharing)
        parts = schedule.rfactor(out, part)
        (shared,) = schedule[out].op.reduce_axis
        schedule[out].bind(shared, across)
        schedule[parts].compute_at(schedule[out], shared)
    if not len(schedule[out].op.axis):
        schedule[out].set_store_predicate(across.var.equal(0))
        return
    blocks = te.thread_axis("blockIdx.x")
    block, thread = schedule[out].split(schedule[out].fuse(*schedule[out].op.axis), factor=beside)
    schedule[out].bind(block, blocks)
    schedule[out].bind(thread, along)
    if sharing > 1:  # the bound here, so that all threads reach the barriers
        is_inside = blocks.var * beside + along.var < results
        schedule[out].set_store_predicate(tir.all(across.var.equal(0), is_inside))


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


for _module in (_reduction, _pooling):  # that of pooling averages whole images
    _module._schedule_reduce = _schedule
