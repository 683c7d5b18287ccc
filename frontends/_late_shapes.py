"""Refuses operators that TVM cannot compile because a size is dynamic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relay

from ._types import IntExpr
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
            if name in SPELT_OUT:
                return
            is_dynamic = relay.ty.is_dynamic(expr.checked_type) and not name.startswith("qnn.")
            lacks_shape = is_dynamic and expr.op.get_attr("FShapeFunc") is None
            if lacks_shape or _has_unknown_channels(expr):
                refused.append(expr)

    for function in mod.functions.values():
        if isinstance(function, relay.Function):
            relay.analysis.post_order_visit(function, visit)
    for call in refused:
        where = f"the node '{call.span.source_name.name}'" if call.span else "a node"
        when = "where the number of channels is known" if _has_unknown_channels(call) else "for static shapes"
        shapes = {param.name_hint: param.checked_type.shape for param in mod["main"].params}
        remedy = how_to_fix(shapes) or "its sizes depend on data, so that shapes of inputs do not help"
        raise ImportFailure(
            f"{where} has dynamic sizes, and TVM compiles '{call.op.name}' only {when}: {remedy}"
        )


def how_to_fix(shapes: Mapping[str, Sequence[IntExpr]]) -> str:
    """What to pass to an importer so that all sizes of its inputs are known; empty if they are."""
    texts = {
        name: ["?" if isinstance(size, tvm.tir.Any) else str(size) for size in shape]
        for name, shape in shapes.items()
    }
    late = [f"'{name}': ({', '.join(shape)})" for name, shape in texts.items() if "?" in shape]
    return f"pass shapes={{{', '.join(late)}}} with a number for each ?" if late else ""


def _has_unknown_channels(call: relay.Call) -> bool:
    """Whether it is a convolution whose channels, or the shape of whose weights, are not known."""
    if not call.op.name.startswith(("nn.conv", "qnn.conv")):
        return False
    data, weight = (arg.checked_type.shape for arg in call.args[:2])
    channels = data[call.attrs.data_layout.index("C")]
    return any(isinstance(size, tvm.tir.Any) for size in (channels, *weight))
