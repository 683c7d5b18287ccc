"""Rows selected by a mask, and moving row-by-row computation to before the selection."""

from __future__ import annotations

from tvm import relay

from ..engine.expressions import constant, op_name, operands, static_shape
from .filters import mask_of_rows
from .operators import Rows, computes_along, is_elementwise, known_of, reduced_axes
from .shape_values import TO_THE_END


def mask_in_front(expr: relay.Expr) -> relay.Expr | None:
    """The mask that selected the rows from which `expr` is computed row by row, or None."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        if _takes_rows(node):
            return mask_of_rows(node.args[1])
        if isinstance(node, relay.Call) and _works_row_by_row(node):
            waiting += reversed(operands(node))
    return None


def before_taking(expr: relay.Expr, mask: relay.Expr) -> relay.Expr | None:
    """The expression that equals `expr` once `mask` selects its rows, or None."""
    if _takes_rows(expr):
        return expr.args[0] if mask.same_as(mask_of_rows(expr.args[1])) else None
    if not isinstance(expr, relay.Call) or not _works_row_by_row(expr):
        return None
    tensors = operands(expr)
    above = [tensor if _is_single(tensor) else before_taking(tensor, mask) for tensor in tensors]
    if any(tensor is None for tensor in above) or all(map(_is_single, tensors)):
        return None
    if isinstance(expr.args[0], relay.Tuple):
        return relay.Call(expr.op, [relay.Tuple(above)], expr.attrs)
    return relay.Call(expr.op, above, expr.attrs)


def rows_before_taking(expr: relay.Expr) -> relay.Expr:
    """The tensor from whose rows, those that a mask keeps, `expr` is computed row by row."""
    while not _takes_rows(expr):
        expr = _first_of_many(expr)
    return expr.args[0]


def as_long_as(expr: relay.Expr) -> int | relay.Expr:
    """What determines the number of rows: a number, a mask, or a tensor with as many."""
    while True:
        dim = expr.checked_type.shape[0]
        if hasattr(dim, "value"):
            return int(dim)
        if _takes_rows(expr):
            return mask_of_rows(expr.args[1])
        if not isinstance(expr, relay.Call) or not _works_row_by_row(expr):
            return expr
        expr = _first_of_many(expr)


def _first_of_many(call: relay.Call) -> relay.Expr:
    return next(tensor for tensor in operands(call) if not _is_single(tensor))


def _takes_rows(expr: relay.Expr) -> bool:
    """Whether an expression takes, along the first axis, the rows that a mask keeps."""
    return (
        op_name(expr) == "take"
        and expr.attrs.axis is not None
        and int(expr.attrs.axis) == 0
        and int(expr.attrs.batch_dims) == 0
        and mask_of_rows(expr.args[1]) is not None
    )


def _is_single(tensor: relay.Expr) -> bool:
    shape = static_shape(tensor)
    return shape is not None and all(length == 1 for length in shape)


def _works_row_by_row(call: relay.Call) -> bool:
    """Whether a call computes each row from the same row of its operands."""
    name, rank = op_name(call), len(getattr(call.checked_type, "shape", ()))
    if name is None or rank == 0:
        return False
    if name in ("concatenate", "stack"):
        return isinstance(call.args[0], relay.Tuple) and int(call.attrs.axis) % rank != 0
    if name == "strided_slice":
        attrs = call.attrs
        if attrs.axes is not None:
            return all(int(axis) % rank != 0 for axis in attrs.axes)
        bounds = int(attrs.begin[0]), int(attrs.end[0]), int((attrs.strides or [1])[0])
        return str(attrs.slice_mode) == "end" and bounds == (0, TO_THE_END, 1)
    if name == "take":
        axis, index = call.attrs.axis, constant(call.args[1])
        of = len(call.args[0].checked_type.shape)
        return (
            axis is not None and index is not None and int(axis) % of != 0 and int(call.attrs.batch_dims) == 0
        )
    rows = known_of(call).rows
    if rows is Rows.OTHER_AXES:
        return not computes_along(call, 0)
    if rows is Rows.NOT_REDUCED:
        return 0 not in reduced_axes(call)
    if not is_elementwise(call):
        return False
    return all(_is_single(tensor) or len(tensor.checked_type.shape) == rank for tensor in call.args)
