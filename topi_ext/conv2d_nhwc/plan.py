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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .._int8 import INT8
from .._kernel import bytes_of
from .._tvm import tir
from .._types import IntExpr
from .problem import Problem

SHARED_MEMORY = {
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    89: 99,
    90: 227,
    100: 227,
    103: 227,
    120: 99,
}  # KiB a block
MULTIPROCESSORS = {75: 68, 80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}
PIECE = 16  # bytes
SWIZZLED = 1024  # bytes, after which the pattern of wgmma's swizzles begins again
KIB = 1024
FEW_RESULTS = 100_000  # of a multiprocessor: in int8, so few that the last tiles of a block count
TOO_MUCH_WORK = 1.25  # times the least, in a last round that is not full: so much costs more than teams save
DEEP = 512  # channels: of more, weights fill the shared memory
FEW_CHANNELS = 64  # of int8: so few that to read them again, for other filters, costs next to nothing
# Groups are joined up to so many channels and filters. Up to 32 columns, wgmma takes as long as it needs to
# read the pixels from shared memory, so products with zeros cost no time. Not measured yet.
JOINED = 32


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
        return self.problem.kernel[0] * self.problem.kernel[1]

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
        at_once = MULTIPROCESSORS.get(self.arch, 100) // self.column_blocks * self.column_blocks
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
        return all_results // MULTIPROCESSORS.get(self.arch, 100)

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


def plan_for(problem: Problem, arch: int) -> Plan:
    """The first candidate that fits into shared memory, or a finer one if it leaves half of the GPU idle."""
    usual = next(plan for plan in candidates(problem, arch) if plan.fits)  # the last candidate always fits
    multiprocessors = MULTIPROCESSORS.get(arch, 100)
    if 2 * usual.tasks <= multiprocessors:
        for plan in _finer(problem, arch):
            if plan.fits and usual.tasks < plan.tasks <= multiprocessors:
                return plan
    return usual


def _finer(problem: Problem, arch: int) -> list[Plan]:
    """Resident plans of few pixels and filters, the finest first: a block loads and multiplies little."""
    columns = [8, 16, 32, 64]
    plan = Plan(problem, arch, arch == 90, (8, 8), 8, (4, 1), resident=True)
    plans = [
        replace(plan, tile=tile, columns=c, joined=_groups_for(problem, c))
        for tile in ((8, 8), (8, 16))
        for c in columns
    ]
    return sorted(plans, key=lambda plan: (plan.pixels * plan.columns, plan.shared_memory))


def candidates(problem: Problem, arch: int) -> Iterator[Plan]:
    """Plans that are worth considering, from the best to the last resort."""
    if problem.dtype == INT8 and arch == 90 and problem.groups == 1:
        yield from _of_fewer_filters(problem, arch)
        yield from _in_one_round(problem, arch)
    joined = _groups_for(problem, JOINED)
    if joined > 1:
        yield from _resident(problem, arch, _columns(problem.filters_of_group * joined), joined)
    filters = problem.filters_of_group
    columns = _columns(filters)
    preferred = (columns, 128, 64)
    if _writes_in_int8(problem) and problem.channels <= FEW_CHANNELS:
        preferred = (128, columns, 64)
    for width in preferred:
        # Blocks with other filters load the same pixels again, but these are then in the cache.
        if width <= columns and filters <= 4 * width:
            yield from _resident(problem, arch, width)
    widest = 128 if arch == 90 else 256
    widths = [width for width in (256, 128, 64, 32) if width < columns and width <= widest]
    widths = widths if columns > widest else [columns, *widths]
    streaming = [
        _streaming(problem, arch, width, tile) for width in widths for tile in _streaming_tiles(arch)
    ]
    multiprocessors = MULTIPROCESSORS.get(arch, 100)
    busy = [plan for plan in streaming if plan.tasks >= multiprocessors]
    # The largest that keep all multiprocessors busy, else the smallest first.
    for some in busy or streaming[::-1]:
        yield from _chunks(some)
    for some in streaming:
        yield from _chunks(some)


def _in_one_round(problem: Problem, arch: int) -> Iterator[Plan]:
    """Streaming plans in int8 whose tiles run all at once, on most multiprocessors, the largest tiles first.

    Measured on an H200: up to 1.5 times as fast as smaller tiles, of which a block has several, and with
    chunks of many planes, whose rows are long.
    """
    multiprocessors, taps = MULTIPROCESSORS[arch], problem.kernel[0] * problem.kernel[1]
    widths = [width for width in (128, 64) if width <= min(problem.filters, problem.channels * 2)]
    shapes = [(width, tile) for tile in _streaming_tiles(arch) for width in widths]
    if taps == 1:  # without a halo, it is the width that saves loads
        shapes.sort(key=lambda shape: -shape[0])
    per_plane, ahead = PIECE // bytes_of(problem.dtype), 2 if taps == 1 else min(2, taps - 1)
    for width, tile in shapes:
        plan = _streaming(problem, arch, width, tile)
        for planes in (16, 8, 4) if taps > 1 else (8, 4):
            is_long = problem.channels >= 2 * planes * per_plane
            if is_long and plan.tasks <= multiprocessors < 2 * plan.tasks:
                yield replace(plan, planes=planes, ahead=ahead, by_taps=taps == 1)


def _of_fewer_filters(problem: Problem, arch: int) -> Iterator[Plan]:
    """Resident plans in int8 for few results, with half of the usual filters a block: work divides evenly.

    Measured on an H200: up to 1.4 times as fast; where there are many results, up to 1.3 times as slow.
    """
    width = 128 if problem.kernel == (1, 1) else 64
    plan = Plan(problem, arch, True, (8, 8), width, (4, 1), resident=True)
    if plan.results >= FEW_RESULTS or not width < problem.filters <= 8 * width:
        return
    if plan.taps == 1 and (problem.strides != (1, 1) or problem.channels > DEEP):
        return
    if plan.tasks < MULTIPROCESSORS[arch]:
        return
    plans = [replace(plan, teams=teams) for teams in range(3 if width > 64 else 4, 0, -1)]
    plans = [plan for plan in plans if plan.fits]
    least = min((plan.work for plan in plans), default=0)
    yield from (plan for plan in plans if plan.work <= 1.2 * least)


def _groups_for(problem: Problem, extent: int) -> int:
    """How many groups, a divisor of their number, have together at most so many channels and filters."""
    of_group = max(problem.channels_of_group, problem.filters_of_group)
    return max((n for n in range(1, extent // of_group + 1) if problem.groups % n == 0), default=1)


def _resident(problem: Problem, arch: int, columns: int, joined: int = 1) -> Iterator[Plan]:
    """Plans that load all weights once, with several teams if there are enough tiles.

    The teams hide each other's latency. Plans whose last round is nearly empty come last.
    """
    is_async = arch == 90
    warps = (2, 2) if columns % 32 == 0 and not is_async else (4, 1)
    tiles = _tiles(columns, all_in_registers=bool(problem.residual) or not is_async)
    if _writes_in_int8(problem) and is_async and 64 < columns <= 128:
        tiles = [((8, 8), 4)]
    elif is_async and 32 < columns <= 64 and _writes_much_in_half(problem, arch):
        tiles = [((8, 8), 4), *tiles]
    plans = []
    for tile, most in tiles:
        plan = Plan(problem, arch, is_async, tile, columns, warps, resident=True, joined=joined)
        tasks = plan.all_tiles * plan.bundles
        wanted = max(1, min(most, plan.all_tiles, tasks // MULTIPROCESSORS.get(arch, 100)))
        plans += [replace(plan, teams=teams) for teams in range(wanted, min(wanted, 2) - 1, -1)]
    least = min((plan.work for plan in plans if plan.fits), default=0)
    yield from sorted(plans, key=lambda plan: plan.rounds > 1 and plan.work > TOO_MUCH_WORK * least)


def _writes_in_int8(problem: Problem) -> bool:
    """Whether its time goes into the results, which more teams hide: a residual takes few registers here."""
    return problem.dtype == INT8 and problem.kernel == (1, 1) and problem.residual is not None


def _writes_much_in_half(problem: Problem, arch: int) -> bool:
    """Whether more teams hide what writing takes: measured on an H200, 1.05 to 1.13 times as fast."""
    is_plain = problem.residual is None and problem.block == problem.groups == 1
    if problem.dtype not in ("float16", "bfloat16") or not is_plain or problem.strides != (1, 1):
        return False
    return Plan(problem, arch, True, (8, 8), 64, (4, 1), resident=True).results >= FEW_RESULTS


def _streaming_tiles(arch: int) -> tuple[tuple[int, int], ...]:
    return ((16, 16), (8, 16)) if arch == 90 else ((8, 16),)


def _streaming(problem: Problem, arch: int, columns: int, tile: tuple[int, int]) -> Plan:
    is_async = arch == 90
    warps = (8, 1) if is_async or columns % 32 else (4, 2)
    return Plan(problem, arch, is_async, tile, columns, warps, resident=False)


def _chunks(some: Plan) -> Iterator[Plan]:
    for planes in (4, 8, 2) if some.is_async else (8, 4, 2):
        if planes > max(2, some.all_planes):
            continue
        if some.taps > 1:
            yield replace(some, planes=planes, ahead=min(3 if some.is_async else 2, some.taps - 1))
        yield replace(some, planes=planes, ahead=2, by_taps=True)
        yield replace(some, planes=planes, ahead=1, by_taps=True)


def _tiles(columns: int, all_in_registers: bool) -> list[tuple[tuple[int, int], int]]:
    """The tiles of a team to try, each with the maximum number of teams for which there are enough registers.

    A thread gets 64 sums if possible, fewer where there are few filters. `all_in_registers`: the residual or
    the operands of mma are in registers too.
    """
    most = 2 if all_in_registers else 3
    if columns > 128:
        return [((8, 8), 2)]
    if columns > 64:
        return [((8, 8), most)]
    if columns > 32:
        return [((8, 16), 2), ((8, 8), 2)]  # a third team is slower
    if columns > 16:
        return [((8, 16), most), ((8, 8), most)]
    return [((16, 16), most), ((8, 16), most)]


def _columns(filters: int) -> int:
    """Filters of a block, before smaller numbers are tried: a multiple of 8, few enough for the registers."""
    for columns in (8, 16, 32, 48, 64, 96, 128):
        if filters <= columns:
            return columns
    return 256 if filters % 256 == 0 else 128
