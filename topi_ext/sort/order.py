"""Comparison of keys, as TIR expressions.

Convention: every order is total. NaN is the greatest value (as in numpy.sort and torch.sort: last when
ascending, first when descending), all NaN tie, and -0.0 ties with 0.0. Ties keep their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._floats import MAGNITUDE, bits, bits_of, lanes_of, vector_type
from .._tvm import DataType, dtype_of, tir

USUAL_NAN = {32: 0x7FC00000, 64: 0x7FF8 << 48}
HELD_AS = {  # narrow keys are compared in a wider type that holds each of their values exactly
    "float16": "float32",
    "bfloat16": "float32",
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
}


@dataclass(frozen=True)
class Order:
    """The order of keys of type `dtype`; kernels hold them as `held`."""

    dtype: str
    ascending: bool = True

    @property
    def held(self) -> str:
        return HELD_AS.get(self.dtype, self.dtype)

    def hold(self, key: tir.PrimExpr) -> tir.PrimExpr:
        return key.astype(vector_type(self.held, lanes_of(key)))

    def give_back(self, key: tir.PrimExpr) -> tir.PrimExpr:
        return key.astype(self.dtype)

    def before(self, x: tir.PrimExpr, y: tir.PrimExpr) -> tir.PrimExpr:
        """Whether the held key `x` must come before the held key `y`; false for ties.

        Bitwise, since branches around single comparisons would cost more, and since TVM turns a logical
        "not x < y" into "x >= y", which differs for NaN.
        """
        low, high = (x, y) if self.ascending else (y, x)
        if not self.held.startswith("float"):
            return low < high
        return (low < high) | (tir.isnan(high) & (low == low))

    @property
    def has_rank(self) -> bool:
        """Whether keys of this type have a `rank`."""
        return self.held in ("float32", "int32", "uint32")

    def rank(self, value: tir.PrimExpr) -> tir.PrimExpr:
        """An int32 that is smaller the earlier a value comes, and equal for ties."""
        held = self.hold(value)
        if self.held == "float32":
            rising = ordered_bits(held)
        else:
            type_ = vector_type("int32", lanes_of(held))
            rising = (
                held if self.held == "int32" else (held ^ tir.const(1 << 31, dtype_of(held))).astype(type_)
            )
        return rising if self.ascending else rising ^ tir.const(-1, dtype_of(rising))


def ordered_bits(value: tir.PrimExpr, nan_is_least: bool = False) -> tir.PrimExpr:
    """A float as an integer of its size with the same order, which may also be part of a larger key.

    NaN is the greatest integer, or less than all numbers.
    """
    dtype = DataType(dtype_of(value))
    infinity = bits_of(math.inf, f"float{dtype.bits}")
    given = bits(value)
    zero, others, of_infinity = (
        tir.const(number, dtype_of(given)) for number in (0, 2 ** (dtype.bits - 1) - 1, infinity)
    )
    magnitude = given & others
    in_order = tir.Select(magnitude == zero, zero, _turned(given))
    return tir.Select(magnitude > of_infinity, _key_of_nan(given, nan_is_least), in_order)


def from_ordered_bits(key: tir.PrimExpr, nan_is_least: bool = False) -> tir.PrimExpr:
    """The float32 or float64 with these `ordered_bits`; a NaN that is one in narrower types, too."""
    bits_of_key = DataType(dtype_of(key)).bits
    usual = tir.const(USUAL_NAN[bits_of_key], dtype_of(key))
    given = tir.Select(key == _key_of_nan(key, nan_is_least), usual, _turned(key))
    return tir.reinterpret(f"float{bits_of_key}", given)


def _key_of_nan(key: tir.PrimExpr, is_least: bool) -> tir.PrimExpr:
    """Which has a negative, since TVM's simplifier subtracts what is compared."""
    greatest = 2 ** (DataType(dtype_of(key)).bits - 1) - 1
    return tir.const(-greatest if is_least else greatest, dtype_of(key))


def _turned(key: tir.PrimExpr) -> tir.PrimExpr:
    """Reverse the order of negative numbers; this is its own inverse."""
    dtype = DataType(dtype_of(key))
    last, others = (
        tir.const(number, dtype_of(key)) for number in (dtype.bits - 1, 2 ** (dtype.bits - 1) - 1)
    )
    return key ^ ((key >> last) & others)


def class_then_score(class_id: tir.PrimExpr, score: tir.PrimExpr) -> tir.PrimExpr:
    """An int64 key in ascending order of class and, within a class, descending order of float32 score."""
    descending = tir.const(MAGNITUDE, "int64") - ordered_bits(score).astype("int64")
    return (class_id.astype("int64") << 32) + descending
