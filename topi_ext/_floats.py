"""Floating point in kernels, to the bit.

TVM tells LLVM that there is no NaN, and LLVM believes it, `isnan` and comparisons included: what is to hold
for NaN is asked of the bits, as integers. And it writes constants into CUDA source with seven digits, where a
float32 takes nine, and turns a division by a constant into a product, which is rounded in another way.
"""

import numpy as np

from tvm import tir

MAGNITUDE, BITS_OF_INFINITY = 0x7FFFFFFF, 0x7F800000  # of a float32
_INTEGERS = {"float32": "int32", "float64": "int64"}


class Locals:
    """Emits values that are computed once, in variables of `scope`. (TVM repeats those of `ib.let`.)"""

    def __init__(self, ib, scope):
        self._ib, self._scope = ib, scope

    def __call__(self, name, value):
        return self.variable(name, value)[0]

    def variable(self, name, value):
        """One that may change, as `variable[0]`."""
        variable = self._ib.allocate(value.dtype, 1, name, scope=self._scope)
        variable[0] = value
        return variable

    def exact(self, number, dtype="float32"):
        """A constant, rounded to the type and to no other digits; TVM has no code for its bits in place."""
        constant = tir.const(bits_of(number, dtype), _INTEGERS[dtype])
        return tir.reinterpret(dtype, self("constant", constant))


def bits(value):
    """The bits of a value as an integer: those of values that are not negative are in the same order."""
    return tir.reinterpret(_INTEGERS[value.dtype], value)


def bits_of(number, dtype="float32"):
    """`bits` of a number."""
    return int(np.array(number, dtype).view(_INTEGERS[dtype]))


def is_finite(value):
    """Neither NaN nor infinite."""
    infinity = bits_of(np.inf, value.dtype)
    magnitude = tir.const(2 ** (8 * np.dtype(value.dtype).itemsize - 1) - 1, _INTEGERS[value.dtype])
    return (bits(value) & magnitude) < tir.const(infinity, magnitude.dtype)
