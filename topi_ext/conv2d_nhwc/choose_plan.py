"""Which of the possible plans a convolution gets: by what was measured, the first one that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .._int8 import INT8
from .._kernel import bytes_of
from .plan import PIECE, Plan, multiprocessors
from .problem import Problem

FEW_RESULTS = 100_000  # of a multiprocessor: in int8, so few that the last tiles of a block count
TOO_MUCH_WORK = 1.25  # times the least, in a last round that is not full: so much costs more than teams save
DEEP = 512  # channels: of more, weights fill the shared memory
FEW_CHANNELS = 64  # of int8: so few that to read them again, for other filters, costs next to nothing
NARROW = 96  # filters, of all of which a block has the weights
# Groups are joined up to so many channels and filters. Up to 32 columns, wgmma takes as long as it needs to
# read the pixels from shared memory, so products with zeros cost no time. Not measured yet.
JOINED = 32


def plan_for(problem: Problem, arch: int) -> Plan:
    """The first candidate that fits into shared memory, or a finer one if it leaves half of the GPU idle."""
    usual = next(plan for plan in candidates(problem, arch) if plan.fits)  # the last candidate always fits
    at_once = multiprocessors(arch)
    if 2 * usual.tasks <= at_once:
        for plan in _finer(problem, arch):
            if plan.fits and usual.tasks < plan.tasks <= at_once:
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
    if arch == 90 and problem.groups == 1:
        yield from _of_short_copies(problem, arch)
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
    at_once = multiprocessors(arch)
    busy = [plan for plan in streaming if plan.tasks >= at_once]
    # The largest that keep all multiprocessors busy, else the smallest first.
    for some in busy or streaming[::-1]:
        yield from _chunks(some)
    for some in streaming:
        yield from _chunks(some)


def _of_short_copies(problem: Problem, arch: int) -> Iterator[Plan]:
    """Resident plans of many teams where a pixel's channels are not whole pieces, and many filters read it.

    Each copy is a part of a piece then, so a block has as many of them as threads can hide. Measured on an
    H200, for 60, 180 and 210 channels: up to twice as fast.
    """
    per_piece = PIECE // bytes_of(problem.dtype)
    is_short = problem.channels > 2 * per_piece and problem.channels % per_piece != 0
    if problem.dtype == INT8 or not is_short or problem.filters <= NARROW:
        return
    widths: tuple[int, ...] = (64, 32)  # of several taps, the more that fits
    if problem.kernel == (1, 1):
        # The wider one, unless more of its columns have no filter, or a residual needs its registers.
        wasted = {width: -problem.filters % width for width in (128, 64)}
        widths = (128,) if wasted[128] == wasted[64] and not problem.residual else (64,)
    for columns in widths:
        for teams in (4, 3):
            plan = Plan(problem, arch, True, (8, 8), columns, (4, 1), resident=True, teams=teams)
            if plan.fits and plan.all_tiles >= teams:
                yield plan


def _in_one_round(problem: Problem, arch: int) -> Iterator[Plan]:
    """Streaming plans in int8 whose tiles run all at once, on most multiprocessors, the largest tiles first.

    Measured on an H200: up to 1.5 times as fast as smaller tiles, of which a block has several, and with
    chunks of many planes, whose rows are long.
    """
    at_once, taps = multiprocessors(arch), problem.taps
    widths = [width for width in (128, 64) if width <= min(problem.filters, problem.channels * 2)]
    shapes = [(width, tile) for tile in _streaming_tiles(arch) for width in widths]
    if taps == 1:  # without a halo, it is the width that saves loads
        shapes.sort(key=lambda shape: -shape[0])
    per_plane, ahead = PIECE // bytes_of(problem.dtype), 2 if taps == 1 else min(2, taps - 1)
    for width, tile in shapes:
        plan = _streaming(problem, arch, width, tile)
        for planes in (16, 8, 4) if taps > 1 else (8, 4):
            is_long = problem.channels >= 2 * planes * per_plane
            if is_long and plan.tasks <= at_once < 2 * plan.tasks:
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
    if plan.tasks < multiprocessors(arch):
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
        wanted = max(1, min(most, plan.all_tiles, tasks // multiprocessors(arch)))
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
