"""Maxima, minima and bounds of elements, of which NaN stays NaN, as in NumPy, ONNX and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ._floats import bits
from ._target import is_for_cuda
from ._tvm import dtype_of, te, tir, topi


def relu(x: te.Tensor) -> te.Tensor:
    zero, by_comparing = tir.const(0, dtype_of(x)), _loses_nan(x)

    def not_negative(*at: tir.Var) -> tir.PrimExpr:
        value = x(*at)
        return tir.Select(value < zero, zero, value) if by_comparing else te.max(zero, value)

    return te.compute(x.shape, not_negative, name="T_relu", tag=topi.tag.ELEMWISE)


def clip(x: te.Tensor, a_min: float, a_max: float) -> te.Tensor:
    """`a_max` where the bounds are the other way round."""
    low, high = (tir.const(bound, dtype_of(x)) for bound in (min(a_min, a_max), a_max))
    by_comparing = _loses_nan(x)

    def clipped(*at: tir.Var) -> tir.PrimExpr:
        value = x(*at)
        if by_comparing:
            return tir.Select(value > high, high, tir.Select(value < low, low, value))
        return te.min(high, te.max(low, value))

    return te.compute(x.shape, clipped, name="T_clip", tag=topi.tag.ELEMWISE)


def _loses_nan(x: te.Tensor) -> bool:
    """Whether the maximum of a number and NaN is the number, as on CUDA; comparisons with NaN are false.

    LLVM keeps the second operand, and so do the maxima of half precision on CUDA, which TVM defines.
    """
    return is_for_cuda() and dtype_of(x) in ("float32", "float64")


def greatest(one: Any, other: Any) -> Any:
    """The greater of two floats, or NaN if either is."""
    return _or_nan(te.max, one, other)


def least(one: Any, other: Any) -> Any:
    """The lesser of two floats, or NaN if either is."""
    return _or_nan(te.min, one, other)


def _or_nan(extreme: Callable[..., Any], one: Any, other: Any) -> Any:
    if dtype_of(one) == "bfloat16":  # whose bits TVM does not reinterpret
        wide = _or_nan(extreme, one.astype("float32"), other.astype("float32"))
        return wide.astype("bfloat16")
    if is_for_cuda():
        is_better = other > one if extreme is te.max else other < one
        is_number = other >= tir.const(-math.inf, dtype_of(other))
        return tir.Select(is_number, tir.Select(is_better, other, one), other)
    # Of a number and NaN, LLVM keeps the second operand: one of both is NaN, and whatever bits join it.
    return tir.reinterpret(dtype_of(one), bits(extreme(one, other)) | bits(extreme(other, one)))
