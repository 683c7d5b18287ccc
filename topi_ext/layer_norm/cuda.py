"""Normalization on CUDA: what the threads of a row compute, each of its share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .._rows import Kernel, Row, of_rows
from .._tvm import te, tir, topi
from .._warp import rsqrt
from .problem import Problem


def layer_norm(problem: Problem, tensors: dict[str, te.Tensor]) -> te.Tensor:
    """The result of the operator; `tensors` are the arguments that are given."""
    return of_rows(problem.rows, tensors, partial(_normalize, problem.epsilon), "layer_norm")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return topi.generic.schedule_extern(outs)


def _normalize(epsilon: float, kernel: Kernel, rows: list[Row]) -> None:
    variable = kernel.local.variable
    sums = [variable("sum", tir.const(0.0, "float32")) for _ in rows]
    with kernel.each_turn() as turn:
        for row, sum_ in zip(rows, sums):
            row.read(turn)
            with kernel.each_lane() as lane:
                sum_[0] = sum_[0] + row[turn, lane]
    means = [_mean(kernel, sum_[0]) for sum_ in sums]
    squares = [variable("squares", tir.const(0.0, "float32")) for _ in rows]
    with kernel.each_turn() as turn:
        for row, mean, sum_ in zip(rows, means, squares):
            row.read_again(turn)
            with kernel.each_lane() as lane:
                difference = kernel.local("difference", row[turn, lane] - mean)
                sum_[0] = sum_[0] + difference * difference
    exact = kernel.local.exact(epsilon)
    factors = [kernel.local("factor", rsqrt(_mean(kernel, sum_[0]) + exact)) for sum_ in squares]
    with kernel.each_turn() as turn:
        channels = turn * kernel.sharing + kernel.own
        affine = {name: kernel.load(name, channels) for name in ("gamma", "beta") if name in kernel.buffers}
        for row, mean, factor in zip(rows, means, factors):

            def result(value: tir.PrimExpr, lane: tir.PrimExpr) -> tir.PrimExpr:
                value = (value - mean) * factor  # noqa: B023 it is called at once
                if "gamma" in affine:
                    value = value * affine["gamma"][lane].astype("float32")
                if "beta" in affine:
                    value = value + affine["beta"][lane].astype("float32")
                return value

            kernel.write(row, turn, result)


def _mean(kernel: Kernel, part: tir.PrimExpr) -> tir.PrimExpr:
    return kernel.local("mean", kernel.total(part) / kernel.local.exact(kernel.problem.channels))
