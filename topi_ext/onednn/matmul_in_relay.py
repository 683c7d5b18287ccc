"""The strategies by which Relay computes nn.batch_matmul, nn.dense and nn.matmul with oneDNN.

Importing this module registers them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relay, te, topi
from tvm.relay.op import op as registry

from .._register import known
from .._types import IntExpr
from . import library
from .matmul import AT_RUN_TIME, Problem, is_capable, product

ABOVE_TVM = 40  # the level of TVM's own bindings is up to 15
generic: Any = importlib.import_module("tvm.relay.op.strategy.generic")
x86: Any = importlib.import_module("tvm.relay.op.strategy.x86")


def _problem(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], dtype: str) -> Problem | None:
    """The problem of a product of matrices or of batches of them, or None where it is not one for oneDNN."""
    shapes = [[*[1] * (3 - len(tensor.shape)), *map(known, tensor.shape)] for tensor in inputs]
    if any(0 in shape for shape in shapes) or inputs[0].dtype != inputs[1].dtype:
        return None
    is_dense = not hasattr(attrs, "transpose_a")
    transposed = [False, True] if is_dense else [bool(attrs.transpose_a), bool(attrs.transpose_b)]
    return Problem(
        [[extent or AT_RUN_TIME for extent in shape] for shape in shapes], transposed, inputs[0].dtype, dtype
    )


def _shape(problem: Problem, inputs: Sequence[te.Tensor]) -> list[IntExpr]:
    """The shape of the result, of tensors some of whose extents may be expressions."""
    left, right = (tensor.shape for tensor in inputs)
    is_one = problem.shapes[0][0] == 1
    return [
        *(right if is_one else left)[:-2],
        left[-1 if problem.transposed[0] else -2],
        right[-2 if problem.transposed[1] else -1],
    ]


def _compute(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type) -> list[te.Tensor]:
    problem = _problem(attrs, inputs, result.dtype)
    if problem is None:
        raise ValueError("the strategy has no oneDNN for such a product")
    return [product(problem, _shape(problem, inputs), inputs)]


def _schedule(_attrs: tvm.ir.Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """What TVM fuses behind the product is computed on all cores."""
    with target:
        s = te.create_schedule([out.op for out in outs])
        te.schedule.AutoInlineInjective(s)
        for out in outs:
            if not isinstance(out.op, te.ExternOp):
                topi.x86.injective.schedule_injective_from_existing(s, out)
    return s


def _register(
    of_all_targets: Any, stock: Callable[..., registry.OpStrategy], can_be_tuned: bool = True
) -> None:
    """Register a strategy for CPUs: TVM's own, and oneDNN's, which is preferred where it can.

    TVM's own that cannot be tuned is not asked for where oneDNN can: it would tell the user that it is slow.
    """

    @of_all_targets.register("cpu", override=True)
    def strategy(
        attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type, target: tvm.target.Target
    ) -> registry.OpStrategy:
        problem = _problem(attrs, inputs, result.dtype) if library.NAME in target.libs else None
        is_for_onednn = problem is not None and is_capable(problem)
        is_asked = can_be_tuned or not is_for_onednn
        strategy = stock(attrs, inputs, result, target) if is_asked else registry.OpStrategy()
        if is_for_onednn:
            strategy.add_implementation(_compute, _schedule, name="matmul.onednn", plevel=ABOVE_TVM)
        return strategy


_register(generic.batch_matmul_strategy, x86.batch_matmul_strategy_cpu)
_register(generic.dense_strategy, x86.dense_strategy_cpu)
_register(generic.matmul_strategy, x86.matmul_strategy_cpu, can_be_tuned=False)
