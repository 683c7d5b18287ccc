"""Comparisons of floats with NaN.

TVM tells LLVM that there is no NaN, so that outside of vectors "x < NaN" is true, and NaN equals all numbers.
It also takes "not x > y" for "x <= y". Importing this module takes that back, by an attribute of each of
LLVM's functions, and makes the negation of a comparison with NaN true.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import te, tir, topi

from .._strategy import compute_by, generic

BUILD = "target.build.llvm"
ATTRIBUTES = re.compile(r"^(attributes #\d+ = \{.*)\}$", re.MULTILINE)
OPPOSITES = {tir.GT: tir.LE, tir.GE: tir.LT, tir.LT: tir.GE, tir.LE: tir.GT}

_build = tvm.get_global_func(BUILD, allow_missing=True)


def build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    functions = {name: _with_nan_unequal(function) for name, function in mod.functions.items()}
    source = _build(tvm.IRModule(functions, attrs=mod.attrs), target).get_source("ll")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.ll")
        path.write_text(ATTRIBUTES.sub(r'\1"no-nans-fp-math"="false" }', source))
        return tvm.runtime.load_module(str(path))


def _with_nan_unequal(function: tir.PrimFunc) -> tir.PrimFunc:
    """TVM's code for "x != y" says that both are numbers, too."""

    def unequal(node: tir.NE) -> tir.PrimExpr | None:
        return tir.Not(tir.EQ(node.a, node.b)) if "float" in node.a.dtype else None

    body = tir.stmt_functor.ir_transform(function.body, None, unequal, ["tir.NE"])
    return function if body.same_as(function.body) else function.with_body(body)


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
if _build is not None:
    tvm.register_func(BUILD, build, override=True)
