"""Ask TVM's strategies whether a target has a kernel, before a pass changes the layout of an operator."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relay, te, topi
from tvm.relay.backend import te_compiler

REFUSALS = (tvm.TVMError, RuntimeError, ValueError, AssertionError, NotImplementedError)  # of strategies


def has_kernel(
    op: tvm.ir.Op, attrs: tvm.ir.Attrs, types: Sequence[relay.TensorType], target: tvm.target.Target
) -> bool:
    """Whether TVM's strategy for an operator has an implementation on a target, for these arguments."""
    inputs, result = _called(op, attrs, types)
    try:
        return bool(te_compiler.get_valid_implementations(op, attrs, inputs, result, target))
    except REFUSALS:
        return False


def lowers(
    op: tvm.ir.Op, attrs: tvm.ir.Attrs, types: Sequence[relay.TensorType], target: tvm.target.Target
) -> bool:
    """Whether the implementation that TVM chooses can be scheduled with an addition fused behind it.

    Some of TVM's schedules handle only part of the cases that their strategy selects them for.
    """
    inputs, result = _called(op, attrs, types)
    try:
        chosen, (output,) = te_compiler.select_implementation(op, attrs, inputs, result, target, False)
        other = te.placeholder(output.shape, output.dtype)
        total = topi.add(output, other)
        tvm.lower(chosen.schedule(attrs, [total], target), [*inputs, other, total])
    except REFUSALS:
        return False
    return True


def _called(
    op: tvm.ir.Op, attrs: tvm.ir.Attrs, types: Sequence[relay.TensorType]
) -> tuple[list[te.Tensor], relay.Type]:
    """Placeholders of these types, and the type of the result."""
    inputs = [te.placeholder(te_compiler.get_shape(type_.shape), type_.dtype) for type_ in types]
    call = relay.Call(op, [relay.var(f"x{at}", type_) for at, type_ in enumerate(types)], attrs)
    return inputs, relay.transform.InferTypeLocal(call)
