"""Reductions on CPUs in vectors: over all axes but the innermost, as means of pixels in NHWC; sums of rows.

TVM computes one element of the result after another. Over all axes but the innermost, it so goes through the
whole data in strides for each. Importing this module replaces that schedule where the innermost axis is known
and even, and what is reduced is read as it lies: vectors of neighbouring elements are reduced at once, in the
same order as before, so results stay the same.

Along the innermost axes, as over pixels in NCHW, LLVM keeps the order of a sum of floats, which so takes an
element at a time. Here it is that of sums for each lane of a vector, which are rounded less often.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tir, topi

from .._kernel import bytes_of, most_lanes
from .._lanes import has_lanes, in_lanes, schedule
from .._register import known
from .._strategy import Compute, compute_by, stock_compute
from .extremes import axes_of

_reduction: Any = importlib.import_module("tvm.topi.x86.reduction")
_stock = _reduction._schedule_reduce

FLOATS = ("float32", "float64")
MAX_BYTES = 64  # of a vector
MAX_VECTORS = 8  # that are reduced at once, each in a register


def _schedule(made: te.Schedule, op: te.Operation, is_idx_reduce: bool = False) -> None:
    lanes = 1 if is_idx_reduce or not _reads_along_results(op) else _lanes(op)
    if lanes == 1:
        _stock(made, op, is_idx_reduce)
        return
    out = op.output(0)
    vectors = int(op.axis[-1].dom.extent) // lanes
    together = next(count for count in range(MAX_VECTORS, 0, -1) if vectors % count == 0)
    partial = made.cache_write(out, "local")
    *rows, elements = made[out].op.axis
    block, inner = made[out].split(elements, factor=lanes * together)
    vector, lane = made[out].split(inner, factor=lanes)
    blocks = made[out].fuse(*rows, block)
    made[out].parallel(blocks)
    made[out].unroll(vector)
    made[out].vectorize(lane)
    made[partial].compute_at(made[out], blocks)
    *_, elements = made[partial].op.axis
    vector, lane = made[partial].split(elements, factor=lanes)
    made[partial].reorder(*made[partial].op.reduce_axis, vector, lane)
    made[partial].unroll(vector)
    made[partial].vectorize(lane)


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


def sum_in_lanes(data: te.Tensor, axes: Sequence[int], keepdims: bool, divisor: int = 1) -> te.Tensor | None:
    """A sum of rows, the last `axes`, over a number; None where it has no vectors."""
    if data.dtype not in FLOATS or not has_lanes(data, axes):
        return None
    reduce = te.comm_reducer(lambda x, y: x + y, lambda dtype: tir.const(0, dtype), name="sum")
    shape = [*data.shape[: axes[0]], *([1] * len(axes) if keepdims else [])]
    count = tir.const(divisor, data.dtype)
    return in_lanes(data, axes, reduce, lambda _, value: value, lambda total: total / count, shape)


def _of_rows(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    data, *means = inputs
    axes, divisor = axes_of(attrs, len(data.shape)), 1
    if name != "sum":
        divisor = math.prod(known(data.shape[axis]) or 0 for axis in axes) - bool(means and attrs.unbiased)
    for mean in means:
        difference = topi.subtract(data, mean)
        data = topi.multiply(difference, difference)
    found = sum_in_lanes(data, axes, bool(attrs.keepdims), divisor)
    return list(stock(attrs, inputs, type_)) if found is None else [found]


_reduction._schedule_reduce = _schedule
for _name in ("sum", "mean", "variance"):
    compute_by(_name, functools.partial(_of_rows, _name, stock_compute(_name)), schedule)
