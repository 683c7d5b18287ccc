"""How the kernel on tensor cores is divided into blocks, warps and tiles."""

from __future__ import annotations

from typing import NamedTuple

from .._kernel import ceil_div, power_of_2_from
from .._tvm import tir
from .._types import IntExpr
from .problem import PIECE, Problem

WARP, ROWS = 32, 16
PIECE_BYTES = 16
SLOTS = 2
WARPS = 4  # of a block
MANY_KEYS, FEW_KEYS = 64, 32  # of a tile for a warp
SHORT = 64  # the length of vectors up to which they are many
BUSY, MANY = 1500, 2048  # warps, and groups of queries, of all blocks
BANKS = 8  # of shared memory, as wide as a piece


class Plan(NamedTuple):
    """A block has `rows` times `parts` warps: those of a row have the same queries, each a part of a tile."""

    rows: int
    parts: int
    keys: int  # of a tile that a warp takes
    groups: int = 1  # of 16 queries that a warp has

    @property
    def queries(self) -> int:
        """Of a block."""
        return self.rows * self.groups * ROWS

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.rows * self.parts

    @property
    def tile(self) -> int:
        """The keys that are in shared memory at once."""
        return self.keys * self.parts

    def pieces(self, problem: Problem) -> tuple[int, int]:
        """Of a key and of a value; an instruction takes two of a vector, or of two neighboring vectors."""
        depth, width = (ceil_div(length, 2 * PIECE) * 2 for length in (problem.depth, problem.width))
        return depth, width

    def slot(self, problem: Problem) -> int:
        """Bytes of a tile in shared memory."""
        return sum(self.tile * pitch(pieces) for pieces in self.pieces(problem)) * PIECE_BYTES

    def turns(self, problem: Problem) -> int:
        """How many tiles there are."""
        return ceil_div(problem.keys, self.tile)

    def registers(self, problem: Problem) -> int:
        """What a thread found: its sums, and of each of its queries the greatest score and the total."""
        return (self.pieces(problem)[1] * 4 + 4) * self.groups

    def shared_bytes(self, problem: Problem) -> int:
        """Of tiles, and afterwards of what warps of other parts found."""
        tiles = min(SLOTS, self.turns(problem)) * self.slot(problem)
        return max(tiles, (self.parts - 1) * self.rows * WARP * self.registers(problem) * 4)


def pitch(pieces: int) -> int:
    """In shared memory, a vector begins so many pieces behind the one before it."""
    return pieces if power_of_2_from(pieces) == pieces else pieces + 1


def place(pieces: int, vector: IntExpr, piece: IntExpr) -> IntExpr:
    """Where a piece of a vector is in shared memory.

    The pieces of a vector are next to each other, or a copy of them takes a cycle for each. In eight vectors,
    which an instruction reads at once, the same piece is in eight banks: those of a vector change places by
    its number, or vectors are an odd number of pieces apart.
    """
    if pitch(pieces) == pieces:
        piece = piece ^ tir.truncmod(tir.truncdiv(vector, max(1, BANKS // pieces)), min(pieces, BANKS))
    return vector * pitch(pieces) + piece


def choose_plan(problem: Problem, most_bytes: int) -> Plan:
    """The plan for a block that has no more than these bytes of shared memory.

    Where queries are few, warps take parts of the keys, of two tiles or more, until each multiprocessor of a
    large GPU has a dozen. Where they are many, a warp has 32 of them, and loads half as often.
    """
    is_short = max(problem.depth, problem.width) <= SHORT
    keys = MANY_KEYS if is_short else FEW_KEYS
    groups = problem.batch * problem.heads * ceil_div(problem.queries, ROWS)
    parts = WARPS if is_short else WARPS // 2
    while parts > 1 and (groups * parts > BUSY or (parts - 1) * 2 * keys >= problem.keys):
        parts //= 2
    rows = min(WARPS // parts, ceil_div(problem.queries, ROWS))
    has_many = groups >= MANY and problem.queries >= 2 * WARPS * ROWS
    plan = Plan(rows, parts, keys, groups=2 if has_many and is_short and problem.mask is None else 1)
    while plan.shared_bytes(problem) > most_bytes:
        if plan.keys > FEW_KEYS or plan.parts == 1:
            plan = plan._replace(keys=plan.keys // 2)
        else:
            plan = plan._replace(parts=plan.parts // 2)
    return plan
