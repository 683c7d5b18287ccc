"""Which axis of a value has as many rows as a NonMaxSuppression keeps, and which nodes keep rows apart.

In ONNX that axis is as long as there are kept boxes. Here it has a fixed length, and the rows beyond the kept
ones have any value. So a node may read them only if each row of its result depends on one row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from tvm import relax

from . import elementwise
from .node import Node, Value, shape_of


class Rows(NamedTuple):
    """The axis that has rows, and the value that counts those that are kept."""

    axis: int
    count: relax.Expr


NOT_ELEMENTWISE = {"PRelu"}  # whose slopes have the axes of channels
ELEMENTWISE = {*elementwise.converters()} - NOT_ELEMENTWISE
Given = Sequence[Optional[Rows]]


def rows_of_result(n: Node, inputs: Sequence[Value | None], given: Given) -> Rows:
    """Of the results of a node, some of whose inputs have rows; an ImportFailure if it mixes them."""
    op_type = n.proto.op_type
    find = _elementwise if op_type in ELEMENTWISE else AXES.get(op_type)
    counts = {each.count for each in given if each is not None}
    axis = None if find is None or len(counts) > 1 else find(n, inputs, given)
    if axis is None:
        n.refuse(
            "one of its inputs has as many rows as NonMaxSuppression keeps, which depends on data, and Relax "
            "is given fixed shapes: only nodes that compute each row by itself can follow. Export the model "
            "without what is behind them, or without its NonMaxSuppression"
        )
    return Rows(axis, counts.pop())


def _elementwise(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    """The same axis, counted from the end, of each input that has rows; one element of the others."""
    ranks = [0 if value is None else len(shape_of(value)) for value in inputs]
    from_end = {each.axis - rank for each, rank in zip(given, ranks) if each is not None}
    if len(from_end) > 1:
        return None
    axis = from_end.pop()
    for value, rows, rank in zip(inputs, given, ranks):
        if rows is None and rank >= -axis and shape_of(value)[axis] != 1:
            return None
    return max(ranks) + axis


def _concat(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    axes = {None if each is None else each.axis for each in given}
    axis = axes.pop()
    return axis if not axes and axis != n.axis() else None


def _gather(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    data, indices = given
    along = n.axis()
    if data is None and indices is not None:
        return along + indices.axis
    if data is None or indices is not None or data.axis == along:
        return None
    return data.axis if data.axis < along else data.axis - 1 + n.rank(1)


def _gather_nd(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    data, indices = given
    if data is not None or indices is None or n.attribute("batch_dims"):
        return None
    return indices.axis if indices.axis < n.rank(1) - 1 else None


def _slice(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    axes = n.integers(3) if n.has(3) else list(range(len(n.integers(1))))
    return _unless_in(n, given, axes)


def _split(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    return _unless_in(n, given, [n.axis()])


def _softmax(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    return _unless_in(n, given, [n.axis()])


def _unless_in(n: Node, given: Given, axes: Sequence[int]) -> int | None:
    rows = given[0]
    return None if rows is None or rows.axis in {axis % n.rank() for axis in axes} else rows.axis


def _transpose(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    order = list(n.attribute("perm") or list(range(n.rank()))[::-1])
    return None if given[0] is None else order.index(given[0].axis)


def _squeeze(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    if not n.has(1) or given[0] is None:  # without axes, whether there is one row would matter
        return None
    axes, axis = {axis % n.rank() for axis in n.integers(1)}, given[0].axis
    return None if axis in axes else axis - sum(each < axis for each in axes)


def _unsqueeze(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    if given[0] is None:
        return None
    rank = n.rank() + len(n.integers(1))
    added = {axis % rank for axis in n.integers(1)}
    return [axis for axis in range(rank) if axis not in added][given[0].axis]


def _reshape(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    """Of the first axis, which stays the first one: the only size that is not written."""
    if given[0] is None or given[0].axis != 0 or not n.has(1):
        return None
    first, *others = n.integers(1) or [1]
    is_same = min(others, default=1) > 0 and math.prod(others) == math.prod(n.shape(0)[1:])
    return 0 if first in (-1, 0) and is_same else None


AXES: dict[str, Callable[[Node, Sequence[Any], Given], Any]] = {
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
