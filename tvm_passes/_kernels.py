"""What a target has kernels for, asked of TVM's own strategies: before a pass gives an operator a layout."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relay, te
from tvm.relay.backend import te_compiler

REFUSALS = (tvm.TVMError, RuntimeError, ValueError, AssertionError, NotImplementedError)  # of strategies


def has_kernel(
    op: tvm.ir.Op, attrs: tvm.ir.Attrs, types: Sequence[relay.TensorType], target: tvm.target.Target
) -> bool:
    """Whether TVM's strategy for an operator has an implementation on a target, for these arguments."""
    inputs = [te.placeholder(te_compiler.get_shape(type_.shape), type_.dtype) for type_ in types]
    call = relay.Call(op, [relay.var(f"x{at}", type_) for at, type_ in enumerate(types)], attrs)
    result = relay.transform.InferTypeLocal(call)
    try:
        return bool(te_compiler.get_valid_implementations(op, attrs, inputs, result, target))
    except REFUSALS:
        return False
