"""What rules ask about single expressions."""

from __future__ import annotations

import numpy as np

from tvm import relay


def constant(expr: relay.Expr) -> np.ndarray | None:
    """The NumPy value of a constant expression, or None."""
    return expr.data.numpy() if isinstance(expr, relay.Constant) else None


def static_shape(expr: relay.Expr) -> tuple[int, ...] | None:
    """The shape of a typed expression as a tuple of int, or None where a dimension is dynamic."""
    shape = getattr(expr.checked_type, "shape", None)
    if shape is None or not all(hasattr(dim, "value") for dim in shape):
        return None
    return tuple(int(dim) for dim in shape)


def op_name(expr: relay.Expr) -> str | None:
    """The name of the operator that an expression calls, or None."""
    return getattr(expr.op, "name", None) if isinstance(expr, relay.Call) else None


def either_way(call: relay.Call) -> list[tuple[relay.Expr, relay.Expr]]:
    """The two operands of a commutative call, in both orders; `call.args[::-1]` of TVM's Array is empty."""
    left, right = call.args
    return [(left, right), (right, left)]


# TVM fuses them as if they did: these move elements, or look at where one is.
NOT_ELEMENTWISE = ("expand_dims", "repeat", "tile", "broadcast_to", "trilu")
INTEGER_DIVISIONS = ("divide", "floor_divide", "trunc_divide", "mod", "floor_mod", "trunc_mod")


def is_elementwise(expr: relay.Expr) -> bool:
    """Whether a call works element by element, lining shapes up: by TVM's own classes, by which it fuses."""
    pattern = expr.op.get_attr("TOpPattern") if op_name(expr) else None
    is_one = pattern is not None and pattern <= relay.op.OpPattern.BROADCAST
    return is_one and op_name(expr) not in NOT_ELEMENTWISE


def may_divide_by_zero(expr: relay.Expr) -> bool:
    """Whether a call divides integers by what is computed: by 0, that ends the process on a CPU."""
    if op_name(expr) not in INTEGER_DIVISIONS or isinstance(expr.args[1], relay.Constant):
        return False
    return not expr.checked_type.dtype.startswith(("float", "bfloat"))


def location(node: relay.Expr) -> str:
    """Where a node comes from in the source model, such as `torchvision::nms_0`; empty if not known."""
    span = getattr(node, "span", None)
    spans = getattr(span, "spans", [span] if span else [])
    return ", ".join(dict.fromkeys(str(part.source_name.name) for part in spans))
