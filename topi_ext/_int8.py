"""Numbers in int8, as all operators of this package round to them."""

from __future__ import annotations

from ._tvm import dtype_of, te, tir

INT8 = "int8"


def rounded(value: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """A float32 value or vector in the type of a result: int8 is saturated, ties go to the even number."""
    if not dtype.startswith(INT8):
        return value.astype(dtype)
    low, high = (tir.const(bound, dtype_of(value)) for bound in (-128, 127))
    return tir.nearbyint(te.max(te.min(value, high), low)).astype(dtype)
