"""Refuses graphs of Relay that TVM cannot compile."""

from __future__ import annotations

from tvm_passes.engine.graph import children

from tvm import relay

from .._types import sizes
from ..errors import ImportFailure
from .check import MAX_OPERATORS_IN_A_ROW, fault_of_size, too_deep


def check_result(main: relay.Function) -> None:
    """Raise an ImportFailure for a graph too deep or a tensor too large for TVM, where its type is known."""
    depths: dict[relay.Expr, int] = {}
    stack: list[relay.Expr] = [main.body]
    while stack:
        expr = stack[-1]
        below = children(expr)
        waiting = [child for child in below if child not in depths]
        stack.extend(waiting)
        if waiting:
            continue
        stack.pop()
        depths[expr] = 1 + max(depths[child] for child in below) if below else 0
        if depths[expr] > MAX_OPERATORS_IN_A_ROW:
            raise ImportFailure(too_deep(_place(expr)))
        for type_ in _tensor_types(expr):
            fault = fault_of_size(sizes(type_))
            if fault:
                raise ImportFailure(f"the result of {_place(expr)} {fault}")


def _place(expr: relay.Expr) -> str:
    return f"the node '{expr.span.source_name.name}'" if expr.span else "an operator"


def _tensor_types(expr: relay.Expr) -> list[relay.TensorType]:
    try:
        type_ = expr.checked_type
    except (AttributeError, ValueError):  # an operator, or not inferred yet
        return []
    fields = type_.fields if isinstance(type_, relay.TupleType) else [type_]
    return [field for field in fields if isinstance(field, relay.TensorType)]
