"""Numbers in int8, as all operators of this package round to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ._floats import bits
from ._tvm import dtype_of, te, tir

INT8 = "int8"
# A sum with it is rounded to an integer, whose last byte is that of the float, for this is a multiple of 256
# between 2 ** 23 and 2 ** 24. TVM writes seven of its digits into CUDA source.
INTEGERS = 12_800_000


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
    """A float32 value or vector in the type of a result: int8 is saturated, ties go to the even number.

    GPUs convert an eighth as many numbers in the same time as they add.
    """
    if not dtype.startswith(INT8):
        return value.astype(dtype)
    low, high, one = (tir.const(number, dtype_of(value)) for number in (-128, 127, INTEGERS))
    return bits(te.max(te.min(value, high), low) + one).astype(dtype)


def float_of_byte(word: tir.PrimExpr, which: int) -> tir.PrimExpr:
    """One of the four int8 in an int32, on CUDA: with 128 more it is the end of a float of 2 ** 23."""
    unsigned = word ^ tir.const(-0x7F7F7F80, "int32")
    placed = tir.call_pure_extern("int32", "__byte_perm", tir.const(0x4B000000), unsigned, 0x3214 | which)
    return tir.reinterpret("float32", placed) - tir.const(2.0**23 + 128)
