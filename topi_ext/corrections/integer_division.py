"""Divisions of integers by zero, and of the least integer by -1, with the results of `_integer_division`.

Importing this module gives them these on every target, and has its floor divisions lowered without sums.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import te, tir

from .._integer_division import QUOTIENTS, REMAINDERS, divided, without_sums
from .._strategy import Compute, compute_by, generic, stock_compute, with_body


def _divided(stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    (body,) = result.op.body
    is_of_integers = isinstance(body, QUOTIENTS + REMAINDERS) and "int" in body.dtype
    if not is_of_integers:
        return [result]
    compute = without_sums if _has_results(body.b) else divided
    return [with_body(result, compute(type(body), body.a, body.b))]


def _has_results(divisor: tir.PrimExpr) -> bool:
    """Whether all numbers can be divided by it: what stays a single operation, however many follow it."""
    while isinstance(divisor, tir.ProducerLoad) and isinstance(divisor.producer.op, te.ComputeOp):
        divisor = divisor.producer.op.body[divisor.producer.value_index]
    return isinstance(divisor, tir.IntImm) and int(divisor) not in (0, -1)


for _name in ("divide", "floor_divide", "floor_mod", "mod", "trunc_divide", "trunc_mod"):
    compute_by(_name, functools.partial(_divided, stock_compute(_name)), generic.schedule_injective)
