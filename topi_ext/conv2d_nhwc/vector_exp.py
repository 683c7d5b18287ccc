"""The exponential of vectors, which LLVM would compute one lane after the other."""

from __future__ import annotations

from tvm import te, tir

from .._floats import BITS_OF_INFINITY, MAGNITUDE

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
LEAST, GREATEST = -87.33654, 88.37626  # whose results are normal numbers
# Of the Cephes library: exp(r) = 1 + r + r² * polynomial, for |r| up to half of log 2
COEFFICIENTS = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5
BIAS, BITS_OF_FRACTION = 127, 23


def vector_exp(x: tir.PrimExpr) -> tir.PrimExpr:
    """Within 2e-7 of the exponential of a float32, or of several; for NaN it is NaN.

    Beyond `LEAST` and `GREATEST`, the result is that of these.
    """
    lanes = x.dtype.partition("x")[2]
    integer = "int32" + (f"x{lanes}" if lanes else "")
    clipped = te.max(te.min(x, tir.const(GREATEST, "float32")), tir.const(LEAST, "float32"))
    power = tir.floor(clipped * tir.const(LOG2_E, "float32") + tir.const(0.5, "float32"))
    rest = clipped - power * tir.const(LN2_HIGH, "float32") - power * tir.const(LN2_LOW, "float32")
    polynomial = rest * tir.const(COEFFICIENTS[0], "float32") + tir.const(COEFFICIENTS[1], "float32")
    for coefficient in COEFFICIENTS[2:]:
        polynomial = polynomial * rest + tir.const(coefficient, "float32")
    value = polynomial * rest * rest + rest + tir.const(1, "float32")
    exponent = (power.astype(integer) + tir.const(BIAS, "int32")) << tir.const(BITS_OF_FRACTION, "int32")
    value = value * tir.reinterpret(x.dtype, exponent)
    is_nan = (tir.reinterpret(integer, x) & tir.const(MAGNITUDE, "int32")) > tir.const(
        BITS_OF_INFINITY, "int32"
    )
    return tir.Select(is_nan, x, value)
