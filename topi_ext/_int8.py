"""Numbers in int8, as all operators of this package round to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ._tvm import dtype_of, te, tir

INT8 = "int8"


def checked_out_dtype(
    dtype: str, given: str, types: Sequence[str], named: tuple[str, str], refuse: Callable[[str], NoReturn]
) -> str:
    """The type of a result for data of a type, from the attribute; int8 is that of any, and needs one.

    `types` are all that the operator has; `named`: what the data are called, and the verb for it.
    """
    what, need = named
    if dtype == INT8 and not given:
        refuse(f"int8 {what} {need} an out_dtype: int8, or a float type")
    allowed = types if dtype == INT8 else (dtype, INT8)
    if (given or dtype) not in allowed:
        refuse(f"out_dtype for {dtype} {what} must be {' or '.join(allowed)}, not {given}")
    return given or dtype


def rounded(value: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """A float32 value or vector in the type of a result: int8 is saturated, ties go to the even number."""
    if not dtype.startswith(INT8):
        return value.astype(dtype)
    low, high = (tir.const(bound, dtype_of(value)) for bound in (-128, 127))
    return tir.nearbyint(te.max(te.min(value, high), low)).astype(dtype)
