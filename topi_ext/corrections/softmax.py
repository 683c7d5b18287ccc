"""Softmax and log-softmax on CUDA in one kernel, in float32.

TVM has a kernel for each of the maximum, the exponentials, their sum and the quotient, unless there
are two axes; and a thread of these reads a whole row. Importing this module replaces the computation for
floats of up to 32 bits along an axis of known length. Half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._register import known
from .._rows import Kernel, Row, Rows, of_rows, schedule_of_rows
from .._strategy import generic

FLOATS = ("float32", "float16", "bfloat16")


def softmax(data: te.Tensor, axis: int, is_log: bool) -> te.Tensor:
    """The result of `nn.softmax` or `nn.log_softmax` on CUDA."""
    name = "log_softmax" if is_log else "softmax"
    return of_rows(Rows.of(data, axis), {"data": data}, partial(_softmax, is_log), name)


def _softmax(is_log: bool, kernel: Kernel, rows: list[Row]) -> None:
    variable = kernel.local.variable
    maxima = [variable("maximum", tir.min_value("float32")) for _ in rows]
    with kernel.each_turn() as turn:
        for row, maximum in zip(rows, maxima):
            row.read(turn)
            with kernel.each_lane() as lane:
                maximum[0] = te.max(maximum[0], row[turn, lane])
    tops = [kernel.local("top", kernel.total(maximum[0], te.max)) for maximum in maxima]
    sums = [variable("sum", tir.const(0.0, "float32")) for _ in rows]
    with kernel.each_turn() as turn:
        for row, top, sum_ in zip(rows, tops, sums):
            row.read_again(turn)
            with kernel.each_lane() as lane:
                sum_[0] = sum_[0] + te.exp(row[turn, lane] - top)
    totals = [kernel.local("total", kernel.total(sum_[0])) for sum_ in sums]
    if is_log:
        totals = [kernel.local("log", te.log(total)) for total in totals]
    with kernel.each_turn() as turn:
        for row, top, total in zip(rows, tops, totals):
            kernel.write(row, turn, partial(_result, is_log, top, total))


def _result(
    is_log: bool, top: tir.PrimExpr, total: tir.PrimExpr, value: tir.PrimExpr, _lane: tir.PrimExpr
) -> tir.PrimExpr:
    return value - top - total if is_log else te.exp(value - top) / total


def _register(name: str, is_log: bool) -> None:
    strategies = getattr(generic, f"{name}_strategy")
    stock = getattr(topi.nn, name)

    @strategies.register("cuda", override=True)
    def strategy(
        attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _type: relay.Type, target: tvm.target.Target
    ) -> registry.OpStrategy:
        data, axis, result = inputs[0], int(attrs.axis), registry.OpStrategy()
        is_ours = data.dtype in FLOATS and len(data.shape) and known(data.shape[axis])

        def compute(_attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _type: relay.Type) -> list[te.Tensor]:
            return [softmax(inputs[0], axis, is_log) if is_ours else stock(inputs[0], axis)]

        schedule: Any = (
            schedule_of_rows if is_ours else generic.wrap_topi_schedule(topi.cuda.schedule_softmax)
        )
        result.add_implementation(compute, schedule, name=f"{name}.cuda")
        return result


_register("softmax", is_log=False)
_register("log_softmax", is_log=True)
