"""Bit-exact floats in kernels.

TVM tells LLVM that there is no NaN, and LLVM relies on it, also in `isnan` and comparisons: unless that is
taken back, as `corrections.llvm` does for Relay, tests for NaN must look at the bits as integers. TVM also
writes constants into CUDA source with seven digits, where a float32 needs nine, and turns a division by a
constant into a product, which rounds differently.
"""

from __future__ import annotations

import numpy as np

from ._tvm import BufferVar, DataType, IRBuilder, dtype_of, tir

HALF = "float16", "bfloat16"
MAGNITUDE, BITS_OF_INFINITY = 0x7FFFFFFF, 0x7F800000


class Locals:
    """Emits values that are computed once, in variables of `scope`. (TVM recomputes those of `ib.let`.)"""

    def __init__(self, ib: IRBuilder, scope: str) -> None:
        self._ib, self._scope = ib, scope

    def __call__(self, name: str, value: tir.PrimExpr) -> tir.PrimExpr:
        lanes = lanes_of(value)
        at = tir.Ramp(0, 1, lanes) if lanes > 1 else 0
        variable = self._ib.allocate(dtype_of(value).split("x")[0], lanes, name, scope=self._scope)
        variable[at] = value
        return variable[at]

    def variable(self, name: str, value: tir.PrimExpr) -> BufferVar:
        """A mutable variable, read and written as `variable[0]`."""
        variable = self._ib.allocate(dtype_of(value), 1, name, scope=self._scope)
        variable[0] = value
        return variable

    def exact(self, number: float, dtype: str = "float32") -> tir.PrimExpr:
        """A constant that is exact in its type; TVM cannot emit a reinterpreted literal in place."""
        of_bits = tir.const(bits_of(number, dtype), dtype.replace("float", "int"))
        return tir.reinterpret(dtype, self("constant", of_bits))


def bits(value: tir.PrimExpr) -> tir.PrimExpr:
    """The bits of a value as an integer; for values that are not negative, they have the same order."""
    if isinstance(value, tir.FloatImm):  # CUDA source would take the address of a literal
        return tir.const(bits_of(value.value, dtype_of(value)), dtype_of(value).replace("float", "int"))
    return tir.reinterpret(dtype_of(value).replace("float", "int"), value)


def bits_of(number: float, dtype: str = "float32") -> int:
    """The `bits` of a Python number."""
    return int(np.dtype(dtype).type(number).view(dtype.replace("float", "int")))


def is_finite(value: tir.PrimExpr) -> tir.PrimExpr:
    """Whether a value is neither NaN nor infinite."""
    infinity = tir.const(bits_of(np.inf, dtype_of(value)), dtype_of(value).replace("float", "int"))
    magnitude = tir.const(2 ** (DataType(dtype_of(value)).bits - 1) - 1, dtype_of(infinity))
    return (bits(value) & magnitude) < infinity


def is_nan(value: tir.PrimExpr) -> tir.PrimExpr:
    """Whether a value of float32 is NaN, by its bits as an integer."""
    return (bits(value) & MAGNITUDE) > BITS_OF_INFINITY


def rounded(value: tir.PrimExpr, zero: tir.PrimExpr) -> tir.PrimExpr:
    """A value that is rounded on its own; `zero` is an integer 0 that the compiler must not know to be 0.

    The compiler may fuse a product with an addition, which rounds only once. It cannot if something happens
    to the product in between.
    """
    return tir.reinterpret(dtype_of(value), bits(value) | zero)


def lanes_of(value: tir.PrimExpr) -> int:
    """The number of vector lanes of a value."""
    return DataType(dtype_of(value)).lanes


def spread(value: tir.PrimExpr, lanes: int) -> tir.PrimExpr:
    """A number in each lane; a vector stays as it is."""
    return tir.Broadcast(value, lanes) if lanes > lanes_of(value) else value


def vector_type(dtype: str, lanes: int) -> str:
    """The type of a vector, or of a number if there is one lane."""
    return f"{dtype}x{lanes}" if lanes > 1 else dtype
