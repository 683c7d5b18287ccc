"""Float32 in kernels, to the bit.

TVM tells LLVM that there is no NaN, and LLVM believes it, `isnan` and comparisons included: what is to hold
for NaN is asked of the bits, as integers. And it writes constants into CUDA source with seven digits, where a
float32 takes nine.
"""

import numpy as np

from tvm import tir

MAGNITUDE, BITS_OF_INFINITY = 0x7FFFFFFF, 0x7F800000


class Locals:
    """Emits values that are computed once, in variables of `scope`. (TVM repeats those of `ib.let`.)"""

    def __init__(self, ib, scope):
        self._ib, self._scope = ib, scope

    def __call__(self, name, value):
        variable = self._ib.allocate(value.dtype, 1, name, scope=self._scope)
        variable[0] = value
        return variable[0]

    def exact(self, number):
        """A constant, rounded to float32 and to no other digits; TVM has no code for its bits in place."""
        return tir.reinterpret("float32", self("constant", tir.const(bits_of(number), "int32")))


def bits(value):
    """The bits of a value as an int32: those of values that are not negative are in the same order."""
    return tir.reinterpret("int32", value)


def bits_of(number):
    """`bits` of a number."""
    return int(np.float32(number).view("int32"))


def is_finite(value):
    """Neither NaN nor infinite."""
    return (bits(value) & MAGNITUDE) < BITS_OF_INFINITY
