"""Multiply: add the product of a tile's pixels and of weights, both in shared memory, to sums in registers.

It gets the byte offsets of a slot of pixels and of a slot of weights, which all threads must see already. It
leaves the sums in `Product`, of type `plan.sum_type`, for `cuda_write`.

Who computes what
-----------------
The product of a tile is a matrix: its rows are the output pixels, its columns the block's filters, in the
order of `cuda_weights`. A warp computes `plan.warp_rows` instructions along the pixels by `plan.warp_columns`
columns. Of each instruction `i` along the pixels, a warp has 16 rows: the upper eight, h = 0, and the lower
eight, h = 1. Eight rows are eight neighboring output pixels of one row of the image:

- mma (`multiply`, m16n8k16, of int8 m16n8k32) is an instruction of one warp. Its 16 rows are two neighboring
  rows of a square of 8 x 8 output pixels, and there is one for every eight columns.
- wgmma (`multiply_async`, m64nNk16, of int8 m64nNk32) is an instruction of four warps, a warpgroup, for all
  columns of a warp. Its 64 rows are one square; warp w of the four has the rows 2 * w and 2 * w + 1 of it.

Fragments
---------
Both distribute the sums in the same way. In each 16 x 8 of them, a lane has the pixel `lane // 4` of the
upper and of the lower eight, for two neighboring columns, 2 * (lane % 4) and the next one: registers 0 and 1
for h = 0, 2 and 3 for h = 1. The registers of a thread are `sums[i][column // 8][h][column % 2]`,
`sums_per_row` for each `i`.

Both take two halves of the reduction (`Pair`): two pieces of each pixel and two of each filter. wgmma reads
both operands from shared memory. For mma, ldmatrix loads them into registers. It takes the address of a row
of 16 bytes from each lane, eight lanes for each matrix of eight rows, so each lane computes one row address
of either operand:

    matrix   of pixels (a): half of the reduction, h   of weights (b): columns, half of the reduction
    0        first, 0                                  first eight, first
    1        first, 1                                  first eight, second
    2        second, 0                                 next eight, first
    3        second, 1                                 next eight, second

Synchronization
---------------
mma is synchronous. wgmma runs until `end` or `finish` waits for it: until then it reads its slots, and no
other code may access its sums. `settle` keeps nvcc from moving accesses to the sums across `begin`, `end` and
`finish`. All lanes of a warp, and for wgmma all four warps, must reach each instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._kernel import local
from .._tvm import tir
from .cuda_block import Block, address, split
from .cuda_pixels import corner_of_square, offset_of_eight, offset_of_square, offset_of_tap
from .plan import PIECE


class Pair(NamedTuple):
    """Two halves of the reduction, which one instruction multiplies.

    The pixels' first half begins `piece` pieces into the slot, the second one `distance` pieces later. The
    weights are those of the halves `half` and `half + 1`. In rows of several pieces, one piece follows the
    other.
    """

    piece: int
    distance: int
    half: int


class Product:
    """The sums of a thread, and the instructions that add to them."""

    def __init__(self, block: Block) -> None:
        self._block, self._plan, self._ib = block, block.plan, block.ib
        plan, ib = self._plan, self._ib
        self._sums_per_row = plan.warp_columns // 2
        self._count = plan.warp_rows * self._sums_per_row
        self._sums = ib.allocate(plan.sum_type, (self._count,), name="sums", scope="local")
        if plan.is_async:
            self._find_operands_of_warpgroup()
        else:
            self._a = ib.allocate("uint32", (plan.warp_rows * 4,), name="a", scope="local")
            self._b = ib.allocate("uint32", (plan.warp_columns // 8 * 2,), name="b", scope="local")
            self._find_operands_of_lane()

    def _find_operands_of_warpgroup(self) -> None:
        """For wgmma: the byte of each square in the slot of pixels, and of the first column in a half."""
        block, plan, ib = self._block, self._plan, self._ib
        column = block.warp_in_columns * (plan.warp_columns * plan.row_bytes)
        first = tir.truncdiv(block.warp_in_pixels, 4) * plan.warp_rows
        squares = (offset_of_square(plan, first + i) for i in range(plan.warp_rows))
        self._own_pixels = [local(ib, "own_pixels", square) for square in squares]
        self._own_columns = local(ib, "own_columns", column)

    def _find_operands_of_lane(self) -> None:
        """For mma: the bytes of the rows whose addresses this lane gives to ldmatrix."""
        block, plan, ib = self._block, self._plan, self._ib
        column = block.warp_in_columns * (plan.warp_columns * PIECE)
        matrix, row = split(block.lane, 8)
        self._a_half, h = split(matrix, 2)
        first = h + block.warp_in_pixels * (plan.warp_rows * 2)
        eights = (offset_of_eight(plan, first + 2 * i) for i in range(plan.warp_rows))
        self._own_pixels = [local(ib, "own_pixels", eight + row * PIECE) for eight in eights]
        eight, half = split(matrix, 2)
        column += (row + half * plan.half) * PIECE
        self._own_columns = local(ib, "own_columns", column + eight * (8 * PIECE))
        self._own_last_columns = local(ib, "own_last_columns", column)  # where only eight columns are left

    # --- the reduction

    def multiply_all(self, data: tir.PrimExpr, weights: tir.PrimExpr) -> None:
        """Add the products of all taps and planes of a tile; the offsets are those of the first tap."""
        plan, ib = self._plan, self._ib
        if plan.pairs_taps:
            self.multiply(data, weights, self._pairs_of_taps())
            return
        with ib.for_range(0, plan.taps, "tap") as tap:
            data = local(ib, "data_of_tap", data + offset_of_tap(self._block, tap))
            weights = local(ib, "weights_of_tap", weights + tap * (plan.chunk_planes * plan.half * PIECE))
            self.multiply(data, weights, self.pairs_of_planes())

    def pairs_of_planes(self) -> list[Pair]:
        """The planes of a tap, two by two; their number is even."""
        plan = self._plan
        return [Pair(plan.piece(k, 0, plan.plane), plan.plane, k) for k in range(0, plan.chunk_planes, 2)]

    def _pairs_of_taps(self) -> list[Pair]:
        """The taps of a single plane, two by two; if one is left over, with the plane of zeros."""
        places = [place for place, _ in self._plan.tap_places]
        pairs = [Pair(a, b - a, 2 * i) for i, (a, b) in enumerate(zip(places[::2], places[1::2]))]
        if len(places) % 2:
            pairs.append(Pair(places[-1], self._plan.plane, len(places) - 1))
        return pairs

    # --- the instructions

    def start(self) -> None:
        """Set the sums to 0."""
        with self._ib.for_range(0, self._count, "i", kind="unroll") as i:
            self._sums[i] = tir.const(0, self._plan.sum_type)

    def begin(self) -> None:
        """Before `multiply`."""
        if self._plan.is_async:
            self._settle()
            self._block.call("begin_async")

    def end(self, still_running: int = 0) -> None:
        """After `multiply`: wait for all but the last `still_running` groups of wgmma, one for each `end`."""
        if self._plan.is_async:
            self._block.call("commit_async")
            self.finish(still_running)

    def finish(self, still_running: int = 0) -> None:
        """Wait as `end` does, but without closing a group."""
        if self._plan.is_async:
            self._block.call(f"wait_async<{still_running}>")
            self._settle()

    def _settle(self) -> None:
        self._block.call(f"settle<{self._count}>", address(self._sums, 0))

    def multiply(self, data: tir.PrimExpr, weights: tir.PrimExpr, pairs: Sequence[Pair]) -> None:
        """Add the product of pixels from the byte `data` on and weights from the byte `weights` on."""
        (self._multiply_async if self._plan.is_async else self._multiply_sync)(data, weights, pairs)

    def _multiply_async(self, data: tir.PrimExpr, weights: tir.PrimExpr, pairs: Sequence[Pair]) -> None:
        """With wgmma, one instruction for each square and pair."""
        block, plan = self._block, self._plan
        for piece, distance, half in pairs:
            for i, square in enumerate(self._own_pixels):
                block.call(
                    f"multiply_async<{block.c_type}, {plan.warp_columns}>",
                    address(self._sums, i * self._sums_per_row),
                    block.shared(data + square + piece * PIECE),
                    distance * PIECE,
                    plan.steps_between[0] * plan.pitch * plan.row_bytes,
                    block.shared(weights + self._own_columns + plan.piece(half, 0, plan.half) * PIECE),
                    plan.half * PIECE,
                    8 * plan.row_bytes,
                    1,
                    plan.row_pieces,
                )

    def _multiply_sync(self, data: tir.PrimExpr, weights: tir.PrimExpr, pairs: Sequence[Pair]) -> None:
        """With mma: load the operands of a pair, then multiply each 16 pixels by each eight columns."""
        block, plan = self._block, self._plan
        for piece, distance, half in pairs:
            for i, row in enumerate(self._own_pixels):
                at = block.shared(data + row + (piece + self._a_half * distance) * PIECE)
                block.call("load_matrices<4>", address(self._a, i * 4), at)
            for j in range(0, plan.warp_columns // 8, 2):
                count = 4 if j + 1 < plan.warp_columns // 8 else 2
                column = self._own_columns if count == 4 else self._own_last_columns
                at = block.shared(weights + column + (half * plan.half + j * 8) * PIECE)
                block.call(f"load_matrices<{count}>", address(self._b, j * 2), at)
            for i in range(plan.warp_rows):
                for j in range(plan.warp_columns // 8):
                    block.call(
                        f"multiply<{block.c_type}>",
                        address(self._sums, i * self._sums_per_row + j * 4),
                        address(self._a, i * 4),
                        address(self._b, j * 2),
                    )

    # --- what each sum of the thread is

    def corner_of(self, i: int, h: int) -> tuple[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr]:
        """Where in the tile the eight pixels `h` of instruction `i` begin; the thread has number `lane // 4`.

        The result is the first row and column of their square, and their row within it.
        """
        block, plan = self._block, self._plan
        if plan.is_async:
            warpgroup, warp = split(block.warp_in_pixels, 4)
            square, row = warpgroup * plan.warp_rows + i, warp * 2 + h
        else:
            eight = (block.warp_in_pixels * plan.warp_rows + i) * 2 + h
            square, row = split(eight, 8)
        return (*corner_of_square(plan, square), row)

    def first_column(self, group: int) -> tir.PrimExpr:
        """The first filter, counted within the block, that this thread has in a group."""
        plan = self._plan
        column = self._block.warp_in_columns * plan.warp_columns + group * plan.group
        return local(self._ib, "column", column + tir.truncmod(self._block.lane, 4) * plan.run)

    def run_of_sums(self, i: int, h: int, group: int) -> list[tir.PrimExpr]:
        """The sums of a pixel for the `plan.run` filters from `first_column` on, in the order of filters."""
        run = self._plan.run
        first = i * self._sums_per_row + group * run * 2 + h * 2
        return [self._sums[first + j // 2 * 4 + j % 2] for j in range(run)]
