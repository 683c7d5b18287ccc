"""Where the elements are read that a result is computed of, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import te, tir, topi

from ._register import known

TRANSPOSING = {"T_transpose", "T_layout_trans"}
MAX_READS = 16  # of which an element is made: more are not looked through


def steps_where_transposed(out: te.Tensor) -> list[int] | None:
    """How far it is in memory from an element to the next one along each axis of a result.

    In memory of the largest tensor that it is computed of, amid the result. None for one whose neighbours
    along the last axis are neighbours there, or are the same element, or which nothing transposes.
    """
    shape = [known(extent) or 0 for extent in out.shape]  # 0 if it is known only at run time
    if not shape or 0 in shape or not any(operation.name in TRANSPOSING for operation in computed_in(out)):
        return None
    middle = [max(min(extent // 2, extent - 2), 0) for extent in shape]
    places = _read(out, middle)
    if not 0 < len(places) <= MAX_READS:
        return None
    largest = places.index(max(places))

    def step(axis: int) -> int:
        moved = [index + (at == axis) for at, index in enumerate(middle)]
        found = _read(out, moved)
        return found[largest][1] - places[largest][1] if len(found) == len(places) else 0

    along_row = step(len(shape) - 1)
    return None if along_row in (0, 1) else [*map(step, range(len(shape) - 1)), along_row]


def is_read_evenly(out: te.Tensor, axis: int, count: int) -> bool:
    """Whether all that `count` neighbours along an axis are computed of lies in memory in even steps.

    Of those that a vector has, amid the result: where it is cut into parts, these repeat in each vector.
    """
    first = [int(extent) // 2 for extent in out.shape]
    first[axis] -= first[axis] % count
    found = [_read(out, [at + i * (each == axis) for each, at in enumerate(first)]) for i in range(count)]
    if len({len(places) for places in found}) != 1:
        return False
    rows = ([place for _, place in of_one] for of_one in zip(*found))
    steps = ({after - before for before, after in zip(row, row[1:])} for row in rows)
    return all(len(each) <= 1 for each in steps)


def computed_in(out: te.Tensor) -> list[te.ComputeOp]:
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


def is_arithmetic(operation: te.ComputeOp) -> bool:
    """Whether it calls no function: the polynomial of one takes as long for a short vector."""
    calls = [node for node in nodes_of(*operation.body) if isinstance(node, tir.Call)]
    return all(getattr(call.op, "name", "") == "tir.if_then_else" for call in calls)


def nodes_of(*values: tir.PrimExpr) -> list[Any]:
    """What expressions consist of."""
    nodes: list[Any] = []
    for value in values:
        tir.stmt_functor.post_order_visit(value, nodes.append)
    return nodes


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
    for node in nodes_of(operation.body[tensor.value_index]):
        if isinstance(node, tir.ProducerLoad):
            indices = (tir.stmt_functor.substitute(index, values) for index in node.indices)
            yield from _places(node.producer, [analyzer.simplify(index) for index in indices])
