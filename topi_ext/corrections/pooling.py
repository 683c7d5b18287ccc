"""Max and average pooling in NHWC on CUDA: a thread computes neighbouring channels.

TVM gives each element of a result to a thread, which reads two bytes of half precision at a time. Importing
this module replaces that schedule where the number of channels is known and even; results stay the same.
"""

from __future__ import annotations

import importlib
from typing import Any

from tvm import te, tir
from tvm.topi import tag

from .._kernel import bytes_of, most_lanes
from .._register import known

_pooling: Any = importlib.import_module("tvm.topi.cuda")
_stock = _pooling.schedule_pool

THREADS = 256  # of a block
MAX_BYTES = 16  # of the channels that a thread computes
MOST_OF_ONE_BYTE = 4  # of these, TVM writes no constant with more lanes: what pads them, for example


def schedule_pool(outs: list[te.Tensor] | te.Tensor, layout: str) -> te.Schedule:
    """The schedule of pooling and of what is fused behind."""
    (out,) = [outs] if isinstance(outs, te.Tensor) else outs
    pool = pool_below(out)
    lanes = 1
    if layout == "NHWC" and pool is not None and list(pool.shape) == list(out.shape):
        channels, widest = known(out.shape[-1]), max(map(bytes_of, _dtypes(out, pool)))
        most = MAX_BYTES // widest if widest > 1 else MOST_OF_ONE_BYTE
        lanes = most_lanes(channels, most) if channels else 1
    if lanes == 1 or pool is None:
        return _stock(outs, layout)
    schedule = te.create_schedule(out.op)
    # By comparisons, as `max_pooling` has it: TVM cannot write those of many lanes.
    is_compared = pool.op.tag == "pool_max" and "float" in pool.dtype
    (read,) = pool.op.input_tensors
    inline_but(schedule, out, pool, *([read] if is_compared else []))
    if is_compared and isinstance(read.op, te.PlaceholderOp):
        read = schedule.cache_read(read, "local", [pool])
    if pool.op.same_as(out.op):
        pool = schedule.cache_write(out, "local")
    else:
        schedule[pool].set_scope("local")
    *places, channel = schedule[out].op.axis
    run, lane = schedule[out].split(channel, factor=lanes)
    block, thread = schedule[out].split(schedule[out].fuse(*places, run), factor=THREADS)
    schedule[out].bind(block, te.thread_axis("blockIdx.x"))
    schedule[out].bind(thread, te.thread_axis("threadIdx.x"))
    schedule[out].vectorize(lane)
    schedule[pool].compute_at(schedule[out], thread)
    *_, of_pool = schedule[pool].op.axis
    reduced = schedule[pool].op.reduce_axis
    schedule[pool].reorder(*reduced, of_pool)
    if is_compared:
        schedule[pool].unroll(of_pool)
        schedule[read].set_scope("local")
        schedule[read].compute_at(schedule[pool], reduced[-1])
        schedule[read].vectorize(schedule[read].op.axis[-1])
    else:
        schedule[pool].vectorize(of_pool)
    return schedule


def pool_below(out: te.Tensor) -> te.Tensor | None:
    """The result of pooling that `out` is computed from, if all in between is computed element by element."""
    if out.op.tag.startswith("pool"):
        return out
    if not tag.is_injective(out.op.tag):
        return None
    found = [pool_below(each) for each in out.op.input_tensors if isinstance(each.op, te.ComputeOp)]
    pools = [each for each in found if each is not None]
    return pools[0] if len(pools) == 1 else None


def _dtypes(out: te.Tensor, pool: te.Tensor) -> set[str]:
    """Of the vectors of a thread: of all that is computed with what is pooled, in half precision or not."""
    found = {out.dtype}
    if out.op.same_as(pool.op) or not isinstance(out.op, te.ComputeOp):
        return found

    def visit(node: Any) -> None:
        if isinstance(node, tir.PrimExpr) and "float" in node.dtype:  # integers are indices, too
            found.add(node.dtype)

    tir.stmt_functor.post_order_visit(out.op.body[out.value_index], visit)
    return found.union(*(_dtypes(each, pool) for each in out.op.input_tensors))


def inline_but(schedule: te.Schedule, tensor: te.Tensor, *kept: te.Tensor) -> None:
    """Compute all but some, what is pooled too, where it is read."""
    for each in tensor.op.input_tensors:
        if isinstance(each.op, te.ComputeOp):
            if not any(each.op.same_as(other.op) for other in kept):
                schedule[each].compute_inline()
            inline_but(schedule, each, *kept)


_pooling.schedule_pool = schedule_pool
