"""Replace the computation of a TVM operator on every target, and keep TVM's schedules for such operators."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tir
from tvm.relay.op import op as registry
from tvm.target import override_native_generic_func

generic: Any = importlib.import_module("tvm.relay.op.strategy.generic")
ABOVE_STOCK = 11  # the level of TVM's own registrations is 10
Compute = Callable[[Any, list[te.Tensor], tvm.ir.Type], list[te.Tensor]]


def stock_compute(name: str) -> Compute:
    return registry.get(name).get_attr("FTVMCompute")


def with_body(tensor: te.Tensor, body: tir.PrimExpr) -> te.Tensor:
    """The same tensor, computed by another expression of the same axes."""
    operation = tensor.op
    computed = te._ffi_api.ComputeOp(operation.name, operation.tag, operation.attrs, operation.axis, [body])
    return computed.output(0)


def compute_by(name: str, compute: Compute, schedule_for: Callable[..., te.Schedule]) -> None:
    """Register `compute` for an operator; `schedule_for` is a schedule of `generic`."""

    def schedule(attrs: tvm.ir.Attrs, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
        with target:
            return schedule_for(attrs, outs, target)

    def strategy(*_: Any) -> registry.OpStrategy:
        result = registry.OpStrategy()
        result.add_implementation(compute, schedule, name=f"{name}.topi_ext")
        return result

    registry.get(name).reset_attr("FTVMStrategy")
    registry.register_strategy(name, override_native_generic_func(f"{name}.topi_ext")(strategy))
