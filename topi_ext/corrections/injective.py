"""What moves or rounds int8 on CUDA: a thread computes neighbours in a row, and stores them at once.

TVM gives each element to a thread of its own, which for int8 reads and writes one byte. Importing this module
replaces that schedule for a result of one byte an element whose rows are computed from rows, element by
element, such as a nearest resize in NHWC, a pad of its borders, or the rounding of a tensor to int8. All else
keeps TVM's schedule, and results stay the same.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tir, topi

from .._kernel import most_lanes
from .._register import known

BYTES = ("int8", "uint8")
THREADS = 256  # of a block
MAX_LANES = 16  # of a thread: as many bytes are loaded and stored at once
# Of what computes or chooses: TVM writes no longer vectors of float32, nor constants.
MAX_LANES_OF_NUMBERS = 4
MIN_LANES = 4
OF_TWO = (tir.Add, tir.Sub, tir.Mul, tir.Min, tir.Max, tir.LT, tir.LE, tir.GT, tir.GE)
ROUNDING = ("tir.round", "tir.nearbyint")

_stock = topi.cuda.schedule_injective


def schedule_injective(outs: list[te.Tensor] | te.Tensor) -> te.Schedule:
    (out, *others) = [outs] if isinstance(outs, te.Tensor) else list(outs)
    lanes = 1 if others else _lanes(out)
    if lanes == 1:
        return _stock(outs)
    schedule = te.create_schedule(out.op)
    te.schedule.AutoInlineInjective(schedule)
    *places, last = schedule[out].op.axis
    run, lane = schedule[out].split(last, factor=lanes)
    block, thread = schedule[out].split(schedule[out].fuse(*places, run), factor=THREADS)
    schedule[out].bind(block, te.thread_axis("blockIdx.x"))
    schedule[out].bind(thread, te.thread_axis("threadIdx.x"))
    schedule[out].vectorize(lane)
    return schedule


def _lanes(out: te.Tensor) -> int:
    """The elements of a result that a thread computes as a vector."""
    shape = [known(extent) or 0 for extent in out.shape]  # 0 if it is known only at run time
    if out.dtype not in BYTES or not shape or 0 in shape:
        return 1
    lanes = most_lanes(shape[-1], _most_lanes_of(out))
    return lanes if lanes >= MIN_LANES else 1


def _most_lanes_of(tensor: te.Tensor) -> int:
    """How many neighbours in a row can be computed as a vector."""
    if isinstance(tensor.op, te.PlaceholderOp):  # whose rows may be longer, as those of a slice are
        return most_lanes(known(tensor.shape[-1]) or 1, MAX_LANES)
    if not isinstance(tensor.op, te.ComputeOp) or not topi.tag.is_injective(tensor.op.tag):
        return 1
    return _most_lanes_in(tensor.op.body[tensor.value_index], tensor.op.axis[-1].var)


def _most_lanes_in(value: tir.PrimExpr, last: tir.Var) -> int:
    """The same of an expression; `last` is the index in the row."""

    def least(*values: tir.PrimExpr) -> int:
        return min(MAX_LANES_OF_NUMBERS, *(_most_lanes_in(each, last) for each in values))

    if not _uses(value, last):
        # TVM has vectors of a byte that is repeated only where it is a constant.
        return MAX_LANES_OF_NUMBERS if value.dtype not in BYTES or _is_constant(value) else 1
    if isinstance(value, tir.ProducerLoad):
        *others, at = value.indices
        is_of_a_row = tvm.arith.Analyzer().simplify(at).same_as(last) and not any(
            _uses(each, last) for each in others
        )
        return _most_lanes_of(value.producer) if is_of_a_row else 1
    if isinstance(value, tir.Cast):
        return least(value.value)
    if isinstance(value, OF_TWO) and value.a.dtype not in BYTES:  # x + x becomes x * 2, with such a byte
        return least(value.a, value.b)
    if isinstance(value, tir.Select):
        return least(value.condition, value.true_value, value.false_value)
    name = getattr(value.op, "name", "") if isinstance(value, tir.Call) else ""
    if name == "tir.if_then_else" and not _uses(value.args[0], last):
        return least(*value.args[1:])
    return least(*value.args) if name in ROUNDING else 1


def _is_constant(value: tir.PrimExpr) -> bool:
    if isinstance(value, tir.Cast):
        return _is_constant(value.value)
    if isinstance(value, tir.ProducerLoad) and isinstance(value.producer.op, te.ComputeOp):
        return _is_constant(value.producer.op.body[value.producer.value_index])
    return isinstance(value, (tir.IntImm, tir.FloatImm))


def _uses(value: tir.PrimExpr, variable: tir.Var) -> bool:
    found: list[Any] = []
    tir.stmt_functor.post_order_visit(value, lambda node: found.append(node.same_as(variable)))
    return any(found)


topi.cuda.schedule_injective = schedule_injective
