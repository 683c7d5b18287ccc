"""Let TVM compute what is multiplied or divided by the constant 0."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import constant, op_name
from ...engine.rule import Match, Rule


class KeepZeroInMemory(Rule):
    """Give a multiplication or division of floats its scalar 0 as a tensor of one element.

    Why legal: it broadcasts as a scalar does. TVM writes a scalar into the kernel, takes `x * 0` and `0 / x`
    for 0, which they are not where `x` is infinite, NaN or 0, and refuses `x / 0`.
    """

    one, other = wildcard(), wildcard()
    pattern = is_op("multiply")(one, other) | is_op("divide")(one, other)

    def where(self, match: Match) -> bool:
        return "float" in match.root.checked_type.dtype and any(
            _scalar(each) == 0 for each in match.root.args
        )

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        dtype = match.root.checked_type.dtype
        operands = [
            relay.const(np.full(1, _scalar(operand)), dtype) if _scalar(operand) == 0 else operand
            for operand in match.root.args
        ]
        computed = relay.Call(match.root.op, operands, match.root.attrs)
        return computed if match.root.checked_type.shape else relay.reshape(computed, [])


def _scalar(expr: relay.Expr) -> float | None:
    """The number that TVM folds a scalar expression to; None where that is not seen here."""
    if expr.checked_type.shape:
        return None
    if op_name(expr) in ("cast", "full"):
        return _scalar(expr.args[0])
    if op_name(expr) == "zeros":
        return 0.0
    value = constant(expr)
    return None if value is None else float(value)
