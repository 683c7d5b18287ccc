"""Softmax and log-softmax: on CUDA in one kernel, on CPUs in vectors, in float32.

On CUDA, TVM has a kernel for each of the maximum, the exponentials, their sum and the quotient, unless there
are two axes; and a thread of these reads a whole row. On CPUs it finds the maximum and the sum of a row one
element after the other. Importing this module replaces the computation for floats of up to 32 bits along
an axis of known length; on CPUs, for float32, where a vector fits into that axis or, unless it is the last
one, into those behind it. Half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._floats import Locals, spread
from .._kernel import in_a_row, in_vectors, ramp, total_of
from .._register import known
from .._rows import Kernel, Row, Rows, of_rows, schedule_of_rows
from .._strategy import generic
from .._tvm import BufferVar, IRBuilder

FLOATS = ("float32", "float16", "bfloat16")
LANES, FEW_LANES = 16, 4  # of a vector on CPUs, and of those of what is left over


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


def softmax_on_cpus(data: te.Tensor, axis: int, is_log: bool) -> te.Tensor:
    """The result for float32: vectors are along the axis if it is the last one, else behind it."""
    rows = Rows.of(data, axis)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        (given, index_type), (result, _) = in_a_row(ib, ins[0]), in_a_row(ib, outs[0])
        with ib.for_range(0, rows.outer, "row", kind="parallel") as row:
            first = row.astype(index_type) * rows.channels * rows.inner
            start = Locals(ib, "global")("start", first)
            if rows.is_last:
                _emit_row(ib, is_log, rows.channels, start, given, result)
            else:
                for column, lanes in in_vectors(ib, int(rows.inner), LANES):
                    _emit_columns(ib, is_log, rows, start + column, lanes, given, result)
        return ib.get()

    return te.extern([data.shape], [data], emit, dtype=[data.dtype], name="softmax")


def _emit_columns(
    ib: IRBuilder,
    is_log: bool,
    rows: Rows,
    start: tir.PrimExpr,
    lanes: int,
    given: BufferVar,
    result: BufferVar,
) -> None:
    """Of as many neighbouring columns of a matrix (channels, columns), of which the first starts there."""
    every, local = ramp(0, 1, lanes), Locals(ib, "global")

    def variable(name: str, value: tir.PrimExpr) -> BufferVar:
        found = ib.allocate("float32", lanes, name, scope="global")
        found[every] = spread(value, lanes)
        return found

    def at(channel: tir.PrimExpr) -> tir.PrimExpr:
        return ramp(start + channel * rows.inner, 1, lanes)

    top, total = variable("top", tir.min_value("float32")), variable("total", tir.const(0.0, "float32"))
    with ib.for_range(0, rows.channels, "channel") as channel:
        top[every] = te.max(top[every], given[at(channel)])
    with ib.for_range(0, rows.channels, "channel") as channel:
        exponential = local("exponential", te.exp(given[at(channel)] - top[every]))
        total[every] = total[every] + exponential
        if not is_log:
            result[at(channel)] = exponential
    one = spread(tir.const(1.0, "float32"), lanes)
    last = local("last", te.log(total[every]) if is_log else one / total[every])
    with ib.for_range(0, rows.channels, "channel") as channel:
        place = at(channel)
        result[place] = given[place] - top[every] - last if is_log else result[place] * last


def _emit_row(
    ib: IRBuilder, is_log: bool, channels: int, start: tir.PrimExpr, given: BufferVar, result: BufferVar
) -> None:
    local, every = Locals(ib, "global"), ramp(0, 1, LANES)

    def reduced(
        first: tir.PrimExpr,
        add: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr],
        value: Callable[[tir.PrimExpr, int], tir.PrimExpr],
    ) -> tir.PrimExpr:
        """What `add` makes of the values at all vectors of the row."""
        parts = ib.allocate("float32", LANES, "parts", scope="global")
        parts[every] = spread(first, LANES)
        for at, lanes in in_vectors(ib, channels, LANES, FEW_LANES):
            some = ramp(0, 1, lanes)
            parts[some] = add(parts[some], value(start + at, lanes))
        return local("whole", total_of(parts, LANES, add))

    def less_than_top(at: tir.PrimExpr, lanes: int) -> tir.PrimExpr:
        return given[ramp(at, 1, lanes)] - spread(top, lanes)

    def exponential(at: tir.PrimExpr, lanes: int) -> tir.PrimExpr:
        if is_log:
            return te.exp(less_than_top(at, lanes))
        result[ramp(at, 1, lanes)] = te.exp(less_than_top(at, lanes))
        return result[ramp(at, 1, lanes)]

    top = reduced(tir.min_value("float32"), te.max, lambda at, lanes: given[ramp(at, 1, lanes)])
    total = reduced(tir.const(0.0, "float32"), lambda a, b: a + b, exponential)
    last = local("log", te.log(total)) if is_log else local("factor", tir.const(1.0, "float32") / total)
    for at, lanes in in_vectors(ib, channels, LANES, FEW_LANES):
        some, each = ramp(start + at, 1, lanes), spread(last, lanes)
        result[some] = less_than_top(start + at, lanes) - each if is_log else result[some] * each


def _register(
    name: str,
    key: str,
    takes: Callable[[te.Tensor, int], bool],
    ours: Callable[[te.Tensor, int], te.Tensor],
    stock_schedule: Callable[..., te.Schedule],
) -> None:
    """Register `ours` for what it takes, and TVM's for the rest."""
    stock = getattr(topi.nn, name)

    @getattr(generic, f"{name}_strategy").register(key, override=True)
    def strategy(
        attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _type: relay.Type, _target: tvm.target.Target
    ) -> registry.OpStrategy:
        axis, result = int(attrs.axis), registry.OpStrategy()
        is_ours = takes(inputs[0], axis)

        def compute(_attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _type: relay.Type) -> list[te.Tensor]:
            return [(ours if is_ours else stock)(inputs[0], axis)]

        schedule: Any = schedule_of_rows if is_ours else generic.wrap_topi_schedule(stock_schedule)
        result.add_implementation(compute, schedule, name=f"{name}.{key}")
        return result


def _is_of_rows(data: te.Tensor, axis: int) -> bool:
    return bool(data.dtype in FLOATS and len(data.shape) and known(data.shape[axis]))


def _is_of_vectors(data: te.Tensor, axis: int) -> bool:
    if data.dtype != "float32" or not len(data.shape) or not known(data.shape[axis]):
        return False
    rows = Rows.of(data, axis)
    return (rows.channels if rows.is_last else known(rows.inner) or 0) >= LANES


for _name, _is_log in (("softmax", False), ("log_softmax", True)):
    _on_cuda = partial(softmax, is_log=_is_log)
    _on_cpus = partial(softmax_on_cpus, is_log=_is_log)
    _register(_name, "cuda", _is_of_rows, _on_cuda, topi.cuda.schedule_softmax)
    _register(_name, "cpu", _is_of_vectors, _on_cpus, topi.x86.schedule_softmax)
