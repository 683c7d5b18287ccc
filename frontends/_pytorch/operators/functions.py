"""Numeric functions as torch defines them, NaN, infinities and integers included, in terms of Relay's."""

from __future__ import annotations

import math

import numpy as np

from tvm import relay

from .converter import NotConverted, known_value

LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)  # g = 7: fifteen digits
# Giles, "Approximating the erfinv function": near zero, and in the tails
ERF_INV_CENTER = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
ERF_INV_TAILS = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)  # of 1/x**2, 1/x**4, ...
LOST_NAN = "float64"  # the only floats in whose rows `relay.max` and its like may overlook NaN
GREATEST_DIVISOR = 1e200  # that of an infinity: any quotient of a float32 by it is smaller than 1, and not 0
BITS_TOGETHER = 4  # of an exponent, in one kernel: TVM writes a square's base out twice
ROOTS = {0.5: relay.sqrt, -0.5: relay.rsqrt}  # by exponent
SHIFT = 6  # digamma's series is accurate to ten digits from there on


def is_float(dtype: str) -> bool:
    return "float" in dtype


def truth(x: relay.Expr, dtype: str) -> relay.Expr:
    """Whether a number is nonzero; NaN is."""
    return x if dtype == "bool" else relay.not_equal(x, relay.const(0, dtype))


def cast(x: relay.Expr, from_: str, to: str) -> relay.Expr:
    if from_ == to:
        return x
    return truth(x, from_) if to == "bool" else relay.cast(x, to)


def not_equal(x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """TVM assumes that nothing differs from itself, though NaN does."""
    return relay.isnan(relay.cast(x, "float32")) if x.same_as(y) else relay.not_equal(x, y)


def equal(x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """As `not_equal`."""
    return relay.logical_not(not_equal(x, y)) if x.same_as(y) else relay.equal(x, y)


# --- arithmetic


def divide(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.divide(x, y) if is_float(dtype) else relay.trunc_divide(x, y)


def fmod(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """The remainder with the sign of `x`, which is exact, however large the quotient."""
    if not is_float(dtype):
        return relay.trunc_mod(x, y)
    within = "float64" if dtype == "float64" else "float32"
    return relay.cast(relay.mod(relay.cast(x, within), relay.cast(y, within)), dtype)


def remainder(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """The remainder with the sign of `y`."""
    if not is_float(dtype):
        return relay.floor_mod(x, y)
    rest, zero = fmod(dtype, x, y), relay.const(0, dtype)
    differs = relay.not_equal(
        relay.cast(relay.less(rest, zero), "int32"), relay.cast(relay.less(y, zero), "int32")
    )
    return relay.where(relay.logical_and(relay.not_equal(rest, zero), differs), relay.add(rest, y), rest)


def floor_divide(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """The floor of the exact quotient, for which float64 is as good with two float32.

    By an infinity of the other sign, that is -1; of an infinity, NaN, as its remainder.
    """
    if not is_float(dtype):
        return relay.floor_divide(x, y)
    divisor = relay.clip(_wide(y), -GREATEST_DIVISOR, GREATEST_DIVISOR)
    floor = relay.cast(relay.floor(relay.divide(_wide(x), divisor)), dtype)
    is_unknown = relay.logical_and(relay.isinf(x), relay.not_equal(y, relay.const(0, dtype)))
    return relay.where(is_unknown, relay.const(math.nan, dtype), floor)


def power(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """Relay's own is for floats only. torch takes roots of float32 and float64 by others, for -0 and -inf."""
    if is_float(dtype):
        exponent = y.data.numpy() if isinstance(y, relay.Constant) and dtype != "float16" else np.zeros(1)
        root = ROOTS.get(float(exponent)) if not exponent.shape else None
        return root(x) if root else relay.power(x, y)
    zero, one = relay.const(0, dtype), relay.const(1, dtype)
    result = (
        _multiplied(x, int(y.data.numpy())) if isinstance(y, relay.Constant) and not y.data.shape else None
    )
    if result is None:
        result, factor = one, x
        for bit in range(_bits_of_exponents(dtype, y)):
            if bit and bit % BITS_TOGETHER == 0:
                result, factor = relay.annotation.stop_fusion(result), relay.annotation.stop_fusion(factor)
            is_set = relay.bitwise_and(y, relay.const(1 << bit, dtype))
            result = relay.multiply(result, relay.where(relay.equal(is_set, zero), one, factor))
            factor = relay.multiply(factor, factor)
    if dtype.startswith("u"):
        return result
    odd = relay.not_equal(relay.bitwise_and(y, one), zero)
    unit = relay.where(
        relay.logical_and(relay.equal(x, relay.const(-1, dtype)), odd), relay.const(-1, dtype), one
    )
    below = relay.where(relay.equal(relay.abs(x), one), unit, zero)
    return relay.where(relay.less(y, zero), below, result)


def _bits_of_exponents(dtype: str, y: relay.Expr) -> int:
    """Those that may be set: powers wrap, so none is too high."""
    known = known_value(y)
    greatest = np.iinfo(dtype).max if known is None else np.max(known, initial=0)
    return int(greatest).bit_length()


def _multiplied(x: relay.Expr, exponent: int) -> relay.Expr:
    if exponent <= 0:
        return relay.ones_like(x)
    result = x
    for bit in bin(exponent)[3:]:  # after the first one
        result = relay.multiply(result, result)
        result = relay.multiply(result, x) if bit == "1" else result
    return result


def hypot(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """Compute in float64, where squares of float32 do not overflow."""
    a, b = _wide(x), _wide(y)
    length = relay.sqrt(relay.add(relay.multiply(a, a), relay.multiply(b, b)))
    endless = relay.logical_or(relay.isinf(a), relay.isinf(b))
    return relay.cast(relay.where(endless, relay.const(math.inf, "float64"), length), dtype)


def shift_left(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    bits = np.iinfo(dtype).bits
    shifted = relay.left_shift(x, relay.clip(y, 0, bits - 1))
    return relay.where(_is_within(dtype, y, bits), shifted, relay.const(0, dtype))


def shift_right(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    bits = np.iinfo(dtype).bits
    within = relay.where(_is_within(dtype, y, bits), y, relay.const(bits - 1, dtype))
    shifted = relay.right_shift(x, within)
    if dtype.startswith("u"):
        return relay.where(_is_within(dtype, y, bits), shifted, relay.const(0, dtype))
    return shifted


def _is_within(dtype: str, y: relay.Expr, bits: int) -> relay.Expr:
    return relay.logical_and(
        relay.greater_equal(y, relay.const(0, dtype)), relay.less(y, relay.const(bits, dtype))
    )


# --- rounding and signs


def round_(dtype: str, x: relay.Expr) -> relay.Expr:
    """Round halves to even; Relay's own rounds them away from zero."""
    if not is_float(dtype):
        return x
    half = relay.equal(relay.abs(relay.subtract(x, relay.trunc(x))), relay.const(0.5, dtype))
    even = relay.multiply(relay.round(relay.multiply(x, relay.const(0.5, dtype))), relay.const(2, dtype))
    return relay.where(half, even, relay.round(x))


def signbit(dtype: str, x: relay.Expr) -> relay.Expr:
    """Whether the sign bit is set, also for zero."""
    if is_float(dtype):
        dtype = dtype.replace("float", "int")
        x = relay.reinterpret(x, dtype)
    return relay.less(x, relay.const(0, dtype))


# --- maximum and minimum


def maximum(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.maximum(x, y)


def minimum(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    return relay.minimum(x, y)


def fmax(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """The other operand, if only one is NaN."""
    return _other_than_nan(dtype, x, y, relay.maximum(x, y))


def fmin(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """As `fmax`."""
    return _other_than_nan(dtype, x, y, relay.minimum(x, y))


def _other_than_nan(dtype: str, x: relay.Expr, y: relay.Expr, other: relay.Expr) -> relay.Expr:
    if not is_float(dtype):
        return other
    return relay.where(relay.isnan(x), y, relay.where(relay.isnan(y), x, other))


def amax(x: relay.Expr, dtype: str, axes: list[int] | None, keepdims: bool = False) -> relay.Expr:
    """NaN if any element is."""
    return _or_any_nan(x, dtype, axes, keepdims, relay.max(x, axes, keepdims))


def amin(x: relay.Expr, dtype: str, axes: list[int] | None, keepdims: bool = False) -> relay.Expr:
    """NaN if any element is."""
    return _or_any_nan(x, dtype, axes, keepdims, relay.min(x, axes, keepdims))


def _or_any_nan(
    x: relay.Expr, dtype: str, axes: list[int] | None, keepdims: bool, other: relay.Expr
) -> relay.Expr:
    if dtype != LOST_NAN:
        return other
    unknown = relay.max(relay.cast(relay.isnan(x), "int32"), axes, keepdims)
    return relay.where(truth(unknown, "int32"), relay.const(math.nan, dtype), other)


def variance(x: relay.Expr, dtype: str, axes: list[int], extents: list[int], correction: float) -> relay.Expr:
    """The variance; `correction` is subtracted from the count of elements."""
    count = math.prod(extents)
    mean = relay.mean(x, axes, keepdims=True) if axes else x
    rest = relay.subtract(x, mean)
    squares = relay.multiply(rest, rest)
    total = relay.sum(squares, axes) if axes else squares
    return relay.divide(total, relay.const(max(count - correction, 0), dtype))


# --- exponentials


def expm1(dtype: str, x: relay.Expr) -> relay.Expr:
    """Use the series near zero, where exp(x) - 1 loses precision."""
    wide, one = _wide(x), relay.const(1, "float64")
    series = relay.multiply(wide, relay.add(relay.multiply(wide, relay.const(0.5, "float64")), one))
    return _near_zero(dtype, wide, series, relay.subtract(relay.exp(wide), one))


def log1p(dtype: str, x: relay.Expr) -> relay.Expr:
    """Use the series near zero, where 1 + x loses digits of x."""
    wide, one = _wide(x), relay.const(1, "float64")
    series = relay.multiply(wide, relay.subtract(one, relay.multiply(wide, relay.const(0.5, "float64"))))
    return _near_zero(dtype, wide, series, relay.log(relay.add(wide, one)))


def _near_zero(dtype: str, x: relay.Expr, series: relay.Expr, other: relay.Expr) -> relay.Expr:
    near = relay.less(relay.abs(x), relay.const(1e-5, "float64"))
    return relay.cast(relay.where(near, series, other), dtype)


# --- trigonometry


def atan2(dtype: str, y: relay.Expr, x: relay.Expr) -> relay.Expr:
    """In all quadrants, for zeros of either sign, and for infinities."""
    endless = relay.logical_and(relay.isinf(x), relay.isinf(y))
    one, zero = relay.const(1, dtype), relay.const(0, dtype)
    below, behind = signbit(dtype, y), signbit(dtype, x)
    rise = relay.where(endless, relay.where(below, relay.negative(one), one), y)
    run = relay.where(endless, relay.where(behind, relay.negative(one), one), x)
    half = relay.where(below, relay.const(-math.pi, dtype), relay.const(math.pi, dtype))
    angle = relay.atan(relay.divide(rise, run))
    angle = relay.where(behind, relay.add(angle, half), angle)
    flat = relay.logical_and(relay.equal(y, zero), relay.logical_not(relay.isnan(x)))
    return relay.where(flat, relay.where(behind, half, y), angle)


def acos(dtype: str, x: relay.Expr) -> relay.Expr:
    return relay.acos(x)


def asin(dtype: str, x: relay.Expr) -> relay.Expr:
    return relay.asin(x)


# --- error and gamma functions


def erf(dtype: str, x: relay.Expr) -> relay.Expr:
    if dtype == "float64":
        raise NotConverted("Relay has no erf of float64")
    return relay.erf(x)


def erfc(dtype: str, x: relay.Expr) -> relay.Expr:
    return relay.subtract(relay.const(1, dtype), erf(dtype, x))


def erf_inv(dtype: str, x: relay.Expr) -> relay.Expr:
    if dtype == "float64":
        raise NotConverted("there is no approximation of erfinv with the precision of float64")
    one = relay.const(1, "float64")
    wide = _wide(x)
    w = relay.negative(relay.log(relay.multiply(relay.subtract(one, wide), relay.add(one, wide))))
    center = _polynomial(relay.subtract(w, relay.const(2.5, "float64")), ERF_INV_CENTER)
    tails = _polynomial(relay.subtract(relay.sqrt(w), relay.const(3.0, "float64")), ERF_INV_TAILS)
    factor = relay.where(relay.less(w, relay.const(5.0, "float64")), center, tails)
    result = relay.multiply(factor, wide)
    end = relay.equal(relay.abs(wide), one)
    return relay.cast(relay.where(end, relay.multiply(wide, relay.const(math.inf, "float64")), result), dtype)


def lgamma(dtype: str, x: relay.Expr) -> relay.Expr:
    """Use Lanczos' series, reflected below 1/2."""
    x, half, one = _wide(x), relay.const(0.5, "float64"), relay.const(1, "float64")
    mirrored = relay.less(x, half)
    z = relay.subtract(relay.where(mirrored, relay.subtract(one, x), x), one)
    series = relay.const(LANCZOS[0], "float64")
    for index, factor in enumerate(LANCZOS[1:], 1):
        series = relay.add(
            series,
            relay.divide(relay.const(factor, "float64"), relay.add(z, relay.const(float(index), "float64"))),
        )
    t = relay.add(z, relay.const(7.5, "float64"))
    right = relay.add(
        relay.subtract(relay.multiply(relay.add(z, half), relay.log(t)), t),
        relay.log(relay.multiply(series, relay.const(math.sqrt(2 * math.pi), "float64"))),
    )
    period = relay.multiply(relay.subtract(x, relay.round(x)), relay.const(math.pi, "float64"))
    left = relay.subtract(
        relay.log(relay.divide(relay.const(math.pi, "float64"), relay.abs(relay.sin(period)))), right
    )
    result = relay.where(relay.isinf(x), relay.const(math.inf, "float64"), relay.where(mirrored, left, right))
    return relay.cast(result, dtype)


def digamma(dtype: str, x: relay.Expr) -> relay.Expr:
    """Use the asymptotic series, reflected below 0."""
    x, zero, one = _wide(x), relay.const(0, "float64"), relay.const(1, "float64")
    mirrored = relay.less(x, zero)
    z = relay.where(mirrored, relay.subtract(one, x), x)
    steps = [relay.divide(one, relay.add(z, relay.const(float(step), "float64"))) for step in range(SHIFT)]
    far = relay.add(z, relay.const(float(SHIFT), "float64"))
    square = relay.divide(one, relay.multiply(far, far))
    series = relay.multiply(square, _polynomial(square, DIGAMMA[::-1]))
    right = relay.add(relay.subtract(relay.log(far), relay.divide(relay.const(0.5, "float64"), far)), series)
    for step in steps:
        right = relay.subtract(right, step)
    pi = relay.const(math.pi, "float64")
    period = relay.multiply(relay.subtract(x, relay.round(x)), pi)
    left = relay.subtract(right, relay.divide(relay.multiply(pi, relay.cos(period)), relay.sin(period)))
    whole = relay.logical_and(mirrored, relay.equal(x, relay.round(x)))
    result = relay.where(whole, relay.const(math.nan, "float64"), relay.where(mirrored, left, right))
    return relay.cast(result, dtype)


def _polynomial(x: relay.Expr, factors: tuple[float, ...]) -> relay.Expr:
    """Evaluate by Horner's rule, in float64."""
    result = relay.const(factors[0], "float64")
    for factor in factors[1:]:
        result = relay.add(relay.multiply(result, x), relay.const(factor, "float64"))
    return result


def _wide(x: relay.Expr) -> relay.Expr:
    return relay.cast(x, "float64")
