"""Divisions of integers that a processor has no result for: by zero, and of the least integer by -1.

On a CPU either one ends the process, and what CUDA computes is not defined. Here they have the results of
NumPy: a quotient by zero and its remainder are 0, and the least integer divided by -1 is itself, as its
negative wraps. PyTorch raises an exception for a division by zero, which a kernel cannot.

Floor divisions of integers narrower than int64 are written by truncated ones, too. To a dividend whose least
number it knows, as it does of `x + 4` and `4 - x`, TVM's lowering adds so much that none is negative, which
overflows: `(4 - x) // 255` of int32 was 16843007.
"""

from __future__ import annotations

from typing import Any

from ._tvm import dtype_of, tir

QUOTIENTS, REMAINDERS = (tir.Div, tir.FloorDiv), (tir.Mod, tir.FloorMod)


def toward_zero(dividend: int, divisor: int) -> int:
    """The quotient of Python's integers, which C rounds so."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def divided(division: Any, dividend: tir.PrimExpr, divisor: tir.PrimExpr) -> tir.PrimExpr:
    """`division(dividend, divisor)`, by 1 where it has no result: the least integer stays."""
    dtype = dtype_of(dividend)
    zero, one = tir.const(0, dtype), tir.const(1, dtype)
    is_zero = divisor.equal(zero)
    has_none = is_zero
    if dtype.startswith("int"):
        # By its bits: TVM's simplifier subtracts what is compared, and the least integer has no negative.
        is_least = (dividend ^ tir.min_value(dtype)).equal(zero)
        has_none = tir.any(is_zero, tir.all(divisor.equal(tir.const(-1, dtype)), is_least))
    result = without_sums(division, dividend, tir.Select(has_none, one, divisor))
    return tir.Select(is_zero, zero, result) if division in QUOTIENTS else result


def without_sums(division: Any, dividend: tir.PrimExpr, divisor: tir.PrimExpr) -> tir.PrimExpr:
    """`division(dividend, divisor)` where it has a result, by operations of processors."""
    dtype = dtype_of(dividend)
    if division not in (tir.FloorDiv, tir.FloorMod) or dtype not in ("int8", "int16", "int32"):
        return division(dividend, divisor)
    zero, one = tir.const(0, dtype), tir.const(1, dtype)
    rest = tir.truncmod(dividend, divisor)
    is_rounded_up = tir.all(rest != zero, (rest ^ divisor) < zero)  # where their signs differ
    if division is tir.FloorMod:
        return rest + tir.Select(is_rounded_up, divisor, zero)
    return tir.truncdiv(dividend, divisor) - tir.Select(is_rounded_up, one, zero)
