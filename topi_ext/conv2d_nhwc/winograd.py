"""Convolutions of 3x3 on CPUs by Winograd's algorithm, with a quarter of the products.

A tile of 4x4 results sees 6x6 pixels. These, and each filter, are transformed to 36 numbers; the 36 products,
summed over the channels, are transformed back to the tile's results. So for each of the 36 numbers, a matrix
of tiles and channels is multiplied by one of channels and filters, which oneDNN does. Tiles are worked on in
blocks, whose numbers stay in the outer cache; for each block, the transformed filters are read again.

`onednn` decides for it at run time, where the number of images is known.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, MutableMapping, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

import tvm

from ..onednn import library as onednn
from .problem import Problem
from .samples import Samples
from .winograd_transforms import (
    KERNEL,
    NUMBERS,
    SIDE,
    Epilogue,
    lanes_of,
    loop_over,
    of_data,
    of_filters,
    of_products,
)

# Of a block's numbers and products, for each thread, which all work on one block; and of all threads.
BLOCK_BYTES, MAX_BLOCK_BYTES = 16 << 20, 64 << 20
FLOAT = 4  # bytes
MIN_TILES = 16  # of a block: a matrix product of fewer rows is slower
# What the algorithm costs, measured in products: calls; reading the transformed filters, in tiles; and the
# transforms of a tile for each channel and filter, which the few registers of AVX2 do not hold.
CALLS, READING, READING_BY_INTEL = 1_500_000, 8, 24
TRANSFORM, TRANSFORM_BY_AVX2 = 500, 2300
GAIN = 0.9  # of what the products cost without it
SWITCH = "TVM_PASSES_WINOGRAD"  # 0 for none, where its rounding matters


def is_better(problem: Problem) -> bool:
    """Whether it takes less time than summing directly, for filters that are transformed once."""
    lacks = "gelu" in (problem.activation.name, problem.final_activation.name)  # the error function
    is_plain = problem.kernel == (KERNEL, KERNEL) and problem.groups == 1
    is_plain = is_plain and {problem.strides, problem.dilation} == {(1, 1)}
    if not is_plain or problem.dtype != "float32" or not problem.weight_id or lacks:
        return False
    if not lanes_of(problem.channels) or not lanes_of(problem.filters):
        return False
    if {problem.bias, problem.slope} - {None, "float32"} or os.environ.get(SWITCH) == "0":
        return False
    down, across = _tiles(problem)
    height, width = problem.out_size
    images = math.prod(problem.size) * problem.channels, height * width * problem.filters
    if problem.batch * max(images) >= 2**31:  # which the kernels' integers cannot count
        return False
    products, tiles = problem.channels * problem.filters, problem.batch * down * across
    direct = problem.batch * height * width * KERNEL**2 * products
    transform = TRANSFORM if onednn.has_avx512() else TRANSFORM_BY_AVX2
    transforms = transform * tiles * (problem.channels + problem.filters)
    blocks = -(-tiles // _tiles_of_a_block(problem, threads=1))
    reading = blocks * (READING_BY_INTEL if onednn.is_of_intel() else READING)
    return NUMBERS * products * (tiles + reading) + transforms + CALLS < GAIN * direct


class Convolution:
    """A problem's kernels and primitive, and the transformed filters."""

    def __init__(
        self, problem: Problem, weights: MutableMapping[str, Any], workspace: Callable[[int], int]
    ) -> None:
        channels, filters = problem.channels, problem.filters
        given = {
            "bias": problem.bias is not None,
            "residual": problem.residual is not None,
            "slope": problem.slope is not None,
        }
        self._given = [name for name, is_given in given.items() if is_given]
        tiles = _tiles_of_a_block(problem, tvm.runtime.num_threads())
        epilogue = Epilogue(problem.activation, problem.final_activation, **given)
        self._of_data = of_data(lanes_of(channels), loop_over(tiles, channels))
        self._of_products = of_products(lanes_of(filters), loop_over(tiles, filters), epilogue)
        apart = [_apart(tiles * length) for length in (channels, filters)]
        self._of_data_extents = apart[0], channels, *problem.size, *problem.padding[:2]
        self._of_products_extents = apart[1], filters, *problem.out_size
        down, across = _tiles(problem)
        every = problem.batch * down * across
        self._blocks = [(first, tiles, every, down, across) for first in range(0, every, tiles)]
        numbers, products = (
            _layout(NUMBERS, tiles, length, gap) for length, gap in zip((channels, filters), apart)
        )
        shape = NUMBERS, channels, filters
        primitive = onednn.product(numbers, shape, "float32", None, products, onednn.PostOps())
        self.weights = _transformed_once(problem, primitive.weights, weights)
        self._memories = onednn.memory(numbers, 0), onednn.memory(products, 0)
        memories = dict(zip((onednn.SOURCE, onednn.RESULT), self._memories))
        memories[onednn.WEIGHTS] = self.weights.packed.memory
        self._execution = onednn.Execution(primitive, memories)
        self._workspace = workspace
        self._sizes = [FLOAT * NUMBERS * gap for gap in apart]

    def run(self, stream: onednn.Handle, addresses: Sequence[int]) -> None:
        """The addresses are of the operator's arguments that are given, and of the result."""
        data, weight, *others, result = addresses
        self.weights.pack(stream, weight)
        numbers = self._workspace(sum(self._sizes))
        products = numbers + self._sizes[0]
        for memory, address in zip(self._memories, (numbers, products)):
            onednn.move(memory, address)
        given = dict(zip(self._given, others))
        others = [given.get(name, result) for name in ("bias", "slope", "residual")]  # else it is not read
        of_data = [*map(c_void_p, (data, numbers)), *self._of_data_extents]
        of_products = [*map(c_void_p, (products, result, *others)), *self._of_products_extents]
        for block in self._blocks:
            self._of_data(*of_data, *block)
            self._execution.run(stream)
            self._of_products(*of_products, *block)

    def remembered(self, *_: Any) -> None:
        """The transforms are called from Python."""


def _tiles_of_a_block(problem: Problem, threads: int) -> int:
    """As many as stay in the cache, or fewer for blocks of the same size."""
    tiles = problem.batch * math.prod(_tiles(problem))
    of_a_tile = FLOAT * NUMBERS * (problem.channels + problem.filters)
    most = max(MIN_TILES, min(BLOCK_BYTES * threads, MAX_BLOCK_BYTES) // of_a_tile)
    return -(-tiles // -(-tiles // most))


def _tiles(problem: Problem) -> tuple[int, int]:
    """Of an image, down and across."""
    height, width = problem.out_size
    return -(-height // SIDE), -(-width // SIDE)


def _apart(elements: int) -> int:
    """How far apart to put what the 36 have so many elements of: an odd number of the cache's lines.

    A transform reads or writes all 36 at once, which share few sets of the cache otherwise.
    """
    line = onednn.ALIGNMENT // FLOAT
    return (-(-elements // line) | 1) * line


def _layout(count: int, rows: int, length: int, apart: int | None = None) -> onednn.Handle:
    strides = rows * length if apart is None else apart, length, 1
    return onednn.layout((count, rows, length), "float32", strides)


# --- filters


def _transformed_once(
    problem: Problem, chosen: onednn.Handle, known: MutableMapping[str, Any]
) -> TransformedWeights:
    """Those with the same id are transformed for all batches at once."""
    key = f"{problem.weight_id}, transformed"
    same = known.get(key)
    if same is None or not onednn.is_same(same.layout, chosen):
        same = known[key] = TransformedWeights(problem, chosen)
    return same


class TransformedWeights:
    """The numbers of filters in oneDNN's layout, and what tells that others are given."""

    def __init__(self, problem: Problem, chosen: onednn.Handle) -> None:
        self.packed = onednn.Buffer(chosen)
        self.layout = chosen
        self._shape = problem.filters, KERNEL, KERNEL, problem.channels
        self._samples = Samples(FLOAT * math.prod(self._shape))

    def pack(self, stream: onednn.Handle, address: int) -> None:
        """Transform the filters at an address, if they are not those that were."""
        if not self._samples.are_new(address):
            return
        filters, *_, channels = self._shape
        everything = (ctypes.c_float * math.prod(self._shape)).from_address(address)
        weight, matrix = np.ctypeslib.as_array(everything).reshape(self._shape), of_filters()
        numbers = np.einsum("ar,krsc,bs->abck", matrix, weight.astype("float64"), matrix, optimize=True)
        numbers = np.ascontiguousarray(numbers.reshape(NUMBERS, channels, filters), "float32")
        given = _layout(NUMBERS, channels, filters)
        memories = {
            onednn.SOURCE: onednn.memory(given, numbers.ctypes.data),
            onednn.RESULT: self.packed.memory,
        }
        onednn.Execution(onednn.reorder(given, self.layout), memories).run(stream)
