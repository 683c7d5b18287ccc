"""Reductions on CPUs over all axes but the innermost, as means over pixels in NHWC: sums stay in registers.

TVM computes one element of the result after another, so for each it goes through the whole data in strides.
Importing this module replaces that schedule where the innermost axis is known and even, and what is reduced
is read as it lies: vectors of neighbouring elements are reduced at once, in the same order as before, so
results stay the same.
"""

from __future__ import annotations

import importlib
from typing import Any

import tvm
from tvm import te, tir, topi

from .._kernel import bytes_of, most_lanes
from .._register import known

_reduction: Any = importlib.import_module("tvm.topi.x86.reduction")
_stock = _reduction._schedule_reduce

MAX_BYTES = 64  # of a vector
MAX_VECTORS = 8  # that are reduced at once, each in a register


def _schedule(schedule: te.Schedule, op: te.Operation, is_idx_reduce: bool = False) -> None:
    lanes = 1 if is_idx_reduce or not _reads_along_results(op) else _lanes(op)
    if lanes == 1:
        _stock(schedule, op, is_idx_reduce)
        return
    out = op.output(0)
    vectors = int(op.axis[-1].dom.extent) // lanes
    together = next(count for count in range(MAX_VECTORS, 0, -1) if vectors % count == 0)
    partial = schedule.cache_write(out, "local")
    *rows, elements = schedule[out].op.axis
    block, inner = schedule[out].split(elements, factor=lanes * together)
    vector, lane = schedule[out].split(inner, factor=lanes)
    blocks = schedule[out].fuse(*rows, block)
    schedule[out].parallel(blocks)
    schedule[out].unroll(vector)
    schedule[out].vectorize(lane)
    schedule[partial].compute_at(schedule[out], blocks)
    *_, elements = schedule[partial].op.axis
    vector, lane = schedule[partial].split(elements, factor=lanes)
    schedule[partial].reorder(*schedule[partial].op.reduce_axis, vector, lane)
    schedule[partial].unroll(vector)
    schedule[partial].vectorize(lane)


def _lanes(op: te.Operation) -> int:
    """Elements of a vector; 1 if none divides the innermost axis."""
    extent, out = known(op.axis[-1].dom.extent), op.output(0)
    return most_lanes(extent, MAX_BYTES // bytes_of(out.dtype)) if extent else 1


def _reads_along_results(op: te.Operation) -> bool:
    """Whether neighbours in the result are reductions of neighbours in the data, and of nothing else."""
    if op.num_outputs != 1 or not op.axis or not op.reduce_axis:
        return False
    innermost, found = op.axis[-1].var, []

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tir.ProducerLoad):
            found.append(len(node.indices) > 0 and node.indices[-1].same_as(innermost))

    for source in op.body[0].source:
        tir.stmt_functor.post_order_visit(source, visit)
    return bool(found) and all(found) and all(map(_is_as_it_lies, op.input_tensors))


def _is_as_it_lies(data: te.Tensor) -> bool:
    """Whether a tensor is in memory, or computed of such element by element."""
    if isinstance(data.op, te.PlaceholderOp):
        return True
    return topi.tag.is_broadcast(data.op.tag) and all(map(_is_as_it_lies, data.op.input_tensors))


_reduction._schedule_reduce = _schedule
