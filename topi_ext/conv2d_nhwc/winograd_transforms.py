"""The transforms of Winograd's algorithm on CPUs, for tiles of 4x4 results of 3x3 filters; see `winograd`.

They are those of Cook and Toom: polynomials are multiplied by their values at `POINTS` and at infinity. With
these points the error, relative to the largest result, is some 2e-6 for 256 channels, where summing directly
has 2e-7; with 0, 1, -1, 2 and -2 it is 8e-6.

Kernels are compiled at run time, once for each epilogue: all extents are arguments.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

import tvm

from .. import _avx512
from .._floats import Locals
from .._processor import options_of_processor
from .._tvm import IRBuilder, compiled, memory_at, te, tir
from .._types import IntExpr
from .._vector_math import vector_exp, vector_tanh
from .cpu import LANES
from .epilogue import Function, activate
from .problem import Activation

SIDE, KERNEL = 4, 3
SEEN = SIDE + KERNEL - 1  # pixels, in each direction
NUMBERS = SEEN**2
POINTS = [Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(4, 3), Fraction(-4, 3)]
HALF = 2  # rows of a tile's results
FOR_SEVERAL_THREADS = 2**11  # numbers of a kind in a block: for fewer it takes longer to wake threads

_compiling = threading.Lock()


class Epilogue(NamedTuple):
    """What becomes of the sums before they are written."""

    activation: Activation
    final_activation: Activation
    bias: bool
    slope: bool
    residual: bool


def of_filters() -> np.ndarray:
    """The matrix G of the transform G g G^T of a filter g."""
    rows = []
    for point in POINTS:
        others = [point - other for other in POINTS if other != point]
        rows.append([point**power / math.prod(others) for power in range(KERNEL)])
    rows.append([Fraction(0)] * (KERNEL - 1) + [Fraction(1)])
    return np.array(rows, dtype="float64")


def lanes_of(length: int) -> int:
    """How many of so many channels or filters are computed at once; 0 where there are too few."""
    return next((lanes for lanes in (LANES, LANES // 2) if lanes <= length), 0)


def loop_over(tiles: int, length: int) -> str:
    """The kind of loop over the tiles of a block, each with so many channels or filters."""
    return "parallel" if tiles * length >= FOR_SEVERAL_THREADS else "serial"


def of_data(lanes: int, loop: str) -> Callable[..., None]:
    """The kernel from data to numbers (36, tiles, channels), of `lanes` channels at once.

    It takes the addresses of data and numbers, then as integers: how far the 36 are apart; the channels; the
    height and the width of the data; how many pixels of padding are above and to the left; then what
    `_Kernel` says.
    """
    with _compiling:
        return _of_data(lanes, loop)


def of_products(lanes: int, loop: str, epilogue: Epilogue) -> Callable[..., None]:
    """The kernel from products (36, tiles, filters) to results, of `lanes` filters at once.

    It takes the addresses of the products, the result, bias, slope and residual, then as integers: how far
    the 36 are apart; the filters; the height and the width of the result; then what `_Kernel` says.
    """
    with _compiling:
        return _of_products(lanes, loop, epilogue)


@functools.cache
def _of_data(lanes: int, loop: str) -> Callable[..., None]:
    kernel = _Kernel(loop, "data", "numbers")
    apart, channels = kernel.integers("apart", "channels")
    height, width, above, before = kernel.integers("height", "width", "above", "before")
    ib, (data, numbers) = kernel.ib, kernel.tensors
    with kernel.each_tile() as (tile, image, down, across), kernel.each_vector(channels, lanes) as channel:
        top, left = down * SIDE - above, across * SIDE - before
        rows = [_Vectors(ib, lanes, SEEN) for _ in range(SEEN)]

        def read(is_inside: bool) -> None:
            for y, row in enumerate(rows):
                with ib.for_range(0, SEEN, "x") as x:
                    at = ((image * height + top + y) * width + left + x) * channels + channel
                    value = data[tir.Ramp(at, 1, lanes)]
                    if not is_inside:
                        is_pixel = tir.all(top + y >= 0, top + y < height, left + x >= 0, left + x < width)
                        zeros = tir.Broadcast(tir.const(0, "float32"), lanes)
                        value = tir.if_then_else(is_pixel, value, zeros)
                    row[x] = value

        with ib.if_scope(tir.all(top >= 0, top + SEEN <= height, left >= 0, left + SEEN <= width)):
            read(is_inside=True)
        with ib.else_scope():
            read(is_inside=False)
        columns = [_numbers_of(ib, [row[x] for row in rows]) for x in range(SEEN)]
        for y in range(SEEN):
            for x, number in enumerate(_numbers_of(ib, [column[y] for column in columns])):
                at = (y * SEEN + x) * apart + tile * channels + channel
                numbers[tir.Ramp(at, 1, lanes)] = number
    return kernel.compiled()


@functools.cache
def _of_products(lanes: int, loop: str, epilogue: Epilogue) -> Callable[..., None]:
    kernel = _Kernel(loop, "products", "result", "bias", "slope", "residual")
    apart, filters, height, width = kernel.integers("apart", "filters", "height", "width")
    ib, (products, result, biases, slopes, residual) = kernel.ib, kernel.tensors
    with kernel.each_tile() as (tile, image, down, across), kernel.each_vector(filters, lanes) as filter_:
        keep, of_filter = Locals(ib, "global"), tir.Ramp(filter_, 1, lanes)
        activated = functools.partial(
            activate, exp=vector_exp, tanh=vector_tanh, sigmoid=_sigmoid_of(lanes, kernel.target)
        )
        bias = keep("bias", biases[of_filter]) if epilogue.bias else None
        slope = keep("slope", slopes[of_filter]) if epilogue.slope else None

        def product(row: int, column: int) -> tir.PrimExpr:
            at = (row * SEEN + column) * apart + tile * filters + filter_
            return products[tir.Ramp(at, 1, lanes)]

        columns = [_sums_of(ib, [product(row, column) for row in range(SEEN)]) for column in range(SEEN)]
        for first in range(0, SIDE, HALF):
            sums = _Vectors(ib, lanes, HALF * SIDE)
            for row in range(HALF):
                for column, number in enumerate(_sums_of(ib, [each[first + row] for each in columns])):
                    sums[row * SIDE + column] = number
            with ib.for_range(0, HALF, "y") as y, ib.for_range(0, SIDE, "x") as x:
                down_, across_ = down * SIDE + first + y, across * SIDE + x
                with ib.if_scope(tir.all(down_ < height, across_ < width)):
                    at = tir.Ramp(((image * height + down_) * width + across_) * filters + filter_, 1, lanes)
                    value = sums[y * SIDE + x] if bias is None else sums[y * SIDE + x] + bias
                    value = keep("value", activated(epilogue.activation, value, slope))
                    if epilogue.residual:
                        value = keep("value", value + residual[at])
                    result[at] = activated(epilogue.final_activation, value)
    return kernel.compiled()


def _sigmoid_of(lanes: int, target: tvm.target.Target) -> Function | None:
    if lanes != _avx512.LANES or not _avx512.has_instructions(target):
        return None
    return functools.partial(_avx512.sigmoid, precise=True)


class _Kernel:
    """A function of addresses and integers as it is written, with its loops over tiles and vectors.

    Its last arguments are the first tile, how many, how many there are in all, and how many an image has down
    and across. What is behind the last tile of all repeats it.
    """

    def __init__(self, loop: str, *tensors: str) -> None:
        self._loop = loop
        self.target = tvm.target.Target({"kind": "llvm", **options_of_processor()})
        self.ib: IRBuilder = IRBuilder()
        floats = tvm.ir.PointerType(tvm.ir.PrimType("float32"))
        self._parameters = [tir.Var(name, floats) for name in tensors]
        self.tensors = [memory_at(self.ib, pointer, "float32") for pointer in self._parameters]

    def integers(self, *names: str) -> list[tir.Var]:
        found = [tir.Var(name, "int32") for name in names]
        self._parameters += found
        return found

    @contextlib.contextmanager
    def each_tile(self) -> Iterator[tuple[IntExpr, IntExpr, IntExpr, IntExpr]]:
        """Its number in the block, its image, and its place down and across."""
        first, tiles, all_tiles, down, across = self.integers("first", "tiles", "all", "down", "across")
        with self.ib.for_range(0, tiles, "tile", kind=self._loop) as tile:
            number = te.min(first + tile, all_tiles - 1)
            image, place = tir.truncdiv(number, down * across), tir.truncmod(number, down * across)
            yield tile, image, tir.truncdiv(place, across), tir.truncmod(place, across)

    @contextlib.contextmanager
    def each_vector(self, length: tir.Var, lanes: int) -> Iterator[tir.PrimExpr]:
        """The first element of each vector of a length; the last one may overlap the one before."""
        with self.ib.for_range(0, tir.truncdiv(length + (lanes - 1), lanes), "vector") as vector:
            yield te.min(vector * lanes, length - lanes)

    def compiled(self) -> Callable[..., None]:
        return compiled(tir.PrimFunc(self._parameters, self.ib.get()), self.target)


class _Vectors:
    """A few vectors on the stack, where TVM puts less than 1 KiB."""

    def __init__(self, ib: IRBuilder, lanes: int, count: int) -> None:
        self._lanes, self._memory = lanes, ib.allocate("float32", count * lanes, "vectors", scope="global")

    def __getitem__(self, at: IntExpr) -> tir.PrimExpr:
        return self._memory[tir.Ramp(at * self._lanes, 1, self._lanes)]

    def __setitem__(self, at: IntExpr, value: tir.PrimExpr) -> None:
        self._memory[tir.Ramp(at * self._lanes, 1, self._lanes)] = value


# --- six numbers. The points but 0 are pairs of a number and its negative, for which the even and the odd
# terms of a polynomial are computed once.

A, B = POINTS[1], POINTS[3]


def _numbers_of(ib: IRBuilder, data: Sequence[tir.PrimExpr]) -> list[tir.PrimExpr]:
    """The coefficients of the products of all factors (x - point) but one, times the data."""
    keep = Locals(ib, "global")
    d = [keep("data", each) for each in data]

    def pair(own: Fraction, other: Fraction) -> list[tir.PrimExpr]:
        even = keep("even", d[4] - d[2] * _constant(other**2))
        odd = keep("odd", d[3] * _constant(own) - d[1] * _constant(own * other**2))
        return [keep("number", even + odd), keep("number", even - odd)]

    square, product = _constant(A**2 + B**2), _constant(A**2 * B**2)
    first = keep("number", d[4] + (d[0] * product - d[2] * square))
    last = keep("number", d[5] + (d[1] * product - d[3] * square))
    return [first, *pair(A, B), *pair(B, A), last]


def _sums_of(ib: IRBuilder, products: Sequence[tir.PrimExpr]) -> list[tir.PrimExpr]:
    """The sums over all points of their powers 0 to 3 times the products; infinity has the last one only."""
    keep = Locals(ib, "global")
    m = [keep("product", each) for each in products]
    even_a, odd_a = keep("even", m[1] + m[2]), keep("odd", m[1] - m[2])
    even_b, odd_b = keep("even", m[3] + m[4]), keep("odd", m[3] - m[4])
    return [
        keep("sum", m[0] + (even_a + even_b)),
        keep("sum", odd_a * _constant(A) + odd_b * _constant(B)),
        keep("sum", even_a * _constant(A**2) + even_b * _constant(B**2)),
        keep("sum", m[5] + (odd_a * _constant(A**3) + odd_b * _constant(B**3))),
    ]


def _constant(value: Fraction) -> tir.PrimExpr:
    return tir.const(float(value), "float32")
