"""Rows of which data decide whether they are there, in tensors of fixed shapes.

In ONNX, an axis may be as long as a mask has trues, or as a NonMaxSuppression keeps boxes. Here it has a
fixed length, a `Selection` says which rows are there, and the others have any value. So a node may read them
only if each row of its result depends on one row alone, or if it is told which are there.

A mask leaves the rows where they are, with gaps between those that are there, so ONNX's number of a row is
not its place. Numbers of rows therefore know whose places they are, and only rows of that selection are read
by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Optional

import numpy as np

from tvm import relax

from . import elementwise
from .node import Node, Value, constant, shape_of

op = relax.op


@dataclass(eq=False)
class Selection:
    """How many rows there can be, which are there, and how many, if those come first."""

    extent: int
    kept: relax.Expr  # bool, of the extent
    count: relax.Expr | None  # int32; None where there may be gaps
    parent: Selection | None = None  # without rows of it, there are none of this

    @classmethod
    def of_first(cls, n: Node, extent: int, count: relax.Expr, parent: Selection | None) -> Selection:
        places = constant(np.arange(extent, dtype="int32"))
        return cls(extent, n.emit(op.less(places, count)), count, parent)

    def counted(self, n: Node) -> relax.Expr:
        if self.count is not None:
            return self.count
        return n.emit(op.sum(op.astype(self.kept, "int32")))

    def descends_from(self, other: Selection) -> bool:
        return self is other or (self.parent is not None and self.parent.descends_from(other))


class Rows(NamedTuple):
    """Along which axis a value has the rows of a selection.

    Its elements may be the places of rows of another selection, which has gaps, and each its own place.
    """

    axis: int
    of: Selection
    places_in: Selection | None = None
    are_own: bool = False

    def kept_of(self, rank: int) -> relax.Expr:
        """Which are there, to be broadcast with a value of so many axes."""
        return op.reshape(self.of.kept, [-1 if axis == self.axis else 1 for axis in range(rank)])


def places_of_first(n: Node, is_kept: relax.Expr, extent: int) -> relax.Expr:
    """The places of a vector, int64: first those that are kept, in their order."""
    at = np.arange(extent)
    return n.emit(op.argsort(op.where(is_kept, constant(at), constant(at + extent)), dtype="int64"))


Given = Sequence[Optional[Rows]]


def rows_of_result(n: Node, inputs: Sequence[Value | None], given: Given) -> Rows:
    """Of the results of a node, some of whose inputs have rows; an ImportFailure if it mixes them."""
    op_type = n.proto.op_type
    find = _elementwise if op_type in ELEMENTWISE else AXES.get(op_type)
    some = [each for each in given if each is not None]
    axis = None if find is None or len({id(each.of) for each in some}) > 1 else find(n, inputs, given)
    first = some[0]
    is_same = op_type in SAME_ELEMENTS
    if axis is None or (any(each.places_in is not None for each in some) and not is_same):
        refuse(n)
    return Rows(axis, first.of, first.places_in, first.are_own) if is_same else Rows(axis, first.of)


def refuse(n: Node) -> NoReturn:
    n.refuse(
        "one of its inputs has a number of rows that depends on data, such as those that NonMaxSuppression "
        "keeps, and Relax is given fixed shapes: only nodes that compute or select each row by itself can "
        "follow. Export the model without what is behind them, or without its NonMaxSuppression"
    )


NOT_ELEMENTWISE = {"PRelu"}  # whose slopes have the axes of channels
ELEMENTWISE = {*elementwise.converters()} - NOT_ELEMENTWISE
SAME_ELEMENTS = {"Cast", "Gather", "Identity", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}


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
    if data is None or indices is not None or data.axis == along:
        return None
    return data.axis if data.axis < along else data.axis - 1 + n.rank(1)


def _of_batch(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    """Of layers that compute each image of a batch, or each region, by itself."""
    data, *others = given
    return 0 if data is not None and data.axis == 0 and not any(others) else None


def _roi_align(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    data, regions, images = given
    is_each = data is None and regions is not None and regions.axis == 0
    return 0 if is_each and (images is None or images.axis == 0) else None


def _pad(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    axes = n.integers(3) if n.has(3) else list(range(n.rank()))
    widths = n.integers(1)
    padded = {axis % n.rank() for at, axis in enumerate(axes) if widths[at] or widths[at + len(axes)]}
    return _unless_in(n, given, sorted(padded))


def _gemm(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    return None if n.attribute("transA") else _of_batch(n, inputs, given)


def _matmul(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    data, other = given
    if data is None or other is not None or n.rank(1) > 2 or data.axis == n.rank() - 1:
        return None
    return data.axis


def _slice(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
    axes = n.integers(3) if n.has(3) else list(range(len(n.integers(1))))
    return _unless_in(n, given, axes)


def _of_axis(n: Node, inputs: Sequence[Value | None], given: Given) -> int | None:
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


AXES: dict[str, Callable[[Node, Sequence[Any], Given], Any]] = {
    **dict.fromkeys(
        (
            "AveragePool",
            "BatchNormalization",
            "Conv",
            "ConvTranspose",
            "GlobalAveragePool",
            "MaxPool",
            "Resize",
        ),
        _of_batch,
    ),
    "Concat": _concat,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _pad,
    "RoiAlign": _roi_align,
    "Slice": _slice,
    "Softmax": _of_axis,
    "Split": _of_axis,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
