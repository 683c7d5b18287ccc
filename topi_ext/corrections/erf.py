"""The error function in float32 on LLVM, as a quotient of polynomials, which has vectors.

TVM calls the C library for each element, which takes ten times as long as an exponential: GELU is an erf for
each hidden unit. The coefficients are those of XLA and Eigen; the largest error is 2e-7, and from 4 on the
result is 1. Importing this module registers it.
"""

from __future__ import annotations

import tvm
from tvm import te, tir

from .._strategy import ABOVE_STOCK
from .._vector_math import polynomial

NUMERATOR = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
DENOMINATOR = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)
END = 4.0


def _erf(call: tir.Call) -> tir.PrimExpr:
    (x,) = call.args
    if not x.dtype.startswith("float32"):
        return call  # as TVM lowers it
    end = tir.const(END, x.dtype)
    x = te.min(end, te.max(-end, x))  # of a number and NaN, LLVM keeps the second operand
    square = x * x
    return x * polynomial(NUMERATOR, square) / polynomial(DENOMINATOR, square)


tvm.ir.register_intrin_lowering("tir.erf", target="llvm", f=_erf, level=ABOVE_STOCK)
