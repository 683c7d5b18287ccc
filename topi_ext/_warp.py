"""Communication between the threads of a warp or a block in hand-written CUDA kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable

from ._floats import Locals
from ._tvm import BufferVar, dtype_of, tir
from ._types import IntExpr


class Part:
    """A part of an array, from `start` on."""

    def __init__(self, array: BufferVar, start: IntExpr) -> None:
        self._array, self._start = array, start

    def __getitem__(self, at: IntExpr) -> tir.PrimExpr:
        return self._array[self._start + at]

    def __setitem__(self, at: IntExpr, value: tir.PrimExpr) -> None:
        self._array[self._start + at] = value


def all_lanes() -> tir.PrimExpr:
    return tir.const(0xFFFFFFFF, "uint32")


def ballot(condition: tir.PrimExpr) -> tir.PrimExpr:
    """A bit for each lane of the warp: whether the condition holds there. All lanes must reach this point."""
    return tir.call_extern("uint32", "__ballot_sync", all_lanes(), condition)


def count_bits(word: tir.PrimExpr) -> tir.PrimExpr:
    return tir.call_pure_extern("int32", "__popc", word)


def first_bit(word: tir.PrimExpr) -> tir.PrimExpr:
    """The index of the lowest set bit; at least one must be set."""
    return tir.call_pure_extern("int32", "__ffs", word) - 1


def below(lane: tir.PrimExpr) -> tir.PrimExpr:
    """The bits of all lanes before this one."""
    one = tir.const(1, "uint32")
    return (one << lane.astype("uint32")) - one


def from_lane(value: tir.PrimExpr, lane: IntExpr) -> tir.PrimExpr:
    """The value of another lane of the warp."""
    return tir.call_extern(dtype_of(value), "__shfl_sync", all_lanes(), value, lane)


def from_lane_before(value: tir.PrimExpr, distance: IntExpr) -> tir.PrimExpr:
    """The value of the lane that many positions before; the lane's own if there is none."""
    return tir.call_extern(dtype_of(value), "__shfl_up_sync", all_lanes(), value, distance)


def from_lane_across(value: tir.PrimExpr, mask: IntExpr) -> tir.PrimExpr:
    """The value of the lane whose index differs in the bits of the mask."""
    return tir.call_extern(dtype_of(value), "__shfl_xor_sync", all_lanes(), value, mask)


def sum_of_lanes(
    local: Locals, value: tir.PrimExpr, lanes: int = 32, add: Callable[..., tir.PrimExpr] = operator.add
) -> tir.PrimExpr:
    """The sum over so many neighbouring lanes of the warp, a power of 2; each of them has it.

    Instead of a sum it can be a maximum, or what else `add` is.
    """
    distance = lanes // 2
    while distance:
        value = local("total", add(value, from_lane_across(value, distance)))
        distance //= 2
    return value


def sum_up_to(local: Locals, value: tir.PrimExpr, lane: tir.PrimExpr) -> tir.PrimExpr:
    """The sum over the lanes of the warp from the first to this one."""
    for distance in (1, 2, 4, 8, 16):
        before = local("before", from_lane_before(value, distance))
        value = local("total", value + tir.Select(lane >= distance, before, 0))
    return value


def rsqrt(value: tir.PrimExpr) -> tir.PrimExpr:
    """CUDA's own; TVM divides by a root."""
    return tir.call_pure_extern("float32", "rsqrtf", value)


def count_threads(condition: tir.PrimExpr) -> tir.PrimExpr:
    """A count over the block; all of its threads must reach this point."""
    return tir.call_extern("int32", "__syncthreads_count", condition)
