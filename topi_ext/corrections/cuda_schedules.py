"""Correct CUDA schedules of TVM that leave loops without threads: "Memory verification failed"."""

from __future__ import annotations

from types import CodeType
from typing import Any

import tvm
from tvm import relay, te, topi
from tvm.relay.op import op as registry
from tvm.topi.cuda import schedule_batch_matmul_tensorcore

from .._strategy import ABOVE_STOCK, generic


def apply() -> None:
    """Apply every correction."""
    _schedule_what_follows_batch_matmul()
    _schedule_einsum()


def _schedule_what_follows_batch_matmul() -> None:
    """On tensor cores, operators fused behind a batch_matmul get threads only if they are tagged "injective".

    A cast or a sum has another tag. The schedule of nn.dense, otherwise the same, has no such condition.
    """
    stock = schedule_batch_matmul_tensorcore.__wrapped__
    stock.__code__ = _with_constant(stock.__code__, "injective", "")  # which every tag contains


def _with_constant(code: CodeType, old: str, new: str) -> CodeType:
    """The code object with one constant replaced, also in nested functions."""

    def replaced(value: Any) -> Any:
        if isinstance(value, CodeType):
            return _with_constant(value, old, new)
        return new if isinstance(value, str) and value == old else value

    return code.replace(co_consts=tuple(map(replaced, code.co_consts)))


def _schedule_einsum() -> None:
    """Register einsum as what it is: TVM schedules it as an extern function, and treats it as injective."""

    def schedule(_attrs: tvm.ir.Attrs, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
        (out,) = outs
        with target:
            made = te.create_schedule(out.op)
            return topi.cuda.schedule_injective_from_existing(made, out)  # a thread sums an element

    @generic.einsum_strategy.register("cuda", override=True)
    def strategy(
        _attrs: tvm.ir.Attrs, _inputs: list[te.Tensor], _type: relay.Type, _target: tvm.target.Target
    ) -> registry.OpStrategy:
        made = registry.OpStrategy()
        made.add_implementation(generic.wrap_compute_einsum(topi.einsum), schedule, name="einsum.cuda")
        return made

    if relay.op.get("einsum").get_attr("TOpPattern") != registry.OpPattern.OPAQUE:  # TVM keeps it
        registry.register_pattern("einsum", registry.OpPattern.OPAQUE, ABOVE_STOCK)


apply()
