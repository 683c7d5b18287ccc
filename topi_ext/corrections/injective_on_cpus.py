"""What is computed element by element on CPUs: in vectors that divide rows, and transposed by tiles.

TVM takes vectors of 16, and computes the last one of a row of 36, 60 or 72 one by one, since it may reach
over the end. What is transposed it reads along a row of elements that are far from each other, whose cache
lines are gone before their neighbours are read where they are a power of two apart. Importing this module
replaces the schedule for sums and products in rows that shorter vectors divide, and for results of which
another axis is the one along which memory is read. All else keeps TVM's schedule, and results stay the same.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import te, tir, topi

from .._kernel import bytes_of, most_lanes
from .._register import known

LANES, MIN_LANES = 16, 4  # of a vector
SIDE = 16  # of a tile, along the axis in which memory is read
CLASHING = 4096  # bytes from element to element, of which multiples share a set of the cache: few are in it
MAX_READS = 16  # of which an element is made: more are not looked through
TRANSPOSING = {"T_transpose", "T_layout_trans"}
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
    is_shorter = MIN_LANES <= lanes < LANES and all(map(_is_arithmetic, _computed_in(out)))
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
    """The tiles of a result that is transposed: neighbours along its last axis are not so in memory."""
    if 0 in shape or not any(operation.name in TRANSPOSING for operation in _computed_in(out)):
        return None
    middle = [max(min(extent // 2, extent - 2), 0) for extent in shape]
    places = _read(out, middle)
    if not 0 < len(places) <= MAX_READS:
        return None
    largest = places.index(max(places))

    def step(axis: int) -> int:
        """How far it is in memory to the next element along the axis."""
        moved = [index + (at == axis) for at, index in enumerate(middle)]
        found = _read(out, moved)
        return found[largest][1] - places[largest][1] if len(found) == len(places) else 0

    last = len(shape) - 1
    along_row = step(last)
    if along_row in (0, 1):
        return None
    sides = {axis: most_lanes(extent, SIDE) for axis, extent in enumerate(shape[:last])}
    axis = next((axis for axis, side in sides.items() if side >= MIN_LANES and step(axis) == 1), None)
    if axis is None:
        return None
    most = LANES if along_row * bytes_of(out.dtype) % CLASHING else MIN_LANES
    return _Tile(axis, sides[axis], most_lanes(shape[last], most))


def _computed_in(out: te.Tensor) -> list[te.ComputeOp]:
    """All operations that become part of the loops of a result."""
    found, seen, waiting = [], {out.op}, [out.op]
    while waiting:
        operation = waiting.pop()
        if isinstance(operation, te.ComputeOp) and topi.tag.is_injective(operation.tag):
            found.append(operation)
            sources = {tensor.op for tensor in operation.input_tensors} - seen
            seen |= sources
            waiting += sources
    return found


def _is_arithmetic(operation: te.ComputeOp) -> bool:
    """Whether it calls no function: the polynomial of one takes as long for a short vector."""
    calls: list[tir.Call] = []

    def visit(node: Any) -> None:
        if isinstance(node, tir.Call) and getattr(node.op, "name", "") != "tir.if_then_else":
            calls.append(node)

    for value in operation.body:
        tir.stmt_functor.post_order_visit(value, visit)
    return not calls


def _read(out: te.Tensor, at: Sequence[int]) -> list[tuple[int, int]]:
    """What `_places` gives, up to one more than are looked through."""
    places = _places(out, [tir.const(index, "int32") for index in at])
    return list(itertools.islice(places, MAX_READS + 1))


def _places(tensor: te.Tensor, at: Sequence[tir.PrimExpr]) -> Iterator[tuple[int, int]]:
    """(elements of a tensor in memory, place of what is read of it), for each that an element is made of.

    Both are 0 where the place depends on data.
    """
    analyzer, operation = tvm.arith.Analyzer(), tensor.op
    if not isinstance(operation, te.ComputeOp) or not topi.tag.is_injective(operation.tag):
        place, size = tir.const(0, "int64"), 1
        for index, extent in zip(at, tensor.shape):
            place, size = place * extent + index, size * (known(extent) or 0)
        place = analyzer.simplify(place)
        yield (size, int(place)) if isinstance(place, tir.IntImm) else (0, 0)
        return
    values = {axis.var: index.astype(axis.var.dtype) for axis, index in zip(operation.axis, at)}
    nodes: list[Any] = []
    tir.stmt_functor.post_order_visit(operation.body[tensor.value_index], nodes.append)
    for node in nodes:
        if isinstance(node, tir.ProducerLoad):
            indices = (tir.stmt_functor.substitute(index, values) for index in node.indices)
            yield from _places(node.producer, [analyzer.simplify(index) for index in indices])


injective.schedule_injective_from_existing = schedule_injective_from_existing
