"""Write: add bias and residual to the sums of a tile, apply the activations, and store the result.

It gets the sums of a tile from `cuda_multiply`; the result goes to global memory, and nothing is handed on.

Tables
------
Bias, slopes and scales are in shared memory as float32, `plan.columns` of each, with 0 for filters that do
not exist. `fill_tables` writes them once, at the beginning; there must be a barrier before the first `write`.

Runs
----
A thread has `plan.run` contiguous filters of each of its pixels for each group of filters (`cuda_weights`
says why). It stores `vector` values at once: as many as divide the run, `slab`, the filters that are
contiguous in the result, and the filters of a bundle, a multiple of which is its first one. In a bundle, the
first filter of a run is a multiple of `plan.run`, so each store, and each load of the residual, is aligned to
its size.

Depth to space
--------------
The filters of a pixel (y, x) become a square of `problem.block` rows of the result. Filter k goes to row `k
// slab` of the square, and the `slab` values in such a row are contiguous. With height and width before depth
to space, the first filter is at `start = slab * ((image * height + y) * width * block + x)`, and filter k at
`start + k + k // slab * slab * (width - 1)`. Without depth to space, `k // slab` is 0.

Registers
---------
The residual is loaded before it is needed, without branches: a pixel or filter that does not exist loads
element 0. Loads of several groups are issued together, up to `RESIDUAL_REGISTERS` registers. With wgmma,
resident plans load the residual of all groups even before they multiply (`load_residual`); with mma there are
too few registers for that.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import NamedTuple

from .._kernel import bytes_of, local
from .._tvm import BufferVar, tir
from . import tensor_core
from .cuda_block import Block, address
from .cuda_multiply import Product
from .epilogue import cuda_ratio, finish

RESIDUAL_REGISTERS = 32  # of a thread


class Pixel(NamedTuple):
    """An output pixel of the thread, one of the eight pixels `h` of instruction `i`."""

    i: int
    h: int
    start: tir.PrimExpr  # the index of its first element in the result, or -1 if it does not exist
    added: tir.PrimExpr  # and in the residual, if there is one


# The residual of a run or a part of it, in words, by its group, `i` and `h` of the pixel, and first filter.
Residual = dict[tuple[int, int, int, int], BufferVar]


class Output:
    """Emits the result of a block's tiles."""

    def __init__(self, block: Block, product: Product) -> None:
        self._block, self._product = block, product
        self._ib, self._plan, self._problem = block.ib, block.plan, block.problem
        self._slab = self._problem.filters // self._problem.block
        self._vector = gcd(self._slab, self._plan.run, self._plan.filters)

    # --- tables

    def fill_tables(self) -> None:
        """Write bias, slopes and scales to shared memory; all threads of the block share this."""
        block = self._block
        for name, at in block.tables.items():
            with block.each(self._plan.columns) as i:
                k = block.first_filter + i
                exists = block.is_filter(k)
                value = block.buffers[name][tir.Select(exists, k, 0)].astype("float32")
                block.call(
                    "put", block.shared(at + i * 4), tir.Select(exists, value, tir.const(0, "float32"))
                )

    def _read_table(self, at: int, column: tir.PrimExpr, count: int) -> BufferVar:
        values = self._ib.allocate("float32", (count,), "table", scope="local")
        self._block.call(f"get<{count}>", address(values, 0), self._block.shared(at + column * 4))
        return values

    # --- the thread's pixels

    def pixels(self, number: tir.PrimExpr) -> list[Pixel]:
        """The thread's pixels in the tile of this number, which need not exist."""
        block, ib, plan, problem = self._block, self._ib, self._plan, self._problem
        image, y0, x0 = block.tile(number)
        height, width = problem.out_size
        of_result, of_residual = problem.parts["result"], problem.parts["residual"]
        pixels = []
        for i in range(plan.warp_rows):
            for h in range(2):
                square_y, square_x, row = self._product.corner_of(i, h)
                y = local(ib, "y", y0 + square_y + row)
                x = local(ib, "x", x0 + square_x + tir.truncdiv(block.lane, 4))
                pixel = (image * height + y) * (width * problem.block) + x
                inside = (number < plan.all_tiles) & (y < height) & (x < width)
                place = pixel * (of_result.whole // problem.block) + of_result.first
                start = added = local(ib, "place", tir.Select(inside, place, -1))
                if problem.residual is not None and of_residual != of_result:
                    place = pixel * of_residual.whole + of_residual.first
                    added = local(ib, "place", tir.Select(inside, place, 0))
                pixels.append(Pixel(i, h, start, added))
        return pixels

    # --- the residual

    def load_residual(self, pixels: list[Pixel], groups: range) -> Residual | None:
        """Load the residual of these groups of filters into registers; None if there is no residual."""
        if self._problem.residual is None:
            return None
        bytes_ = self._vector * bytes_of(self._problem.residual)
        block, ib, residual = self._block, self._ib, {}
        for group in groups:
            first = local(ib, "filter", block.first_filter + self._product.first_column(group))
            for i, h, start, added in pixels:
                for begin in range(0, self._plan.run, self._vector):
                    k = first + begin
                    at = tir.Select((start >= 0) & block.is_filter(k), added + k, 0)
                    words = ib.allocate("uint32", (-(-bytes_ // 4),), "added", scope="local")
                    source = tir.address_of(block.buffers["residual"][at])
                    block.call(f"load<{bytes_}>", address(words, 0), source)
                    residual[group, i, h, begin] = words
        return residual

    # --- the result

    def write(self, pixels: list[Pixel], residual: Residual | None = None) -> None:
        """Store the results of these pixels; the residual is loaded here if it is not given."""
        ib, plan, product, run = self._ib, self._plan, self._product, self._plan.run
        added = residual
        registers = -(-run * bytes_of(self._problem.residual or "float16") // 4)
        at_once = max(1, RESIDUAL_REGISTERS // (len(pixels) * registers))  # groups
        for group in range(plan.groups):
            if residual is None and group % at_once == 0:
                added = self.load_residual(pixels, range(group, min(group + at_once, plan.groups)))
            column = product.first_column(group)
            first = local(ib, "filter", self._block.first_filter + column)
            tables = {name: self._read_table(at, column, run) for name, at in self._block.tables.items()}
            for i, h, start, _ in pixels:
                sums = product.run_of_sums(i, h, group)
                with ib.if_scope(start >= 0):
                    for begin in range(0, run, self._vector):
                        words = added and added[group, i, h, begin]
                        self._write_vector(first, start, begin, sums, tables, words)

    def _write_vector(
        self,
        first: tir.PrimExpr,
        start: tir.PrimExpr,
        begin: int,
        sums: list[tir.PrimExpr],
        tables: dict[str, BufferVar],
        added: BufferVar | None,
    ) -> None:
        """Store what belongs to the sums from `begin` on, if the filters exist; `first` is that of sum 0."""
        block, ib, problem, vector = self._block, self._ib, self._problem, self._vector
        k = first + begin
        with ib.if_scope(block.is_filter(k)):
            at = start + k
            if problem.block > 1:
                row = local(ib, "row", tir.truncdiv(k, self._slab))
                at = at + row * (self._slab * (problem.out_size[1] - 1))
            target = tir.address_of(block.buffers["result"][local(ib, "at", at)])
            values = ib.allocate("float32", (vector,), "values", scope="local")
            for j in range(vector):
                of_filter = {name: table[begin + j] for name, table in tables.items()}
                more = self._unpacked(added, problem.residual, j) if added and problem.residual else None
                once = partial(local, ib, "before")
                values[j] = finish(
                    problem, sums[begin + j], **of_filter, residual=more, once=once, ratio=cuda_ratio
                )
            c_type = tensor_core.C_TYPES[problem.out_dtype]
            block.call(f"store_values<{c_type}, {vector}>", target, address(values, 0))

    def _unpacked(self, words: BufferVar, dtype: str, index: int) -> tir.PrimExpr:
        """One of the values that were loaded together."""
        word, which = divmod(index, 4 // bytes_of(dtype))
        unpack = tensor_core.name(f"unpack<{tensor_core.C_TYPES[dtype]}>")
        return tir.call_pure_extern("float32", unpack, words[word], which)
