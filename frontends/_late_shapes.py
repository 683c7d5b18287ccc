"""Refuses operators that TVM cannot compile because a size is dynamic."""

from __future__ import annotations

import tvm
from tvm import relay

from .errors import ImportFailure

# Before lowering, TVM expands these into operators that have shape functions.
SPELT_OUT = {
    *("nn.batch_norm", "nn.dropout", "nn.group_norm", "nn.instance_norm", "nn.l2_normalize", "nn.layer_norm")
}


def check(mod: tvm.IRModule) -> None:
    """Refuse a typed module with an operator that TVM compiles for static shapes only."""
    refused: list[relay.Call] = []

    def visit(expr: relay.Expr) -> None:
        if isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op) and not refused:
            name = expr.op.name
            if name in SPELT_OUT or name.startswith("qnn.") or not relay.ty.is_dynamic(expr.checked_type):
                return
            if expr.op.get_attr("FShapeFunc") is None:
                refused.append(expr)

    for function in mod.functions.values():
        if isinstance(function, relay.Function):
            relay.analysis.post_order_visit(function, visit)
    for call in refused:
        where = f"the node '{call.span.source_name.name}'" if call.span else "a node"
        raise ImportFailure(
            f"{where} has dynamic sizes, and TVM compiles '{call.op.name}' for static shapes only: "
            "pass the shapes of the inputs"
        )
