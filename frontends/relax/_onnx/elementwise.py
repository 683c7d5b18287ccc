"""Operators that compute each element from those at the same place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tvm import relax

from ..._onnx.interface import tvm_dtype
from .node import Convert, Node, constant, shape_of
from .sizes import Size, broadcast

op = relax.op


def converters() -> dict[str, Convert]:
    return {
        "Abs": _unary(op.abs),
        "Acos": _of_floats(op.acos),
        "Acosh": _of_floats(op.acosh),
        "Add": _binary(op.add),
        "And": _binary(op.logical_and),
        "Asin": _of_floats(op.asin),
        "Asinh": _of_floats(op.asinh),
        "Atan": _of_floats(op.atan),
        "Atanh": _of_floats(op.atanh),
        "BitShift": _bit_shift,
        "BitwiseAnd": _of_integers(op.bitwise_and),
        "BitwiseNot": _of_integers(op.bitwise_not),
        "BitwiseOr": _of_integers(op.bitwise_or),
        "BitwiseXor": _of_integers(op.bitwise_xor),
        "Cast": _cast,
        "CastLike": _cast_like,
        "Ceil": _of_floats(op.ceil),
        "Celu": _celu,
        "Clip": _clip,
        "Cos": _of_floats(op.cos),
        "Cosh": _of_floats(op.cosh),
        "Div": _binary(op.divide),  # of integers, rounded towards 0
        "Dropout": _dropout,
        "Elu": _elu,
        "Equal": _equal,
        "Erf": _of_floats(op.erf),
        "Exp": _of_floats(op.exp),
        "Floor": _of_floats(op.floor),
        "Gelu": _gelu,
        "Greater": _binary(op.greater),
        "GreaterOrEqual": _binary(op.greater_equal),
        "HardSigmoid": _hard_sigmoid,
        "HardSwish": _hard_swish,
        "Identity": lambda n: n.data(0),
        "IsInf": _is_infinite,
        "IsNaN": _of_floats(op.isnan),
        "LeakyRelu": _leaky_relu,
        "Less": _binary(op.less),
        "LessOrEqual": _binary(op.less_equal),
        "Log": _of_floats(op.log),
        "Max": _of_many(op.maximum),
        "Mean": _mean,
        "Min": _of_many(op.minimum),
        "Mish": _mish,
        "Mod": _mod,
        "Mul": _binary(op.multiply),
        "Neg": _unary(op.negative),
        "Not": _unary(op.logical_not),
        "Or": _binary(op.logical_or),
        "PRelu": _prelu,
        "Pow": _pow,
        "Reciprocal": _reciprocal,
        "Relu": _of_floats(op.nn.relu),
        "Round": _of_floats(op.round),
        "Selu": _selu,
        "Shrink": _shrink,
        "Sigmoid": _of_floats(op.sigmoid),
        "Sign": _sign,
        "Sin": _of_floats(op.sin),
        "Sinh": _of_floats(op.sinh),
        "Softplus": _softplus,
        "Softsign": _softsign,
        "Sqrt": _of_floats(op.sqrt),
        "Sub": _binary(op.subtract),
        "Sum": _of_many(op.add),
        "Tan": _of_floats(op.tan),
        "Tanh": _of_floats(op.tanh),
        "ThresholdedRelu": _thresholded_relu,
        "Where": lambda n: op.where(n.data(0), n.data(1), n.data(2)),
        "Xor": _binary(op.logical_xor),
    }


def check_broadcast(n: Node) -> None:
    """That inputs of open sizes fit, of which Relax would only say that it does not know."""
    shapes = [shape_of(value) for value in list.__iter__(n.inputs) if value is not None]
    if any(isinstance(size, Size) for shape in shapes for size in shape):
        broadcast(*shapes)


def _unary(build: Callable[[relax.Expr], relax.Expr]) -> Convert:
    return lambda n: build(n.data(0))


def _of_floats(build: Callable[[relax.Expr], relax.Expr]) -> Convert:
    def convert(n: Node) -> relax.Expr:
        n.only_floats()
        return build(n.data(0))

    return convert


def _of_integers(build: Callable[..., relax.Expr]) -> Convert:
    def convert(n: Node) -> relax.Expr:
        n.only_integers()
        return build(*n.all_data())

    return convert


def _binary(build: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Convert:
    return lambda n: build(n.data(0), n.data(1))


def _of_many(build: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Convert:
    def convert(n: Node) -> relax.Expr:
        return reduce(lambda left, right: n.emit(build(left, right)), n.all_data())

    return convert


def _mean(n: Node) -> relax.Expr:
    n.only_floats()
    values = n.all_data()
    return op.divide(reduce(lambda left, right: n.emit(op.add(left, right)), values), n.number(len(values)))


def _cast(n: Node) -> relax.Expr:
    return _as(n, tvm_dtype(n.attribute("to")))


def _cast_like(n: Node) -> relax.Expr:
    n.inputs[1]
    return _as(n, n.dtype(1))


def _as(n: Node, dtype: str) -> relax.Expr:
    n.attribute("saturate")  # of 8 bits only
    return op.astype(op.trunc(n.data(0)) if n.is_float() and "int" in dtype else n.data(0), dtype)


def _clip(n: Node) -> relax.Expr:
    """By comparisons where a bound is not a number that is known, and of integers."""
    low, high = ((n.inputs[place] if n.has(place) else None) for place in (1, 2))
    known = all(bound is None or isinstance(bound, np.ndarray) for bound in (low, high))
    if known and n.is_float():
        least, most = -math.inf if low is None else low.item(), math.inf if high is None else high.item()
        if least <= most:
            return op.clip(n.data(0), least, most)
    result = n.data(0)
    if low is not None:
        result = n.emit(op.maximum(result, n.data(1)))
    return result if high is None else op.minimum(result, n.data(2))


def _mod(n: Node) -> relax.Expr:
    """With the sign of the divisor, or with `fmod` of the dividend."""
    return (op.mod if n.attribute("fmod") else op.floor_mod)(n.data(0), n.data(1))


def _dropout(n: Node) -> relax.Expr:
    n.attribute("seed")
    if n.has(1):
        n.value(1)  # the ratio, without effect
    if n.has(2) and n.value(2).item():
        n.refuse("it drops at random: export the model in evaluation mode")
    return n.data(0)


def _equal(n: Node) -> relax.Expr:
    if n.dtype() == "bool":
        return op.logical_not(op.logical_xor(n.data(0), n.data(1)))
    return op.equal(n.data(0), n.data(1))


def _pow(n: Node) -> relax.Expr:
    """By products where the exponent is a small natural number; of integers in float64, as ONNX Runtime."""
    exponent = n.inputs[1]
    if isinstance(exponent, np.ndarray) and exponent.size == 1:
        number, base = exponent.item(), n.data(0)
        if number == 0.5 and n.is_float():
            return op.sqrt(base)
        if number in (1, 2, 3):
            return reduce(lambda left, right: n.emit(op.multiply(left, right)), [base] * int(number))
    base, exponent = n.data(0), n.data(1)
    if not n.is_float():
        power = op.power(n.emit(op.astype(base, "float64")), n.emit(op.astype(exponent, "float64")))
        return op.astype(n.emit(op.trunc(n.emit(power))), n.dtype())
    return op.power(base, op.astype(exponent, n.dtype()) if n.dtype(1) != n.dtype() else exponent)


def _is_infinite(n: Node) -> relax.Expr:
    n.only_floats()
    bounds = [sign * math.inf for sign in (-1, 1) if n.attribute(SIDES[sign])]
    found = [n.emit(op.equal(n.data(0), n.number(bound))) for bound in bounds]
    return reduce(op.logical_or, found) if found else op.zeros(n.shape(0), "bool")


SIDES = {-1: "detect_negative", 1: "detect_positive"}


def _bit_shift(n: Node) -> relax.Expr:
    """By as many bits as the numbers have, or more, 0 is left: LLVM does not say what a shift makes then."""
    if not n.dtype().startswith("uint"):
        n.refuse(f"{n.dtype()} is not supported, only integers without a sign")
    shift = {"LEFT": op.left_shift, "RIGHT": op.right_shift}.get(n.attribute("direction"))
    if shift is None:
        n.refuse(f"its direction must be LEFT or RIGHT, not {n.attribute('direction')}")
    bits = int(n.dtype().removeprefix("uint"))
    is_less = op.less(n.data(1), n.number(bits))
    by = op.where(is_less, n.data(1), n.number(0))
    return op.where(is_less, shift(n.data(0), by), n.number(0))


def _sign(n: Node) -> relax.Expr:
    """NaN of NaN, for which `relax.sign` gives 0, as PyTorch does."""
    n.only_floats()
    return op.where(op.isnan(n.data(0)), n.data(0), op.sign(n.data(0)))


def _reciprocal(n: Node) -> relax.Expr:
    n.only_floats()
    return op.divide(n.number(1), n.data(0))


# --- activations


def _prelu(n: Node) -> relax.Expr:
    """One operator where there is a slope for each channel, as passes expect it."""
    n.only_floats()
    shape, slopes = n.shape(0), n.inputs[1]
    of_channels = (shape[1], *[1] * (len(shape) - 2)) if len(shape) > 1 else None
    if isinstance(slopes, np.ndarray) and of_channels and slopes.shape == of_channels:
        return op.nn.prelu(n.data(0), constant(slopes.reshape(-1)), axis=1)
    x = n.data(0)
    return op.where(op.less(x, n.number(0)), op.multiply(x, n.data(1)), x)


def _leaky_relu(n: Node) -> relax.Expr:
    n.only_floats()
    return op.nn.leakyrelu(n.data(0), n.attribute("alpha"))


def _elu(n: Node) -> relax.Expr:
    n.only_floats()
    x = n.data(0)
    below = op.multiply(n.number(n.attribute("alpha")), op.subtract(op.exp(x), n.number(1)))
    return op.where(op.less(x, n.number(0)), below, x)


def _celu(n: Node) -> relax.Expr:
    n.only_floats()
    x, alpha = n.data(0), n.number(n.attribute("alpha"))
    below = op.multiply(alpha, op.subtract(op.exp(op.divide(x, alpha)), n.number(1)))
    return op.where(op.less(x, n.number(0)), below, x)


def _selu(n: Node) -> relax.Expr:
    n.only_floats()
    x = n.data(0)
    below = op.multiply(n.number(n.attribute("alpha")), op.subtract(op.exp(x), n.number(1)))
    scaled: Any = op.where(op.greater(x, n.number(0)), x, below)
    return op.multiply(n.number(n.attribute("gamma")), scaled)


def _thresholded_relu(n: Node) -> relax.Expr:
    n.only_floats()
    is_above = op.greater(n.data(0), n.number(n.attribute("alpha")))
    return op.where(is_above, n.data(0), n.number(0))


def _shrink(n: Node) -> relax.Expr:
    n.only_floats()
    x, bias, width = n.data(0), n.number(n.attribute("bias")), n.attribute("lambd")
    below = op.where(op.less(x, n.number(-width)), op.add(x, bias), n.number(0))
    return op.where(op.greater(x, n.number(width)), op.subtract(x, bias), below)


def _hard_sigmoid(n: Node) -> relax.Expr:
    n.only_floats()
    line = op.multiply(n.data(0), n.number(n.attribute("alpha")))
    return op.clip(op.add(line, n.number(n.attribute("beta"))), 0, 1)


def _hard_swish(n: Node) -> relax.Expr:
    n.only_floats()
    x = n.data(0)
    line = op.add(op.multiply(x, n.number(1 / 6)), n.number(0.5))
    return op.multiply(x, op.clip(line, 0, 1))


def _gelu(n: Node) -> relax.Expr:
    n.only_floats()
    return (op.nn.gelu_tanh if n.attribute("approximate") == "tanh" else op.nn.gelu)(n.data(0))


def _softplus(n: Node) -> relax.Expr:
    """log(1 + exp(x)), without overflow."""
    n.only_floats()
    x = n.data(0)
    small = op.exp(op.negative(op.abs(x)))
    return op.add(op.nn.relu(x), op.log(op.add(small, n.number(1))))


def _softsign(n: Node) -> relax.Expr:
    n.only_floats()
    return op.divide(n.data(0), op.add(op.abs(n.data(0)), n.number(1)))


def _mish(n: Node) -> relax.Expr:
    return op.multiply(n.data(0), op.tanh(n.emit(_softplus(n))))
