"""Attention on tensor cores: a block computes a tile of queries, and goes through the keys tile by tile.

A warp has 16 queries, whose vectors stay in registers. In each turn, a tile of keys and of their values is in
shared memory, and asynchronous copies bring the next one into the other slot. The warp multiplies its queries
by the keys, takes the exponentials of the scores, and multiplies these, rounded, by the values: the sums of
one product are where the operands of the next one have to be, so they stay in registers. So far, the greatest
score of each query is known, the sum of the exponentials, and that of the values, both relative to that
score: they are scaled anew when it grows.

Fragments
---------
In each 16 x 8 sums, a lane has the rows `lane // 4` and `lane // 4 + 8`, h = 0 and 1, and the columns
2 * (lane % 4) and the next one: registers 2 * h and 2 * h + 1. The four lanes of a row are neighbors.

Shared memory
-------------
A slot is pieces of 16 bytes, eight elements of a vector: first those of the keys, then those of the values,
`keys` pieces for each eight elements, side by side as ldmatrix reads them. Vectors and keys that do not exist
are zeros.

Bounds and termination
----------------------
In global memory, the number of a query or key that does not exist is replaced by the last one before it is
read, and results that do not exist are not written. All loops have a known number of turns; all threads reach
all barriers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar

from .._floats import Locals
from .._kernel import barrier, ceil_div, in_a_row, launch, local
from .._types import IntExpr
from .._warp import from_lane_across
from ..conv2d_nhwc import tensor_core
from .problem import Problem, offset

WARP, ROWS, PIECE, EIGHT = 32, 16, 16, 8
MAX_WARPS = 4
ENOUGH = 264  # blocks, two for each multiprocessor of a large GPU
MAX_LENGTH = 128  # of vectors: sums and queries are in registers
SLOTS = 2


def fits(problem: Problem) -> bool:
    """Whether the kernel computes the problem: vectors of whole pieces, short enough for the registers."""
    lengths = problem.depth, problem.width
    is_short = all(length % EIGHT == 0 and length <= MAX_LENGTH for length in lengths)
    return is_short and all(part is None or part.is_aligned for part in problem.parts)


def emit_tiles(problem: Problem, buffers: Sequence[tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are query, key, value, the mask if there is one, and the result."""
    kernel = _Kernel(problem, buffers)
    with launch(kernel.ib, kernel.blocks, kernel.threads) as (block, thread):
        kernel.emit(block, thread)
    return kernel.ib.get()


class _Kernel:
    def __init__(self, problem: Problem, buffers: Sequence[tir.Buffer]) -> None:
        self.ib = tir.ir_builder.create()
        self.problem = problem
        self.flat = [in_a_row(self.ib, buffer)[0] for buffer in buffers]
        self.c_type = tensor_core.C_TYPES[problem.dtype]
        self.keep = Locals(self.ib, "local")
        heads = problem.batch * problem.heads
        warps = MAX_WARPS
        while warps > 1 and heads * ceil_div(problem.queries, warps * ROWS) < ENOUGH:
            warps //= 2
        self.warps, self.threads = warps, warps * WARP
        self.tiles = ceil_div(problem.queries, warps * ROWS)
        self.blocks = heads * self.tiles
        # An instruction takes two pieces of a vector, or of two neighboring vectors.
        self.depth_pieces = ceil_div(problem.depth, 2 * EIGHT) * 2
        self.width_pieces = ceil_div(problem.width, 2 * EIGHT) * 2
        self.keys = 64 if max(problem.depth, problem.width) <= 64 else 32  # of a tile
        self.slot = (self.depth_pieces + self.width_pieces) * self.keys * PIECE

    def emit(self, block: tir.PrimExpr, thread: tir.PrimExpr) -> None:
        ib, problem = self.ib, self.problem
        self.thread, self.lane = thread, tir.truncmod(thread, WARP)
        self.shared = ib.allocate("uint8", (SLOTS * self.slot,), name="shared", scope="shared.dyn")
        of_head, tile = tir.truncdiv(block, self.tiles), tir.truncmod(block, self.tiles)
        self.place = tir.truncdiv(of_head, problem.heads), tir.truncmod(of_head, problem.heads)
        first = (tile * self.warps + tir.truncdiv(thread, WARP)) * ROWS + tir.truncdiv(self.lane, 4)
        self.rows = [local(ib, "query_row", first + h * EIGHT) for h in (0, 1)]
        self.clamped = [local(ib, "clamped", te.min(row, problem.queries - 1)) for row in self.rows]
        self.pair = local(ib, "pair", tir.truncmod(self.lane, 4) * 2)
        self.zero, self.lowest = tir.const(0.0, "float32"), self.keep.exact(-np.inf)
        self.scale = self.keep.exact(problem.scale)
        self.greatest, self.total = (
            [self.keep.variable(name, start) for _ in (0, 1)]
            for name, start in (("greatest", self.lowest), ("total", self.zero))
        )
        self.sums = self._zeros("sums", self.width_pieces * 4)
        self.operands = ib.allocate("uint32", (4,), name="operands", scope="local")
        self._load_queries()
        turns = ceil_div(problem.keys, self.keys)
        self._copy(tir.const(0, "int32"))
        with ib.for_range(0, turns, "turn") as turn:
            self._call("copy_wait<0>")
            barrier(ib)  # the tile is there for all, and all are done with the other slot
            with ib.if_scope(turn + 1 < turns):
                self._copy(turn + 1)
            self._attend(turn)
        self._write()

    # --- loads

    def _load_queries(self) -> None:
        """The operands of this lane: of each two pieces, those of h = 0 and 1, then of the second piece."""
        problem, query = self.problem, self.flat[0]
        self.queries = self.ib.allocate("uint32", (self.depth_pieces * 2,), name="queries", scope="local")
        own = [local(self.ib, "own", problem.at(0, *self.place, row) + self.pair) for row in self.clamped]
        for piece in range(self.depth_pieces):
            for h in (0, 1):
                to = piece * 2 + h
                if piece * EIGHT < problem.depth:
                    self._call("load<4>", _address(self.queries, to), _address(query, own[h] + piece * EIGHT))
                else:
                    self.queries[to] = tir.const(0, "uint32")

    def _copy(self, turn: tir.PrimExpr) -> None:
        """Start to copy the keys of a tile and their values into the slot of its turn."""
        problem = self.problem
        slot = local(self.ib, "to_slot", tir.truncmod(turn, SLOTS) * self.slot)
        for which, pieces, at in (
            (1, self.depth_pieces, 0),
            (2, self.width_pieces, self.depth_pieces * self.keys * PIECE),
        ):
            length, array = problem.lengths[which][1], self.flat[which]
            base = local(self.ib, "base", problem.at(which, *self.place))
            count = pieces * self.keys
            with self.ib.for_range(0, ceil_div(count, self.threads), "round") as number:
                index = local(self.ib, "index", number * self.threads + self.thread)
                with self.ib.if_scope(index < count):  # neighbors read the pieces of a vector
                    in_tile, piece = tir.truncdiv(index, pieces), tir.truncmod(index, pieces)
                    key = local(self.ib, "key", turn * self.keys + in_tile)
                    exists = tir.all(key < problem.keys, piece * EIGHT < length)
                    source = tir.if_then_else(
                        exists, base + key * problem.strides(which)[2] + piece * EIGHT, 0
                    )
                    to = slot + at + (piece * self.keys + in_tile) * PIECE
                    self._call("copy_async<16>", self._shared(to), _address(array, source), exists)
        self._call("copy_commit")

    # --- a tile of keys

    def _attend(self, turn: tir.PrimExpr) -> None:
        slot = local(self.ib, "slot", tir.truncmod(turn, SLOTS) * self.slot)
        scores = self._zeros("scores", self.keys // EIGHT * 4)
        self._multiply_by_keys(scores, slot)
        self._finish_scores(scores, turn)
        for h in (0, 1):
            self._exponentials(scores, h)
        self._multiply_by_values(scores, slot + self.depth_pieces * self.keys * PIECE)

    def _multiply_by_keys(self, scores: BufferVar, slot: tir.PrimExpr) -> None:
        """Matrices of a load: first eight keys and piece, second piece, then both of the next eight keys."""
        matrix, row = tir.truncdiv(self.lane, 8), tir.truncmod(self.lane, 8)
        eight, piece = tir.truncdiv(matrix, 2), tir.truncmod(matrix, 2)
        own = local(self.ib, "own_keys", slot + (piece * self.keys + eight * EIGHT + row) * PIECE)
        for pieces in range(0, self.depth_pieces, 2):
            for eights in range(0, self.keys // EIGHT, 2):
                at = own + (pieces * self.keys + eights * EIGHT) * PIECE
                self._call("load_matrices<4>", _address(self.operands, 0), self._shared(at))
                for i in (0, 1):
                    self._multiply(scores, (eights + i) * 4, self.queries, pieces * 2, i * 2)

    def _finish_scores(self, scores: BufferVar, turn: tir.PrimExpr) -> None:
        """Scale, add the mask, and exclude keys that do not exist."""
        problem, ib = self.problem, self.ib
        mask = self.flat[3] if problem.mask is not None else None
        strides = problem.mask_strides
        own = [offset(strides, *self.place, row) if mask is not None else None for row in self.clamped]
        own = [None if at is None else local(ib, "own_mask", tir.const(0, "int32") + at) for at in own]
        with ib.for_range(0, self.keys // EIGHT, "eight", kind="unroll") as eight:
            for register in range(4):
                at = eight * 4 + register
                key = local(ib, "key", turn * self.keys + eight * EIGHT + self.pair + register % 2)
                score = scores[at] * self.scale
                if mask is not None:
                    of_mask = own[register // 2] + te.min(key, problem.keys - 1) * strides[3]
                    score = score + mask[of_mask].astype("float32")
                if problem.keys % self.keys:
                    score = tir.if_then_else(key < problem.keys, score, self.lowest)
                scores[at] = score

    def _exponentials(self, scores: BufferVar, h: int) -> None:
        """Replace the scores of a row, and scale what was summed before if a score is greater than all."""
        ib, count = self.ib, self.keys // EIGHT
        most = self.keep.variable("most", self.greatest[h][0])
        with ib.for_range(0, count, "eight", kind="unroll") as eight:
            for column in (0, 1):
                most[0] = te.max(most[0], scores[eight * 4 + h * 2 + column])
        most[0] = self._over_row(most[0], te.max)
        # Where all keys so far are excluded, differences to the greatest score would be NaN.
        base = self.keep("base", tir.if_then_else(most[0] == self.lowest, self.zero, most[0]))
        again = self.keep("again", tir.exp(self.greatest[h][0] - base))
        self.greatest[h][0] = most[0]
        self.total[h][0] = self.total[h][0] * again  # of the columns of this lane
        with ib.for_range(0, count, "eight", kind="unroll") as eight:
            for column in (0, 1):
                at = eight * 4 + h * 2 + column
                scores[at] = tir.exp(scores[at] - base)
                self.total[h][0] = self.total[h][0] + scores[at]
        with ib.for_range(0, self.width_pieces, "piece", kind="unroll") as piece:
            for column in (0, 1):
                at = piece * 4 + h * 2 + column
                self.sums[at] = self.sums[at] * again

    def _multiply_by_values(self, weights: BufferVar, slot: tir.PrimExpr) -> None:
        """Matrices of a load: first eight keys and piece, next eight keys, then both of the second piece."""
        matrix, row = tir.truncdiv(self.lane, 8), tir.truncmod(self.lane, 8)
        piece, eight = tir.truncdiv(matrix, 2), tir.truncmod(matrix, 2)
        own = local(self.ib, "own_values", slot + (piece * self.keys + eight * EIGHT + row) * PIECE)
        packed = self.ib.allocate("uint32", (4,), name="packed", scope="local")
        for eights in range(0, self.keys // EIGHT, 2):
            for i in range(4):
                packed[i] = self._pack(weights, (eights + i // 2) * 4 + i % 2 * 2)
            for pieces in range(0, self.width_pieces, 2):
                at = own + (pieces * self.keys + eights * EIGHT) * PIECE
                self._call("load_transposed", _address(self.operands, 0), self._shared(at))
                for i in (0, 1):
                    self._multiply(self.sums, (pieces + i) * 4, packed, 0, i * 2)

    # --- the result

    def _write(self) -> None:
        problem, ib = self.problem, self.ib
        for h in (0, 1):
            total = self._over_row(self.total[h][0], operator.add)
            inverse = self.keep("inverse", tir.const(1.0, "float32") / total)
            with ib.if_scope(self.rows[h] < problem.queries):
                to = problem.at(3, *self.place, self.rows[h]) + self.pair
                to = local(ib, "to", to)
                for piece in range(problem.width // EIGHT):
                    at = piece * 4 + h * 2
                    for column in (0, 1):
                        self.sums[at + column] = self.sums[at + column] * inverse
                    self.operands[0] = self._pack(self.sums, at)
                    target = _address(self.flat[-1], to + piece * EIGHT)
                    self._call("store<4>", target, _address(self.operands, 0))

    # --- helpers

    def _zeros(self, name: str, count: int) -> BufferVar:
        array = self.ib.allocate("float32", (count,), name=name, scope="local")
        with self.ib.for_range(0, count, "i", kind="unroll") as i:
            array[i] = self.zero
        return array

    def _multiply(self, sums: BufferVar, at: int, a: BufferVar, of_a: int, of_b: int) -> None:
        arrays = _address(sums, at), _address(a, of_a), _address(self.operands, of_b)
        self._call(f"multiply<{self.c_type}>", *arrays)

    def _pack(self, array: BufferVar, at: int) -> tir.PrimExpr:
        """Two numbers, rounded to the type of the values."""
        function = tensor_core.name(f"pack<{self.c_type}>")
        return tir.call_extern("uint32", function, array[at], array[at + 1])

    def _over_row(
        self, value: tir.PrimExpr, combine: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]
    ) -> tir.PrimExpr:
        """The values of the four lanes of a row, combined."""
        for distance in (1, 2):
            value = self.keep("combined", combine(value, from_lane_across(value, distance)))
        return value

    def _shared(self, byte: IntExpr) -> tir.PrimExpr:
        return tir.address_of(self.shared[byte])

    def _call(self, function: str, *arguments: IntExpr) -> None:
        self.ib.emit(tir.call_extern("void", tensor_core.name(function), *arguments))


def _address(array: BufferVar, index: IntExpr) -> tir.PrimExpr:
    return tir.address_of(array[index])
