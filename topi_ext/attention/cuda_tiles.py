"""Attention on tensor cores: a block computes a tile of queries, and goes through the keys tile by tile.

A warp has 16 or 32 queries, whose vectors stay in registers. In each turn, a tile of keys and of their values
is in shared memory, and asynchronous copies bring the next one into the other slot. The warp multiplies its
queries by the keys, takes the exponentials of the scores, and multiplies these, rounded, by the values: the
sums of one product are where the operands of the next one have to be, so they stay in registers. So far, the
greatest score of each query is known, the sum of the exponentials, and that of the values, both relative to
that score: they are scaled anew when it grows. Exponentials are powers of two; without a mask, the factor for
that is part of the scale.

Where queries are few, several warps have the same ones, and each takes a part of every tile; the first of
them adds up what they found (`choose_plan`).

Fragments
---------
In each 16 x 8 sums, a lane has the rows `lane // 4` and `lane // 4 + 8`, h = 0 and 1, and the columns
2 * (lane % 4) and the next one: registers 2 * h and 2 * h + 1. The four lanes of a row are neighbors. A warp
with two groups of 16 queries multiplies both by what it loads once: h = 2 and 3 are in the second one.

Shared memory
-------------
A slot is pieces of 16 bytes, eight elements of a vector: first those of the keys, then those of the values
(`plan.place`). What does not exist is zeros: keys, and the rest of the last piece. Of vectors that do not
begin at multiples of eight elements, a copy is 8, 4 or 2 bytes.

Bounds and termination
----------------------
In global memory, the number of a query or key that does not exist is replaced by the last one before it is
read, and results that do not exist are not written. All loops have a known number of turns; all threads reach
all barriers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar

from .._floats import Locals
from .._kernel import barrier, ceil_div, in_a_row, launch, local
from .._types import IntExpr
from .._warp import from_lane_across
from ..conv2d_nhwc import tensor_core
from .plan import PIECE_BYTES, ROWS, SLOTS, WARP, Plan, pitch, place
from .problem import Problem, offset

EIGHT, HALF_BYTES = 8, 2
MAX_LENGTH = 128  # of vectors: sums and queries are in registers
LOG2_E = math.log2(math.e)


def fits(problem: Problem) -> bool:
    """Whether the kernel computes the problem: vectors are short enough for the registers."""
    return max(problem.depth, problem.width) <= MAX_LENGTH


def emit_tiles(problem: Problem, plan: Plan, buffers: Sequence[tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are query, key, value, the mask if there is one, and the result."""
    kernel = _Kernel(problem, plan, buffers)
    with launch(kernel.ib, kernel.blocks, kernel.threads) as (block, thread):
        kernel.emit(block, thread)
    return kernel.ib.get()


class _Kernel:
    def __init__(self, problem: Problem, plan: Plan, buffers: Sequence[tir.Buffer]) -> None:
        self.ib = tir.ir_builder.create()
        self.problem, self.plan = problem, plan
        self.flat = [in_a_row(self.ib, buffer)[0] for buffer in buffers]
        self.c_type = tensor_core.C_TYPES[problem.dtype]
        self.keep = Locals(self.ib, "local")
        self.threads = plan.warps * WARP
        self.tiles = ceil_div(problem.queries, plan.queries)
        self.halves = range(2 * plan.groups)
        self.blocks = problem.batch * problem.heads * self.tiles
        self.pieces = plan.pieces(problem)
        self.values = plan.tile * pitch(self.pieces[0]) * PIECE_BYTES  # where they begin in a slot
        self.turns = plan.turns(problem)
        # Without a mask, and if the greatest product is the greatest score, one instruction scales a product
        # and subtracts. A scale that rounds to 0 or inf would make NaN of keys that do not exist.
        limits, scale = np.finfo("float32"), problem.scale * LOG2_E
        self.scales_late = problem.mask is None and limits.tiny <= scale <= limits.max

    def emit(self, block: tir.PrimExpr, thread: tir.PrimExpr) -> None:
        ib, problem, plan = self.ib, self.problem, self.plan
        self.thread, self.lane = thread, tir.truncmod(thread, WARP)
        warp = local(ib, "warp", tir.truncdiv(thread, WARP))
        self.row = local(ib, "row", tir.truncmod(warp, plan.rows))
        self.part = local(ib, "part", tir.truncdiv(warp, plan.rows))
        bytes_ = plan.shared_bytes(problem)
        self.shared = ib.allocate("uint8", (bytes_,), name="shared", scope="shared.dyn")
        of_head, tile = tir.truncdiv(block, self.tiles), tir.truncmod(block, self.tiles)
        self.place = tir.truncdiv(of_head, problem.heads), tir.truncmod(of_head, problem.heads)
        first = (tile * plan.rows + self.row) * (plan.groups * ROWS) + tir.truncdiv(self.lane, 4)
        self.rows = [local(ib, "query_row", first + h * EIGHT) for h in self.halves]
        self.clamped = [local(ib, "clamped", te.min(row, problem.queries - 1)) for row in self.rows]
        self.pair = local(ib, "pair", tir.truncmod(self.lane, 4) * 2)
        self.zero, self.lowest = tir.const(0.0, "float32"), self.keep.exact(-np.inf)
        self.scale = self.keep.exact(problem.scale)
        self.to_base_2 = self.keep.exact(problem.scale * LOG2_E if self.scales_late else LOG2_E)
        self.greatest, self.total = (
            [self.keep.variable(name, start) for _ in self.halves]
            for name, start in (("greatest", self.lowest), ("total", self.zero))
        )
        self.sums = self._zeros("sums", plan.groups * self.pieces[1] * 4)
        self.operands = ib.allocate("uint32", (4,), name="operands", scope="local")
        self._find_copies()
        self._copy(tir.const(0, "int32"))
        self._load_queries()
        with ib.for_range(0, self.turns, "turn") as turn:
            self._call("copy_wait<0>")
            barrier(ib)  # the tile is there for all, and all are done with the other slot
            with ib.if_scope(turn + 1 < self.turns):
                self._copy(turn + 1)
            first_key = local(ib, "first_key", turn * plan.tile + self.part * plan.keys)
            with ib.if_scope(first_key < problem.keys):  # the same for all lanes of a warp
                self._attend(turn, first_key)
        if plan.parts > 1:
            self._add_parts()
        with ib.if_scope(self.part == 0):
            self._write()

    # --- loads

    def _load_queries(self) -> None:
        """The operands of this lane: of a group, and each two pieces, those of both h, then of the second."""
        problem, pieces = self.problem, self.pieces[0]
        count = self.plan.groups * pieces * 2
        self.queries = self.ib.allocate("uint32", (count,), name="queries", scope="local")
        own = [local(self.ib, "own", problem.at(0, *self.place, row) + self.pair) for row in self.clamped]
        for h in self.halves:
            for piece in range(pieces):
                to = h // 2 * pieces * 2 + piece * 2 + h % 2
                self.queries[to] = tir.const(0, "uint32")
                with self._where_pair(piece, problem.depth):
                    self._load_pair(to, own[h] + piece * EIGHT, has_second=self._has(piece, 1, problem.depth))

    def _load_pair(self, to: int, at: tir.PrimExpr, has_second: tir.PrimExpr) -> None:
        query = self.flat[0]
        if self.problem.unit(0) % 2 == 0:
            self._call("load<4>", _address(self.queries, to), _address(query, at))
            return
        second = tir.if_then_else(has_second, query[at + 1].astype("float32"), self.zero)
        self.queries[to] = self._packed(query[at].astype("float32"), second)

    def _find_copies(self) -> None:
        """What this thread copies of a tile: of keys and values, which ones, from where, and to where."""
        ib, problem = self.ib, self.problem
        self.copies: list[tuple[int, int, list[tuple[tir.PrimExpr, ...]]]] = []
        for which, pieces, begin in zip((1, 2), self.pieces, (0, self.values)):
            base, stride = local(ib, "base", problem.at(which, *self.place)), problem.strides(which)[2]
            unit = problem.unit(which)
            units = pieces * EIGHT // unit
            step = self.threads // units if self.threads % units == 0 else 0  # from key to key
            copies: list[tuple[tir.PrimExpr, ...]] = []
            for number in range(ceil_div(units * self.plan.tile, self.threads)):
                keys = number * step
                if not keys:
                    index = number * self.threads + self.thread  # neighbors read the units of a vector
                    key = local(ib, "of_tile", tir.truncdiv(index, units))
                    element = local(ib, "element", tir.truncmod(index, units) * unit)
                    source = local(ib, "source", base + key * stride + element)
                piece, of_piece = tir.truncdiv(element, EIGHT), tir.truncmod(element, EIGHT)
                to = place(pieces, key + keys, piece) * PIECE_BYTES + of_piece * HALF_BYTES
                if not keys or step % EIGHT:
                    to = at = local(ib, "to", begin + to)
                else:
                    to = at + keys * pitch(pieces) * PIECE_BYTES
                copies.append((key + keys, element, source + keys * stride, to))
            self.copies.append((which, units, copies))

    def _copy(self, turn: tir.PrimExpr) -> None:
        """Start to copy the keys of a tile and their values into the slot of its turn."""
        problem, plan, ib = self.problem, self.plan, self.ib
        slot = local(ib, "to_slot", tir.truncmod(turn, SLOTS) * plan.slot(problem))
        first = local(ib, "first", turn * plan.tile)
        for which, units, copies in self.copies:
            stride, length = problem.strides(which)[2], problem.lengths[which][1]
            start = local(ib, "start", first * stride)
            for number, (key, element, source, to) in enumerate(copies):
                exists = tir.const(True) if problem.keys % plan.tile == 0 else first + key < problem.keys
                if length % (2 * EIGHT):
                    exists = tir.all(exists, element < length)
                source = tir.if_then_else(exists, start + source, 0)
                arguments = self._shared(slot + to), _address(self.flat[which], source), exists
                is_whole = (number + 1) * self.threads <= units * plan.tile
                with nullcontext() if is_whole else ib.if_scope(key < plan.tile):
                    self._call(f"copy_async<{problem.unit(which) * HALF_BYTES}>", *arguments)
        self._call("copy_commit")

    # --- a tile of keys

    def _attend(self, turn: tir.PrimExpr, first_key: tir.PrimExpr) -> None:
        plan = self.plan
        slot = local(self.ib, "slot", tir.truncmod(turn, SLOTS) * plan.slot(self.problem))
        keys, values = (
            slot + self.part * (plan.keys * pitch(pieces) * PIECE_BYTES) for pieces in self.pieces
        )
        mask = self._load_mask(first_key)
        scores = self._zeros("scores", plan.groups * plan.keys // EIGHT * 4)
        self._multiply_by_keys(scores, keys)
        self._finish_scores(scores, mask, first_key)
        for h in self.halves:
            self._exponentials(scores, h)
        self._multiply_by_values(scores, self.values + values)

    def _load_mask(self, first_key: tir.PrimExpr) -> Callable[[IntExpr, int, int], tir.PrimExpr] | None:
        """Start to read the mask: its element by eight keys, h and column, once it is needed."""
        problem, ib, strides = self.problem, self.ib, self.problem.mask_strides
        if problem.mask is None:
            return None
        mask, eights = self.flat[3], self.plan.keys // EIGHT
        own = [offset(strides, *self.place, row) for row in self.clamped]
        own = [local(ib, "own_mask", tir.const(0, "int32") + at) for at in own]

        def at(h: int, eight: IntExpr, column: int, last: int) -> tir.PrimExpr:
            key = first_key + eight * EIGHT + self.pair + column
            return own[h] + te.min(key, last) * strides[3]

        if not problem.has_pairs_in_mask:
            last = problem.keys - 1
            return lambda eight, h, column: mask[at(h, eight, column, last)].astype("float32")
        words = ib.allocate("uint32", (len(self.halves) * eights,), name="mask_words", scope="local")
        for h in self.halves:
            with ib.for_range(0, eights, "eight", kind="unroll") as eight:
                pair = _address(mask, at(h, eight, 0, problem.keys - 2))
                self._call("load<4>", _address(words, h * eights + eight), pair)
        unpack = tensor_core.name(f"unpack<{tensor_core.C_TYPES[str(problem.mask_dtype)]}>")
        return lambda eight, h, column: tir.call_extern("float32", unpack, words[h * eights + eight], column)

    def _multiply_by_keys(self, scores: BufferVar, tile: tir.PrimExpr) -> None:
        """Matrices of a load: first eight keys and piece, second piece, then both of the next eight keys."""
        matrix, row = tir.truncdiv(self.lane, 8), tir.truncmod(self.lane, 8)
        eight, piece = tir.truncdiv(matrix, 2), tir.truncmod(matrix, 2)
        all_pieces, all_eights = self.pieces[0], self.plan.keys // EIGHT
        for pieces in range(0, all_pieces, 2):
            own = place(all_pieces, eight * EIGHT + row, pieces + piece)
            own = local(self.ib, "own_keys", tile + own * PIECE_BYTES)
            for eights in range(0, all_eights, 2):
                at = own + eights * EIGHT * pitch(all_pieces) * PIECE_BYTES
                self._call("load_matrices<4>", _address(self.operands, 0), self._shared(at))
                for group in range(self.plan.groups):
                    of_group = (group * all_pieces + pieces) * 2
                    for i in (0, 1):
                        to = (group * all_eights + eights + i) * 4
                        self._multiply(scores, to, self.queries, of_group, i * 2)

    def _finish_scores(
        self,
        scores: BufferVar,
        mask: Callable[[IntExpr, int, int], tir.PrimExpr] | None,
        first_key: tir.PrimExpr,
    ) -> None:
        """Scale, add the mask, and exclude keys that do not exist."""
        problem, plan, ib = self.problem, self.plan, self.ib
        if not self.scales_late:
            for at, eight, h, column in self._each_score():
                score = scores[at] * self.scale
                scores[at] = score + mask(eight, h, column) if mask else score
        if problem.keys % plan.keys:
            with ib.if_scope(first_key + plan.keys > problem.keys):
                for at, eight, _h, column in self._each_score():
                    key = first_key + eight * EIGHT + self.pair + column
                    scores[at] = tir.if_then_else(key < problem.keys, scores[at], self.lowest)

    def _each_score(self) -> Iterator[tuple[IntExpr, IntExpr, int, int]]:
        """Its register, and its eight keys, h and column."""
        for h in self.halves:
            with self.ib.for_range(0, self.plan.keys // EIGHT, "eight", kind="unroll") as eight:
                for column in (0, 1):
                    yield self._register(h, eight, column, self.plan.keys // EIGHT), eight, h, column

    def _exponentials(self, scores: BufferVar, h: int) -> None:
        """Replace the scores of a row, and scale what was summed before if a score is greater than all."""
        ib, count = self.ib, self.plan.keys // EIGHT
        most = self.keep.variable("most", self.greatest[h][0])
        with ib.for_range(0, count, "eight", kind="unroll") as eight:
            for column in (0, 1):
                most[0] = te.max(most[0], scores[self._register(h, eight, column, count)])
        most[0] = self._over_row(most[0], te.max)
        base = self._base(most[0])
        again = self.keep("again", self._exponential(self.greatest[h][0], base))
        self.greatest[h][0] = most[0]
        self.total[h][0] = self.total[h][0] * again  # of the columns of this lane
        with ib.for_range(0, count, "eight", kind="unroll") as eight:
            for column in (0, 1):
                at = self._register(h, eight, column, count)
                scores[at] = self._exponential(scores[at], base)
                self.total[h][0] = self.total[h][0] + scores[at]
        self._scale_sums(h, again)

    def _base(self, most: tir.PrimExpr) -> tir.PrimExpr:
        """What exponentials are relative to: where all keys so far are excluded, differences would be NaN."""
        base = most * self.to_base_2 if self.scales_late else most
        return self.keep("base", tir.if_then_else(most == self.lowest, self.zero, base))

    def _exponential(self, score: tir.PrimExpr, base: tir.PrimExpr) -> tir.PrimExpr:
        """Of a score that is relative to a base.

        What is not scaled late may be the lowest finite number, as masks have it: its differences are finite
        or -inf, but a factor of its own would make -inf of it, and NaN where all keys have it.
        """
        if self.scales_late:
            return self._power(score * self.to_base_2 - base)
        return self._power((score - base) * self.to_base_2)

    def _scale_sums(self, h: int, by: tir.PrimExpr) -> None:
        for at in self._each_sum(h):
            self.sums[at] = self.sums[at] * by

    def _each_sum(self, h: int) -> Iterator[IntExpr]:
        """Its register."""
        with self.ib.for_range(0, self.pieces[1], "piece", kind="unroll") as piece:
            for column in (0, 1):
                yield self._register(h, piece, column, self.pieces[1])

    @staticmethod
    def _register(h: int, eight: IntExpr, column: int, eights: int) -> IntExpr:
        return (h // 2 * eights + eight) * 4 + h % 2 * 2 + column

    def _multiply_by_values(self, weights: BufferVar, tile: tir.PrimExpr) -> None:
        """Matrices of a load: first eight keys and piece, next eight keys, then both of the second piece."""
        matrix, row = tir.truncdiv(self.lane, 8), tir.truncmod(self.lane, 8)
        piece, eight = tir.truncdiv(matrix, 2), tir.truncmod(matrix, 2)
        groups, all_pieces, all_eights = range(self.plan.groups), self.pieces[1], self.plan.keys // EIGHT
        places = (
            place(all_pieces, eight * EIGHT + row, pieces + piece) for pieces in range(0, all_pieces, 2)
        )
        own = [local(self.ib, "own_values", tile + each * PIECE_BYTES) for each in places]
        packed = self.ib.allocate("uint32", (4 * len(groups),), name="packed", scope="local")
        for eights in range(0, all_eights, 2):
            for group in groups:
                for i in range(4):
                    at = (group * all_eights + eights + i // 2) * 4 + i % 2 * 2
                    packed[group * 4 + i] = self._packed(weights[at], weights[at + 1])
            for pieces in range(0, all_pieces, 2):
                at = own[pieces // 2] + eights * EIGHT * pitch(all_pieces) * PIECE_BYTES
                self._call("load_transposed", _address(self.operands, 0), self._shared(at))
                for group in groups:
                    for i in (0, 1):
                        to = (group * all_pieces + pieces + i) * 4
                        self._multiply(self.sums, to, packed, group * 4, i * 2)

    # --- the result

    def _add_parts(self) -> None:
        """Add what the warps of other parts found to that of the first one."""
        ib, plan = self.ib, self.plan
        registers, found = plan.registers(self.problem), [*self.greatest, *self.total]
        of_found = registers - len(found)

        def at(part: IntExpr, register: IntExpr) -> tir.PrimExpr:
            of_warp = (part * plan.rows + self.row) * registers + register
            return self._shared((of_warp * WARP + self.lane) * 4)

        barrier(ib)  # all are done with the tiles
        with ib.if_scope(self.part > 0):
            with ib.for_range(0, of_found, "register", kind="unroll") as register:
                self._call("put", at(self.part - 1, register), self.sums[register])
            for number, variable in enumerate(found):
                self._call("put", at(self.part - 1, of_found + number), variable[0])
        barrier(ib)
        with ib.if_scope(self.part == 0), ib.for_range(0, plan.parts - 1, "other") as other:
            others = ib.allocate("float32", (registers,), name="others", scope="local")
            with ib.for_range(0, registers, "register", kind="unroll") as register:
                self._call("get<1>", _address(others, register), at(other, register))
            for h in self.halves:
                greatest, total = others[of_found + h], others[of_found + len(self.halves) + h]
                most = self.keep("most", te.max(self.greatest[h][0], greatest))
                base = self._base(most)
                again = self.keep("again", self._exponential(self.greatest[h][0], base))
                of_others = self.keep("of_others", self._exponential(greatest, base))
                self.greatest[h][0] = most
                self.total[h][0] = self.total[h][0] * again + total * of_others
                for place in self._each_sum(h):
                    self.sums[place] = self.sums[place] * again + others[place] * of_others

    def _write(self) -> None:
        problem, ib = self.problem, self.ib
        for h in self.halves:
            total = self._over_row(self.total[h][0], operator.add)
            inverse = self.keep("inverse", tir.const(1.0, "float32") / total)
            with ib.if_scope(self.rows[h] < problem.queries):
                to = local(ib, "to", problem.at(3, *self.place, self.rows[h]) + self.pair)
                self._scale_sums(h, inverse)
                for piece in range(ceil_div(problem.width, EIGHT)):
                    at = self._register(h, piece, 0, self.pieces[1])
                    self._store_pair(piece, to + piece * EIGHT, at)

    def _store_pair(self, piece: int, to: tir.PrimExpr, at: IntExpr) -> None:
        problem, result = self.problem, self.flat[-1]
        if problem.unit(3) % 2 == 0:
            self.operands[0] = self._packed(self.sums[at], self.sums[at + 1])
            with self._where_pair(piece, problem.width):
                self._call("store<4>", _address(result, to), _address(self.operands, 0))
            return
        for column in (0, 1):
            with self.ib.if_scope(self._has(piece, column, problem.width)):
                result[to + column] = self.sums[at + column].astype(problem.dtype)

    # --- helpers

    def _has(self, piece: int, column: int, length: int) -> tir.PrimExpr:
        return piece * EIGHT + self.pair + column < length

    def _where_pair(self, piece: int, length: int) -> AbstractContextManager[Any]:
        """Where a piece of a vector of this length has the two elements of this lane."""
        if (piece + 1) * EIGHT <= length:
            return nullcontext()
        return self.ib.if_scope(self._has(piece, 0, length))

    def _zeros(self, name: str, count: int) -> BufferVar:
        array = self.ib.allocate("float32", (count,), name=name, scope="local")
        with self.ib.for_range(0, count, "i", kind="unroll") as i:
            array[i] = self.zero
        return array

    def _power(self, exponent: tir.PrimExpr) -> tir.PrimExpr:
        return tir.call_extern("float32", tensor_core.name("power_of_2"), exponent)

    def _multiply(self, sums: BufferVar, at: int, a: BufferVar, of_a: int, of_b: int) -> None:
        arrays = _address(sums, at), _address(a, of_a), _address(self.operands, of_b)
        self._call(f"multiply<{self.c_type}>", *arrays)

    def _packed(self, first: tir.PrimExpr, second: tir.PrimExpr) -> tir.PrimExpr:
        """Two numbers, rounded to the type of the values."""
        return tir.call_extern("uint32", tensor_core.name(f"pack<{self.c_type}>"), first, second)

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
