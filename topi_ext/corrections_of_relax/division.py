"""Divisions of integers by zero, and of the least integer by -1, with the results of `_integer_division`.

Remainders of floats, and quotients that are rounded down, are computed from `fmod`, as in PyTorch: from the
rounded quotient, as TVM does, they are off wherever it is large or rounded up.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from tvm import tirx as tir

from .._bounds import is_for_cuda
from .._floats import bits
from .._integer_division import divided
from .._tvm import DataType, dtype_of
from .legalize import of_two

SMALL = 2.0**20  # a quotient that float64 rounds down as if it were exact, and its product too


def _of_rest(compute: Any) -> Any:
    """What a function computes of two numbers and their `fmod`, which takes ten times as long itself.

    The numbers of float32 have 24 bits. So a quotient that is no integer is at least 2**-24 off one, which
    float64 tells if it is small; its product with the divisor has no more than 53 bits, and is exact.
    """

    def computed(x: Any, y: Any) -> Any:
        dtype = dtype_of(x)
        if dtype in ("float16", "bfloat16"):
            return computed(x.astype("float32"), y.astype("float32")).astype(dtype)
        exact = compute(x, y, tir.truncmod(x, y))
        if dtype != "float32" or is_for_cuda():
            return exact
        wide, divisor = x.astype("float64"), y.astype("float64")
        rest = wide - tir.trunc(wide / divisor) * divisor
        rest = tir.Select(tir.abs(wide) < tir.abs(divisor), wide, rest)  # of an infinite divisor, too
        rest = tir.copysign(rest.astype("float32"), x)
        is_small = tir.abs(wide) < tir.abs(divisor) * tir.const(SMALL, "float64")
        return tir.if_then_else(is_small, compute(x, y, rest), exact)

    return computed


def _truncated(_x: Any, _y: Any, rest: Any) -> Any:
    return rest


def _remainder(_x: Any, y: Any, rest: Any) -> Any:
    """With the sign of the divisor, which is added, or else -0, which changes nothing."""
    differ = _differ_in_sign(rest, y)
    nothing = tir.const(np.iinfo(dtype_of(differ)).min, dtype_of(differ))
    return rest + tir.reinterpret(dtype_of(y), (bits(y) & differ) | (nothing & ~differ))


def _quotient(x: Any, y: Any, rest: Any) -> Any:
    """What is left when the remainder is taken off divides, but for rounding."""
    zero, half, one = (tir.const(number, dtype_of(x)) for number in (0, 0.5, 1))
    quotient = (x - rest) / y + _differ_in_sign(rest, y).astype(dtype_of(x))
    below = tir.floor(quotient)
    below = tir.Select(quotient - below > half, below + one, below)
    return tir.Select(y.equal(zero), x / y, below)


def _differ_in_sign(rest: Any, y: Any) -> Any:
    """-1 or 0, without a branch: processors would guess wrong half the time."""
    of_both = bits(rest) ^ bits(y)
    one, last = (tir.const(number, dtype_of(of_both)) for number in (1, DataType(dtype_of(y)).bits - 1))
    is_none = rest.equal(tir.const(0, dtype_of(rest))).astype(dtype_of(of_both))
    return (of_both >> last) & (is_none - one)


of_two("divide", operator.truediv, functools.partial(divided, tir.Div))
of_two("floor_divide", _of_rest(_quotient), functools.partial(divided, tir.FloorDiv))
of_two("floor_mod", _of_rest(_remainder), functools.partial(divided, tir.FloorMod))
of_two("mod", _of_rest(_truncated), functools.partial(divided, tir.Mod))
