"""What is computed element by element on CPUs: in vectors that divide rows, and transposed by tiles.

TVM takes vectors of 16, and computes the last one of a row of 36, 60 or 72 one by one, since it may reach
over the end. What is transposed it reads along a row of elements that are far from each other, whose cache
lines are gone before their neighbours are read where they are a power of two apart. Importing this module
replaces the schedule for sums and products in rows that shorter vectors divide, and for results of which
another axis is the one along which memory is read. All else keeps TVM's schedule, and results stay the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import te

from .._kernel import bytes_of, most_lanes
from .._places import computed_in, is_arithmetic, steps_where_transposed
from .._register import known

LANES, MIN_LANES = 16, 4  # of a vector
SIDE = 16  # of a tile, along the axis in which memory is read
CLASHING = 4096  # bytes from element to element, of which multiples share a set of the cache: few are in it
injective: Any = importlib.import_module("tvm.topi.x86.injective")
schedule_by_tvm = injective.schedule_injective_from_existing


class _Tile(NamedTuple):
    axis: int  # along which memory is read
    side: int
    lanes: int  # along the last axis


def schedule_injective_from_existing(s: te.Schedule, out: te.Tensor) -> te.Schedule:
    """The loops of a result, whatever is computed in them."""
    shape = [known(extent) or 0 for extent in out.shape]  # 0 if it is known only at run time
    lanes = most_lanes(shape[-1], LANES) if shape and shape[-1] else 1
    tile = _tile(out, shape) if lanes >= MIN_LANES else None
    is_shorter = MIN_LANES <= lanes < LANES and all(map(is_arithmetic, computed_in(out)))
    if tile is None and not is_shorter:
        return schedule_by_tvm(s, out)
    *outer, last = s[out].op.axis
    column, lane = s[out].split(last, factor=tile.lanes if tile else lanes)
    if tile:
        outer[tile.axis], of_tile = s[out].split(outer[tile.axis], factor=tile.side)
        s[out].reorder(*outer, column, of_tile, lane)
    else:
        outer = outer[: 3 if len(shape) >= 5 else 2]  # the loops that TVM runs on all cores
    s[out].vectorize(lane)
    s[out].parallel(s[out].fuse(*outer) if outer else column)
    return s


def _tile(out: te.Tensor, shape: Sequence[int]) -> _Tile | None:
    """The tiles of a result that is transposed."""
    steps = steps_where_transposed(out)
    if steps is None:
        return None
    *outer, along_row = steps
    sides = [most_lanes(extent, SIDE) for extent in shape[:-1]]
    axis = next((at for at, side in enumerate(sides) if side >= MIN_LANES and outer[at] == 1), None)
    if axis is None:
        return None
    most = LANES if along_row * bytes_of(out.dtype) % CLASHING else MIN_LANES
    return _Tile(axis, sides[axis], most_lanes(shape[-1], most))


injective.schedule_injective_from_existing = schedule_injective_from_existing
