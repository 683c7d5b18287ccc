"""The exponential and the hyperbolic tangent of vectors; LLVM would compute one lane after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ._floats import BITS_OF_INFINITY, MAGNITUDE, bits
from ._tvm import dtype_of, te, tir

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
LEAST, GREATEST = -104.0, 89.0  # beyond, exponentials round to 0 and to infinity
# Of the Cephes library: exp(r) = 1 + r + r² * polynomial, for |r| up to half of log 2
EXP = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5
BIAS, BITS_OF_FRACTION = 127, 23
# Of the Eigen library: tanh(x) = x * polynomial of x² / polynomial of x², and 1 beyond the bound
BOUND = 7.90531110763549805
TANH = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
TANH_BELOW = 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03


def vector_exp(x: tir.PrimExpr) -> tir.PrimExpr:
    """The exponential of a float32, or of several: within 2e-7 of it, or of the smallest normal number."""
    clipped = _clipped(x, LEAST, GREATEST)
    whole = tir.floor(clipped * constant(LOG2_E) + constant(0.5))
    rest = clipped - whole * constant(LN2_HIGH) - whole * constant(LN2_LOW)
    value = polynomial(EXP, rest) * rest * rest + rest + constant(1)
    power = whole.astype(dtype_of(bits(x)))
    half = power >> tir.const(1, "int32")  # the whole power of 2 may be none of float32's normal numbers
    return _unless_nan(x, value * _power_of_2(half) * _power_of_2(power - half))


def _power_of_2(exponent: tir.PrimExpr) -> tir.PrimExpr:
    biased = (exponent + tir.const(BIAS, "int32")) << tir.const(BITS_OF_FRACTION, "int32")
    return tir.reinterpret(dtype_of(exponent).replace("int", "float"), biased)


def vector_tanh(x: tir.PrimExpr) -> tir.PrimExpr:
    """Within 5e-7 of the hyperbolic tangent of a float32, or of several; for NaN it is NaN."""
    clipped = _clipped(x, -BOUND, BOUND)
    square = clipped * clipped
    return _unless_nan(x, clipped * polynomial(TANH, square) / polynomial(TANH_BELOW, square))


def polynomial(coefficients: Sequence[float], x: tir.PrimExpr) -> tir.PrimExpr:
    """The coefficients are those of the highest power first."""
    value = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + constant(coefficient)
    return value


def _clipped(x: tir.PrimExpr, low: float, high: float) -> tir.PrimExpr:
    return te.max(te.min(x, constant(high)), constant(low))


def _unless_nan(x: tir.PrimExpr, value: tir.PrimExpr) -> tir.PrimExpr:
    magnitude = bits(x) & tir.const(MAGNITUDE, "int32")
    return tir.Select(magnitude > tir.const(BITS_OF_INFINITY, "int32"), x, value)


def constant(value: float) -> tir.PrimExpr:
    return tir.const(value, "float32")
