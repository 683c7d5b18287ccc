"""What rules ask of single expressions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay, tir
from tvm.ir import structural_equal
from tvm.relay.op import OpPattern


def constant(expr: relay.Expr) -> np.ndarray | None:
    """The NumPy value of a constant expression, or None; bfloat16, which NumPy lacks, as float32."""
    if not isinstance(expr, relay.Constant):
        return None
    value = expr.data.numpy()
    if expr.data.dtype != "bfloat16":
        return value
    return np.asarray(value.astype("uint32") << np.uint32(16)).view("float32")


def type_of(expr: relay.Expr) -> relay.Type:
    """The checked type of an expression; if it has none yet, inferred from the types already known."""
    try:
        return expr.checked_type
    except ValueError:
        return relay.transform.InferTypeLocal(expr)


def shape_of_type(type_: relay.Type) -> tuple[int, ...] | None:
    """The shape of a type as a tuple of int, or None if a dimension is dynamic or it is not a tensor type."""
    shape = getattr(type_, "shape", None)
    if shape is None or not all(hasattr(dim, "value") for dim in shape):
        return None
    return tuple(int(dim) for dim in shape)


def static_shape(expr: relay.Expr) -> tuple[int, ...] | None:
    """The shape of a typed expression as a tuple of int, or None where a dimension is dynamic."""
    return shape_of_type(expr.checked_type)


def known_shape(expr: relay.Expr) -> tuple[int, ...]:
    """The shape of a typed expression that is known to be static."""
    shape = static_shape(expr)
    if shape is None:
        raise ValueError(f"the shape {expr.checked_type.shape} is dynamic")
    return shape


def batch_shape(expr: relay.Expr) -> tuple[int | None, ...] | None:
    """As `static_shape`, but the first dimension, the batch, may be dynamic: then it is None."""
    others = shape_but_batch(expr)
    if others is None:
        return None
    return (known_extent(expr.checked_type.shape[0]), *others)


def extents_of(expr: relay.Expr) -> tuple[int | None, ...]:
    """The shape of a typed expression, with None where an extent is dynamic."""
    return tuple(map(known_extent, expr.checked_type.shape))


def known_extent(dim: tir.PrimExpr) -> int | None:
    """A dimension as an int, or None where it is known only at run time."""
    return int(dim) if hasattr(dim, "value") else None


def shape_but_batch(expr: relay.Expr) -> tuple[int, ...] | None:
    """The shape without the first dimension; None where there is none, or one of the others is dynamic."""
    shape = getattr(expr.checked_type, "shape", None)
    if not shape or not all(hasattr(dim, "value") for dim in shape[1:]):
        return None
    return tuple(map(int, shape[1:]))


def op_name(expr: relay.Expr) -> str | None:
    """The name of the operator that an expression calls, or None."""
    return getattr(expr.op, "name", None) if isinstance(expr, relay.Call) else None


def is_injective(expr: relay.Expr) -> bool:
    """Whether it calls an operator that TVM computes in one kernel with those whose results it reads."""
    kind = expr.op.get_attr("TOpPattern") if op_name(expr) else None
    return kind is not None and int(kind) <= OpPattern.INJECTIVE


def operands(call: relay.Call) -> list[relay.Expr]:
    """The operands of a call, with tuples flattened."""
    return [field for arg in call.args for field in (arg.fields if isinstance(arg, relay.Tuple) else [arg])]


def either_way(call: relay.Call) -> list[tuple[relay.Expr, relay.Expr]]:
    """The two operands of a commutative call, in both orders; `call.args[::-1]` of TVM's Array is empty."""
    left, right = call.args
    return [(left, right), (right, left)]


def location(node: relay.Expr) -> str:
    """Where a node comes from in the source model, such as `torchvision::nms_0`; empty if not known."""
    span = getattr(node, "span", None)
    spans = getattr(span, "spans", [span] if span else [])
    return ", ".join(dict.fromkeys(str(part.source_name.name) for part in spans))


def scalar(expr: relay.Expr) -> Any:
    """The number in a constant of one element, or None."""
    value = constant(expr)
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else None


def is_same(left: relay.Expr, right: relay.Expr, levels: int = 4) -> bool:
    """Whether two expressions are structurally equal down to nodes that they share."""
    if left.same_as(right):
        return True
    if levels == 0 or type(left) is not type(right):
        return False
    if isinstance(left, relay.Constant):
        return structural_equal(left, right)
    if isinstance(left, relay.TupleGetItem):
        return left.index == right.index and is_same(left.tuple_value, right.tuple_value, levels - 1)
    if not isinstance(left, relay.Call) or op_name(left) is None or op_name(left) != op_name(right):
        return False
    if len(left.args) != len(right.args) or not structural_equal(left.attrs, right.attrs):
        return False
    return all(is_same(*pair, levels - 1) for pair in zip(left.args, right.args))
