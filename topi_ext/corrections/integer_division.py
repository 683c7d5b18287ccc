"""Divisions of integers that a processor has no result for: by zero, and of the least integer by -1.

On a CPU either one ends the process, and what CUDA computes is not defined. Importing this module gives them
the results of NumPy on every target: a quotient by zero and its remainder are 0, and the least integer
divided by -1 is itself, as its negative wraps. PyTorch raises an exception for a division by zero, which a
kernel cannot.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import te, tir

from .._strategy import Compute, compute_by, generic, stock_compute

QUOTIENTS, REMAINDERS = (tir.Div, tir.FloorDiv), (tir.Mod, tir.FloorMod)


def _divided(stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    (body,) = result.op.body
    is_of_integers = isinstance(body, QUOTIENTS + REMAINDERS) and "int" in body.dtype
    if not is_of_integers or _has_results(body.b):
        return [result]
    axes = [axis.var for axis in result.op.axis]

    def at_place(*at: tir.Var) -> tir.PrimExpr:
        return tir.stmt_functor.substitute(_defined(body), dict(zip(axes, at)))

    return [te.compute(result.shape, at_place, name=result.op.name, tag=result.op.tag)]


def _has_results(divisor: tir.PrimExpr) -> bool:
    """Whether all numbers can be divided by it: what stays a single operation, however many follow it."""
    while isinstance(divisor, tir.ProducerLoad) and isinstance(divisor.producer.op, te.ComputeOp):
        divisor = divisor.producer.op.body[divisor.producer.value_index]
    return isinstance(divisor, tir.IntImm) and int(divisor) not in (0, -1)


def _defined(division: tir.PrimExpr) -> tir.PrimExpr:
    """The same division, by 1 where there is no result: the least integer stays, and nothing remains."""
    dividend, divisor, dtype = division.a, division.b, division.dtype
    zero, one = tir.const(0, dtype), tir.const(1, dtype)
    is_zero = divisor.equal(zero)
    has_none = is_zero
    if dtype.startswith("int"):
        # By its bits: TVM's simplifier subtracts what is compared, and the least integer has no negative.
        is_least = (dividend ^ tir.min_value(dtype)).equal(zero)
        has_none = tir.any(is_zero, tir.all(divisor.equal(tir.const(-1, dtype)), is_least))
    result = type(division)(dividend, tir.Select(has_none, one, divisor))
    return tir.Select(is_zero, zero, result) if isinstance(division, QUOTIENTS) else result


for _name in ("divide", "floor_divide", "floor_mod", "mod", "trunc_divide", "trunc_mod"):
    compute_by(_name, functools.partial(_divided, stock_compute(_name)), generic.schedule_injective)
