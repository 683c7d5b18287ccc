"""How a convolution is divided into tiles, for a GPU of a given architecture.

A block computes tiles of `tile` output pixels by `columns` filters. It loads the pixels that a tile sees into
shared memory once, halo included, and all taps of the kernel read them there. Eight channels of a pixel, or
sixteen of int8, are one piece of 16 bytes. A plane has one piece of every pixel. With mma, a plane is
contiguous; with wgmma, the planes of up to 128 bytes of each pixel are, which copies fill twice as fast.
Either way, a tap is only a different address. The reduction goes over "halves" (a tap and a plane: the
channels of a piece), two of them in one instruction.

- "resident": all weights of the block's filters stay in shared memory. The warps form teams, and each team
  goes from tile to tile on its own: while one loads or writes, others multiply (`cuda_resident`).
- "streaming": chunks of planes are loaded one after the other, and the weights tap by tap, some steps ahead.
  If the block has a next tile, its first loads are issued before the result is written (`cuda_streaming`).
- "streaming by taps": the same, but the pixels are loaded again for each tap. This is for halos that are too
  large, and for kernels of one tap.

A grouped convolution is divided into bundles, each of which is a convolution of some channels and filters; a
block belongs to one bundle. A bundle is one group or, where groups have too few channels for the tensor
cores, several joined ones: the weights of a filter are then 0 for the channels of the other groups. Products
with these zeros should take less time than the pixels take to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .._int8 import INT8
from .._kernel import bytes_of
from .._tvm import tir
from .._types import IntExpr
from .problem import Problem

# KiB a block
SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}
MULTIPROCESSORS = {75: 68, 80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}
USUAL_MULTIPROCESSORS = 100  # of a GPU that is not in the table
PIECE = 16  # bytes
SWIZZLED = 1024  # bytes, after which the pattern of wgmma's swizzles begins again
KIB = 1024


@dataclass(frozen=True)
class Plan:
    problem: Problem
    arch: int
    is_async: bool  # wgmma, not mma
    tile: tuple[int, int]  # height and width in output pixels, multiples of 8
    columns: int  # filters of a block, a multiple of 8
    warps: tuple[int, int]  # of a team: along the pixels, along the filters
    resident: bool
    teams: int = 1  # of a block, each with a tile of its own
    by_taps: bool = False
    planes: int = 0  # of a chunk; not used if resident: a tile is one chunk then
    ahead: int = 1  # how many steps ahead loads are issued
    joined: int = 1  # groups of the problem in a bundle; more than one only if resident

    # --- bundles of groups

    @property
    def bundles(self) -> int:
        return self.problem.groups // self.joined

    @property
    def channels(self) -> int:
        """Channels of a bundle: those that a block reads."""
        return self.problem.channels // self.bundles

    @property
    def filters(self) -> int:
        """Filters of a bundle."""
        return self.problem.filters // self.bundles

    # --- the tile of pixels

    @property
    def team_threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def threads(self) -> int:
        return self.teams * self.team_threads

    @property
    def pixels(self) -> int:
        return self.tile[0] * self.tile[1]

    @property
    def steps_between(self) -> tuple[int, ...]:
        """Pixels in a slot between what neighboring output pixels see, down and to the right."""
        return (1, 1) if self.by_taps else self.problem.strides

    @property
    def seen(self) -> tuple[int, ...]:
        """Height and width of the pixels that are loaded for a tile, or for a tile and a tap."""
        if self.by_taps:
            return self.tile
        zipped = zip(self.tile, self.problem.strides, self.problem.reach)
        return tuple((extent - 1) * stride + reach for extent, stride, reach in zipped)

    @property
    def columns_of_a_phase(self) -> int:
        """Columns with the same remainder by the stride, a phase, which are contiguous in shared memory."""
        return -(-self.seen[1] // self.steps_between[1])

    @property
    def pitch(self) -> int:
        """Pieces from one row of pixels to the next."""
        return self.columns_of_a_phase * self.steps_between[1]

    @cached_property
    def row_pieces(self) -> int:
        """Pieces of a pixel, or of a filter, that are together in shared memory: its row.

        wgmma swizzles rows of 128, 64 or 32 bytes: a copy fills 128 bytes at a time if they are together.
        """
        if not self.is_async or self.pairs_taps:
            return 1
        return next(pieces for pieces in (8, 4, 2) if self.chunk_planes % pieces == 0)

    @property
    def row_bytes(self) -> int:
        return self.row_pieces * PIECE

    @property
    def plane(self) -> int:
        """Pieces of a plane, of all pixels and more.

        Alone, their number is odd, so that the planes of a pixel are in different banks. In rows, those of
        all pixels begin where the pattern of the swizzle does.
        """
        return self._padded(self.seen[0] * self.pitch)

    def _padded(self, count: int) -> int:
        if self.row_pieces == 1:
            return count | 1
        rows = SWIZZLED // self.row_bytes
        return -(-count // rows) * rows

    def piece(self, plane: IntExpr, row: IntExpr, rows: int) -> IntExpr:
        """The number of a piece in a slot, before the swizzle: of so many rows, pixels or filters."""
        block, of_row = tir.truncdiv(plane, self.row_pieces), tir.truncmod(plane, self.row_pieces)
        return (block * rows + row) * self.row_pieces + of_row

    def place(self, y: int, x: int) -> int:
        """The index in its plane of the piece of a pixel; `cuda_pixels` explains the layout."""
        step = self.steps_between[1]
        return y * self.pitch + x % step * self.columns_of_a_phase + x // step

    # --- the reduction

    @cached_property
    def per_piece(self) -> int:
        """Channels of a piece."""
        return PIECE // bytes_of(self.problem.dtype)

    @property
    def sum_type(self) -> str:
        return "int32" if self.problem.dtype == INT8 else "float32"

    @property
    def all_planes(self) -> int:
        """The number of planes of all channels: even, since instructions take two halves.

        Where taps are paired instead of planes, there is one plane, and one of zeros if a tap is left over.
        """
        data = -(-self.channels // self.per_piece)
        if self.pairs_taps:
            return 1 + self.taps % 2
        return -(-data // 2) * 2

    @property
    def pairs_taps(self) -> bool:
        """Whether an instruction takes two taps of one plane, rather than two planes of a tap."""
        return self.resident and self.channels <= self.per_piece

    @property
    def taps(self) -> int:
        return self.problem.taps

    @property
    def chunks(self) -> int:
        """Chunks of the reduction of a tile."""
        planes = 1 if self.resident else -(-self.all_planes // self.planes)
        return planes * (self.taps if self.by_taps else 1)

    @property
    def chunk_planes(self) -> int:
        return self.all_planes if self.resident else self.planes

    @property
    def steps(self) -> int:
        """Steps of a chunk."""
        return 1 if self.resident or self.by_taps else self.taps

    @property
    def tap_places(self) -> list[tuple[int, int]]:
        """The index in a plane at which each tap begins, with the number of the tap, in ascending order."""
        if self.by_taps:
            return [(0, 0)]
        (dilation_y, dilation_x), (rows, columns) = self.problem.dilation, self.problem.kernel
        return sorted(
            (self.place(r * dilation_y, s * dilation_x), r * columns + s)
            for r in range(rows)
            for s in range(columns)
        )

    @property
    def halves(self) -> int:
        """Halves of the weights in one slot of shared memory."""
        if self.pairs_taps:
            return self.taps + self.taps % 2
        return self.chunk_planes * (self.taps if self.resident else 1)

    # --- shared memory

    @property
    def half(self) -> int:
        """Pieces of the weights of a half, of all filters and more, as `plane` is of the pixels."""
        return self._padded(self.columns)

    @property
    def data_slots(self) -> int:
        if self.resident:
            return self.teams
        return 2 if self.steps > 1 else self.ahead + 2

    @property
    def weight_slots(self) -> int:
        return 1 if self.resident else self.ahead + 2

    @cached_property
    def shared_memory(self) -> int:
        data = self.data_slots * self.chunk_planes * self.plane
        weights = self.weight_slots * self.halves * self.half
        problem = self.problem
        tables = bool(problem.bias) + bool(problem.slope) + (problem.dtype == INT8)
        return (data + weights) * PIECE + 4 * self.columns * tables

    @property
    def fits(self) -> bool:
        return self.shared_memory <= SHARED_MEMORY[self.arch] * KIB

    # --- the grid

    @property
    def tiles(self) -> tuple[int, int]:
        height, width = self.problem.out_size
        return -(-height // self.tile[0]), -(-width // self.tile[1])

    @property
    def all_tiles(self) -> int:
        return self.problem.batch * self.tiles[0] * self.tiles[1]

    @property
    def blocks_of_bundle(self) -> int:
        """Blocks with different filters of the same bundle."""
        return -(-self.filters // self.columns)

    @property
    def column_blocks(self) -> int:
        return self.bundles * self.blocks_of_bundle

    @property
    def tasks(self) -> int:
        """Tiles, for each block of filters."""
        return self.all_tiles * self.column_blocks

    @property
    def blocks(self) -> int:
        """Blocks of the grid; those with neighboring numbers have the same pixels and different filters."""
        every = -(-self.all_tiles // self.teams) * self.column_blocks
        if not self.resident and 2 * self.shared_memory <= SHARED_MEMORY[self.arch] * KIB:
            return every  # blocks on the same multiprocessor hide each other's latency
        at_once = multiprocessors(self.arch) // self.column_blocks * self.column_blocks
        return min(every, max(at_once, self.column_blocks))

    @property
    def workers(self) -> int:
        """Teams with the same filters: each takes every `workers`-th tile, from its number on."""
        return self.blocks // self.column_blocks * self.teams

    @property
    def rounds(self) -> int:
        """Tiles of the team that has the most."""
        return -(-self.all_tiles // self.workers)

    @property
    def work(self) -> int:
        """Pixels of a block, of which fewer exist if its last round is not full."""
        return self.rounds * self.teams * self.pixels

    @property
    def results(self) -> int:
        """Of a multiprocessor, where all have the same number."""
        height, width = self.problem.out_size
        all_results = self.problem.batch * height * width * self.problem.filters
        return all_results // multiprocessors(self.arch)

    # --- the share of a warp

    @property
    def warp_columns(self) -> int:
        return self.columns // self.warps[1]

    @property
    def warp_rows(self) -> int:
        """Instructions of a warp along the pixels: of 64 pixels for four warps with wgmma, else of 16."""
        return self.pixels // 64 * 4 // self.warps[0] if self.is_async else self.pixels // 16 // self.warps[0]

    @property
    def group(self) -> int:
        """Filters that four neighboring threads have together; each has a run of a quarter of them."""
        return next(size for size in (32, 16, 8) if self.warp_columns % size == 0)

    @property
    def groups(self) -> int:
        return self.warp_columns // self.group

    @property
    def run(self) -> int:
        return self.group // 4


def known_arch(arch: int) -> int | None:
    """The newest architecture in the tables that is not newer than this one, or None."""
    older = [known for known in SHARED_MEMORY if known <= arch]
    return max(older) if older else None


def multiprocessors(arch: int) -> int:
    return MULTIPROCESSORS.get(arch, USUAL_MULTIPROCESSORS)
