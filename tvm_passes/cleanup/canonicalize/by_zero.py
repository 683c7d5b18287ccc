"""Make TVM compute multiplications and divisions by the constant 0."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import constant, op_name
from ...engine.rule import Match, Rule


class KeepZeroInMemory(Rule):
    """Turn the scalar 0 of a multiplication or division of floats into a tensor of one element.

    Why legal: it broadcasts as a scalar does. TVM inlines a scalar into the kernel, folds `x * 0` and
    `0 / x` to 0, which is wrong where `x` is infinite, NaN or 0, and rejects `x / 0`.
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
    """The number that TVM folds a scalar expression to, or None if that is not known here."""
    if expr.checked_type.shape:
        return None
    if op_name(expr) in ("cast", "full"):
        return _scalar(expr.args[0])
    if op_name(expr) == "zeros":
        return 0.0
    value = constant(expr)
    return None if value is None else float(value)
