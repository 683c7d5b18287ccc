"""What becomes of a sum: scale, bias, activations, residual and rounding, for the kernels of all targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import truediv

from .._floats import lanes_of, vector_type
from .._tvm import PrimExpr, te, tir
from .problem import Activation, Problem

Function = Callable[[PrimExpr], PrimExpr]
Ratio = Callable[[PrimExpr, PrimExpr], PrimExpr]


def cuda_ratio(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """`a / b` in CUDA, exact but for two units in the last place, as `exp` is there.

    IEEE's division branches, so that a thread computes one activation after the other, rather than several
    at once: behind a convolution, that can take longer than its products.
    """
    return tir.call_pure_extern("float32", "__fdividef", a, b)


def finish(
    problem: Problem,
    total: tir.PrimExpr,
    scale: tir.PrimExpr | None = None,
    bias: tir.PrimExpr | None = None,
    slope: tir.PrimExpr | None = None,
    residual: tir.PrimExpr | None = None,
    once: Function = lambda value: value,
    ratio: Ratio = truediv,
) -> tir.PrimExpr:
    """The result of a sum before it is rounded, float32; the numbers are those of its filter.

    It may be a vector of the sums of several filters; then the numbers are vectors, too.
    `once(value)` is a value that is used several times, in a variable if the kernel has such; `ratio` is as
    that of `activate`.
    """
    value = _in_float32(total)
    if scale is not None:
        value = value * scale
    if bias is not None:
        value = value + _in_float32(bias)
    if problem.activation.name != "none":
        value = once(value)
    slope = None if slope is None else _in_float32(slope)
    value = activate(problem.activation, value, slope, ratio=ratio)
    if residual is not None:
        value = value + _times(_in_float32(residual), problem.residual_scale)
    if problem.final_activation.name != "none":
        value = once(value)
    return _times(activate(problem.final_activation, value, ratio=ratio), problem.out_scale)


def _in_float32(value: tir.PrimExpr) -> tir.PrimExpr:
    return value.astype(vector_type("float32", lanes_of(value)))


def _times(value: tir.PrimExpr, factor: float) -> tir.PrimExpr:
    return value if factor == 1 else value * tir.const(factor, "float32")


def activate(
    activation: Activation,
    value: tir.PrimExpr,
    slope: tir.PrimExpr | None = None,
    exp: Function = te.exp,
    tanh: Function = te.tanh,
    sigmoid: Function | None = None,
    ratio: Ratio = truediv,
) -> tir.PrimExpr:
    """The activation of a float32 value; the kernels of all targets use it, with functions of their own."""
    low, high = tir.const(activation.low, "float32"), tir.const(activation.high, "float32")
    zero, one = tir.const(0, "float32"), tir.const(1, "float32")
    if activation.name == "relu":
        return te.max(zero, value)  # of a number and NaN, LLVM keeps the second operand
    if activation.name in ("leaky_relu", "prelu"):
        return tir.Select(value > zero, value, value * (low if activation.name == "leaky_relu" else slope))
    if activation.name == "clip":
        return te.min(high, te.max(low, value))
    if sigmoid is not None and activation.name in ("sigmoid", "silu"):
        return sigmoid(value) if activation.name == "sigmoid" else value * sigmoid(value)
    if activation.name == "sigmoid":
        return ratio(one, one + exp(-value))
    if activation.name == "silu":
        return ratio(value, one + exp(-value))
    if activation.name == "tanh":
        return tanh(value)
    if activation.name == "hard_swish":
        return value * te.max(te.min(value + 3, tir.const(6, "float32")), zero) / 6
    if activation.name == "gelu":
        return value * (one + te.erf(value * tir.const(0.5**0.5, "float32"))) / 2
    if activation.name == "gelu_tanh":
        inner = (value + value * value * value * tir.const(0.044715, "float32")) * tir.const(
            math.sqrt(2 / math.pi), "float32"
        )
        return ratio(value, one + exp(inner * -2))  # 1 + tanh(x) is twice the sigmoid of 2x
    if activation.name == "mish":  # by the tanh of log(1 + e), which is 1 before the exponential e overflows
        e = exp(te.min(value, tir.const(20, "float32")))
        return value * ratio(e * (e + 2), e * (e + 2) + 2)
    return value
