"""Divisions of integers by zero, and of the least integer by -1, with the results of `_integer_division`.

Remainders of floats, and quotients that are rounded down, are computed from `fmod`, as in PyTorch: from the
rounded quotient, as TVM does, they are off wherever it is large or rounded up.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from tvm import tirx as tir

from .._integer_division import divided
from .._tvm import dtype_of
from .legalize import of_two


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of the divisor."""
    rest = tir.truncmod(x, y)
    return tir.Select(_differ_in_sign(rest, y), rest + y, rest)


def _quotient(x: Any, y: Any) -> Any:
    """What is left when the remainder is taken off divides, but for rounding."""
    zero, half, one = (tir.const(number, dtype_of(x)) for number in (0, 0.5, 1))
    rest = tir.truncmod(x, y)
    quotient = (x - rest) / y
    quotient = tir.Select(_differ_in_sign(rest, y), quotient - one, quotient)
    below = tir.floor(quotient)
    below = tir.Select(quotient - below > half, below + one, below)
    return tir.Select(y.equal(zero), x / y, below)


def _differ_in_sign(rest: Any, y: Any) -> Any:
    zero = tir.const(0, dtype_of(y))
    return tir.any(tir.all(rest < zero, y > zero), tir.all(rest > zero, y < zero))


def _in_float32(compute: Any) -> Any:
    def computed(x: Any, y: Any) -> Any:
        dtype = dtype_of(x)
        if dtype not in ("float16", "bfloat16"):
            return compute(x, y)
        return compute(x.astype("float32"), y.astype("float32")).astype(dtype)

    return computed


of_two("divide", operator.truediv, functools.partial(divided, tir.Div))
of_two("floor_divide", _in_float32(_quotient), functools.partial(divided, tir.FloorDiv))
of_two("floor_mod", _in_float32(_remainder), functools.partial(divided, tir.FloorMod))
of_two("mod", None, functools.partial(divided, tir.Mod))
