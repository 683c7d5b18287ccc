"""Negations of comparisons with NaN, which are true: TVM takes "not x > y" for "x <= y"."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tir, topi

from .._strategy import compute_by, generic

OPPOSITES = {tir.GT: tir.LE, tir.GE: tir.LT, tir.LT: tir.GE, tir.LE: tir.GT}


def logical_not(attrs: Any, inputs: list[te.Tensor], _type: tvm.ir.Type) -> list[te.Tensor]:
    (data,) = inputs
    return [te.compute(data.shape, lambda *at: _negated(data(*at)), "T_logical_not", topi.tag.ELEMWISE)]


def _negated(truth: tir.PrimExpr) -> tir.PrimExpr:
    """Not a truth, for which it is looked at as it is computed."""
    if isinstance(truth, tir.ProducerLoad) and isinstance(truth.producer.op, te.ComputeOp):
        operation = truth.producer.op
        axes = {axis.var: at for axis, at in zip(operation.axis, truth.indices)}
        if operation.tag in (topi.tag.ELEMWISE, topi.tag.BROADCAST):
            return _negated(tir.stmt_functor.substitute(operation.body[0], axes))
    elif isinstance(truth, (tir.And, tir.Or)):
        other = tir.Or if isinstance(truth, tir.And) else tir.And
        return other(_negated(truth.a), _negated(truth.b))
    elif type(truth) in OPPOSITES and "float" in truth.a.dtype:
        unknown = (tir.isnan(value) for value in map(_wide, (truth.a, truth.b)))
        return tir.any(OPPOSITES[type(truth)](truth.a, truth.b), *unknown)
    return tir.Not(truth)


def _wide(value: tir.PrimExpr) -> tir.PrimExpr:
    return value.astype("float32") if value.dtype == "bfloat16" else value


compute_by("logical_not", logical_not, generic.schedule_injective)
