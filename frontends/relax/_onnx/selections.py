"""Nodes that select rows, or read them by number, or join them: their results have rows of other selections.

A selection that a mask makes leaves rows where they are: what `NonZero` and a `Gather` take from a tensor is
the tensor, of which fewer rows are there. The best k, and those that NonMaxSuppression keeps, come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from onnx import numpy_helper

from tvm import relax

from .counts import Count, extents, has_counts
from .detection import non_max_suppression
from .node import Node, Value, constant, shape_of
from .rows import Given, Rows, Selection, refuse
from .sizes import is_number

op = relax.op


class Result(NamedTuple):
    value: Value
    rows: Rows | None


class Made:
    """The selections that are made, each once, from whatever they depend on."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Selection, tuple[Any, ...]]] = {}

    def once(self, sources: Sequence[Any], make: Callable[[], Selection]) -> Selection:
        key = tuple(each if isinstance(each, (int, str)) else (id(each),) for each in sources)
        if key not in self._made:
            self._made[key] = make(), tuple(sources)  # whose ids stay theirs
        return self._made[key][0]


class Selecting(NamedTuple):
    """A node, its inputs as they are, the rows that they have, and the selections so far."""

    n: Node
    inputs: Sequence[Any]
    given: Given
    made: Made
    convert: Callable[[], relax.Expr]  # to what the node is without rows


Results = Optional[list[Result]]  # None: the node does nothing of this with its rows


def selected(s: Selecting) -> Results:
    """The results of a node, if it is one of these."""
    return CONVERTERS[s.n.proto.op_type](s) if s.n.proto.op_type in CONVERTERS else None


def _non_zero(s: Selecting) -> Results:
    n, (rows,) = s.n, s.given
    if n.rank() != 1:
        return None
    _check_numbers(s, rows)
    (extent,) = n.shape(0)
    before = None if rows is None else rows.of

    def make() -> Selection:
        is_there = n.data(0)
        if n.dtype() != "bool":
            is_there = n.emit(op.not_equal(is_there, n.number(0)))
        if before is not None:
            is_there = n.emit(op.logical_and(is_there, before.kept))
        return Selection(extent, is_there, None, before)

    n.inputs[0]
    selection = s.made.once(["NonZero", s.inputs[0], before], make)
    return [Result(np.arange(extent, dtype="int64")[None], Rows(1, selection, _with_gaps(before), True))]


def _with_gaps(selection: Selection | None) -> Selection | None:
    """Whose places are not ONNX's numbers."""
    return selection if selection is not None and selection.count is None else None


def _check_numbers(s: Selecting, *given: Rows | None) -> None:
    """What depends on the values of numbers of rows needs those that ONNX has."""
    if any(each is not None and each.places_in is not None for each in given):
        refuse(s.n)


def _gather(s: Selecting) -> Results:
    n, (data, at) = s.n, s.given
    if at is None:
        return None
    return _read(s, data, at, n.axis(), n.rank(1), lambda: n.data(1))


def _gather_nd(s: Selecting) -> Results:
    n, (data, at) = s.n, s.given
    if at is None:
        return None
    if n.attribute("batch_dims") or at.axis == n.rank(1) - 1:
        refuse(n)
    if n.shape(1)[1:] == (1,):
        return _read(s, data, at, 0, 1, lambda: n.emit(op.reshape(n.data(1), (-1,))))
    _check_numbers(s, at)
    if data is not None:
        refuse(n)
    return [Result(s.convert(), Rows(at.axis, at.of))]


def _read(
    s: Selecting, data: Rows | None, at: Rows, along: int, rank: int, indices: Callable[[], Any]
) -> list[Result]:
    """What the rows of `at` say, along an axis of what has the rows `data`, or none."""
    n = s.n
    source = data.of if data is not None and data.axis == along else None
    if (data is not None and source is None) or at.places_in is not _with_gaps(source):
        refuse(n)
    places_in = None if data is None else data.places_in
    if at.are_own and rank == 1 and n.shape(0)[along] == at.of.extent:
        n.inputs[1]
        return [Result(n.data(0), Rows(along, at.of, places_in, data is not None and data.are_own))]
    if source is None:
        return [Result(s.convert(), Rows(along + at.axis, at.of))]
    places = indices()
    if source.count is not None:  # a negative one counts from the end of those that are there
        dtype = n.dtype(1)
        from_end = n.emit(op.add(places, n.emit(op.astype(source.count, dtype))))
        places = n.emit(op.where(n.emit(op.less(places, relax.const(0, dtype))), from_end, places))
    taken = op.take(n.data(0), places, along, mode="clip")
    return [Result(n.emit(taken), Rows(along + at.axis, at.of, places_in))]


def _top_k(s: Selecting) -> Results:
    n, (rows, _), k = s.n, s.given, s.inputs[1]
    if rows is None:
        return None
    _check_numbers(s, rows)
    if n.rank() != 1 or not n.is_float() or not n.attribute("largest"):
        refuse(n)
    (asked,) = np.asarray(extents(k)).reshape(-1).tolist()
    if has_counts(k):
        (count,) = k.reshape(-1)
        if count.of is not rows.of or count.times != 1:
            refuse(n)
    most = min(asked, rows.of.extent)
    if most < 1:  # TVM's are all then
        n.refuse(f"the best {most} are not supported")
    for name in ("axis", "sorted"):
        n.attribute(name)
    n.inputs[1]
    # A row of -inf comes before those that are not there, and so is compared as the lowest finite number.
    lowest, finite = relax.const(-np.inf, n.dtype()), n.number(float(np.finfo(n.dtype()).min))
    compared = n.emit(op.where(rows.of.kept, op.maximum(n.data(0), finite), lowest))
    best = n.emit(op.topk(compared, most, 0, "both", True, "int64"))
    places = n.emit(relax.TupleGetItem(best, 1))
    values = n.emit(op.take(n.data(0), places, 0, mode="clip"))
    count = n.emit(op.minimum(rows.of.counted(n), relax.const(most, "int32")))
    selection = Selection.of_first(n, most, count, rows.of)
    return [
        Result(values, Rows(0, selection)),
        Result(places, Rows(0, selection, _with_gaps(rows.of))),
    ]


def _suppressed(s: Selecting) -> Results:
    n, (boxes, scores, *_) = s.n, s.given
    _check_numbers(s, boxes, scores)
    if (boxes and boxes.of) is not (scores and scores.of):
        refuse(n)
    if boxes is not None and scores is not None and (boxes.axis, scores.axis) != (1, 2):
        refuse(n)
    before = None if boxes is None else boxes.of
    found, count = non_max_suppression(n, before)
    selection = Selection.of_first(n, shape_of(found)[0], count, before)
    return [Result(found, Rows(0, selection, _with_gaps(before)))]


def _slice(s: Selecting) -> Results:
    n, rows = s.n, s.given[0]
    if rows is None or any(s.given[1:]):
        return None
    ends = s.inputs[2]
    axes = n.integers(3) if n.has(3) else list(range(len(n.integers(1))))
    axes = [axis % n.rank() for axis in axes]
    for axis, end in zip(axes, np.asarray(ends, object)):
        if isinstance(end, Count) and not (axis == rows.axis and end.is_plain and end.of is rows.of):
            refuse(n)
    if rows.axis not in axes:
        return None
    at = axes.index(rows.axis)
    start, end = n.integers(1)[at], n.integers(2)[at]
    if start != 0 or end < 0 or (n.has(4) and n.integers(4)[at] != 1):
        refuse(n)
    if end >= rows.of.extent:
        return [Result(s.convert(), rows)]
    if rows.of.count is None or rows.are_own:
        refuse(n)

    def make() -> Selection:
        count = n.emit(op.minimum(rows.of.counted(n), relax.const(end, "int32")))
        return Selection.of_first(n, end, count, rows.of)

    return [Result(s.convert(), rows._replace(of=s.made.once(["Slice", rows.of, end], make)))]


def _concat(s: Selecting) -> Results:
    n, axis = s.n, s.n.axis()
    if not any(s.given) or all(each is None or each.axis != axis for each in s.given):
        return None
    if len(s.given) == 1:
        return [Result(n.data(0), s.given[0])]
    if any(each is not None and (each.axis != axis or each.places_in is not None) for each in s.given):
        refuse(n)
    lengths = [n.shape(place)[axis] for place in range(len(s.given))]
    parts = [length if each is None else each.of for each, length in zip(s.given, lengths)]

    def make() -> Selection:
        kept = [constant(np.ones(part, "bool")) if isinstance(part, int) else part.kept for part in parts]
        return Selection(sum(lengths), n.emit(op.concat(kept, 0)), None)

    return [Result(s.convert(), Rows(axis, s.made.once(["Concat", *parts], make)))]


def _reshape(s: Selecting) -> Results:
    wanted = s.inputs[1]
    if s.given[0] is not None:
        return _reshaped(s, np.asarray(wanted, object).reshape(-1).tolist())
    if has_counts(wanted):
        refuse(s.n)
    return None


def _flatten(s: Selecting) -> Results:
    if s.given[0] is None:
        return None
    axis, shape = s.n.attribute("axis") % s.n.rank(), s.n.shape(0)
    if axis <= s.given[0].axis:
        refuse(s.n)
    return _reshaped(s, [-1, math.prod(shape[axis:])])


def _reshaped(s: Selecting, wanted: list[Any]) -> Results:
    """The axis of the rows stays the first one, whole, or with what follows it, or without."""
    n, rows = s.n, s.given[0]
    if rows is None:
        return None
    shape = n.shape(0)
    first, *others = wanted or [1]
    if math.prod(shape[: rows.axis]) != 1 or any(isinstance(each, Count) for each in others):
        refuse(n)
    inner = math.prod(shape[rows.axis + 1 :])  # elements of a row
    if others.count(-1) == 1 and isinstance(first, Count):
        others[others.index(-1)] = inner // -math.prod(others)
    row = math.prod(others)
    if min(others, default=1) <= 0 or inner % row:
        refuse(n)
    times = inner // row
    is_whole = first == -1 or (first == 0 and times == 1 and rows.axis == 0)
    is_counted = (
        isinstance(first, Count) and first.of is rows.of and (first.times, first.most) == (times, None)
    )
    if not (is_whole or is_counted) or (times > 1 and rows.places_in is not None):
        refuse(n)
    result = s.convert()
    if times == 1:
        return [Result(result, rows._replace(axis=0))]

    def make() -> Selection:
        extent = rows.of.extent * times
        if rows.of.count is not None:
            count = n.emit(op.multiply(rows.of.count, relax.const(times, "int32")))
            return Selection.of_first(n, extent, count, rows.of)
        kept = n.emit(op.reshape(rows.of.kept, (-1, 1)))
        kept = n.emit(op.broadcast_to(kept, (rows.of.extent, times)))
        return Selection(extent, n.emit(op.reshape(kept, (-1,))), None, rows.of)

    return [Result(result, Rows(0, s.made.once(["Reshape", rows.of, times], make)))]


def _expand(s: Selecting) -> Results:
    n, (rows, _), wanted = s.n, s.given, s.inputs[1]
    counted = _counted(s, wanted)
    if counted is None:
        if rows is not None:
            refuse(n)
        return None
    result = s.convert()
    axis = len(result.ty.shape) - len(wanted) + counted.axis
    if rows is None:
        if n.rank() >= len(result.ty.shape) - axis and n.shape(0)[axis - len(result.ty.shape)] != 1:
            refuse(n)
        return [Result(result, Rows(axis, counted.of))]
    if rows.of is not counted.of or rows.axis - n.rank() != axis - len(result.ty.shape):
        refuse(n)
    return [Result(result, rows._replace(axis=axis))]


def _constant_of_shape(s: Selecting) -> Results:
    counted = _counted(s, s.inputs[0])
    if counted is None:
        return None
    given, _ = s.n.attribute("value"), s.n.inputs[0]
    value = np.zeros(1, "float32") if given is None else numpy_helper.to_array(given)
    return [Result(np.full(extents(s.inputs[0]), value.item(), value.dtype), counted)]


def _range(s: Selecting) -> Results:
    if not all(isinstance(each, np.ndarray) for each in s.inputs):
        return None
    start, end, step = (np.asarray(each, object).item() for each in s.inputs)
    is_counting = is_number(start, 0) and is_number(step, 1)
    if not is_counting or not isinstance(end, Count) or not end.is_plain:
        return None
    if end.of.count is None:
        refuse(s.n)
    s.n.all_data()
    return [Result(np.arange(end.of.extent, dtype="int64"), Rows(0, end.of, None, True))]


def _counted(s: Selecting, shape: Value | None) -> Rows | None:
    """Where a shape has a number of rows."""
    if not has_counts(shape):
        return None
    places = [at for at, each in enumerate(shape) if isinstance(each, Count)]  # type: ignore[arg-type]
    counts = [shape[at] for at in places]  # type: ignore[index]
    if len(places) != 1 or not counts[0].is_plain:
        refuse(s.n)
    return Rows(places[0], counts[0].of)


def _scatter_elements(s: Selecting) -> Results:
    """Rows of a selection from one tensor, and the others from another."""
    n, (data, at, updates) = s.n, s.given
    if data is None and at is None and updates is None:
        return None
    if data is None or at is None or updates is None or n.attribute("reduction") != "none":
        refuse(n)
    is_in_place = at.are_own and at.of is updates.of and at.places_in is _with_gaps(data.of)
    _check_numbers(s, data, updates)
    is_whole = n.shape(0) == n.shape(1) == n.shape(2)
    if {n.axis(), data.axis, at.axis, updates.axis} != {0} or not (is_in_place and is_whole):
        refuse(n)
    n.inputs[1]
    is_there = n.emit(at.kept_of(n.rank()))
    return [Result(n.emit(op.where(is_there, n.data(2), n.data(0))), data)]


def _largest(s: Selecting) -> Results:
    n, rows = s.n, s.given[0]
    if rows is None:
        return None
    axes = n.integers(1) if n.has(1) else list(n.attribute("axes") or range(n.rank()))
    _check_numbers(s, rows)
    if sorted(axis % n.rank() for axis in axes) != list(range(n.rank())):
        refuse(n)
    n.only_floats()
    n.attribute("noop_with_empty_axes")
    is_there = n.emit(rows.kept_of(n.rank()))
    there = n.emit(op.where(is_there, n.data(0), relax.const(-np.inf, n.dtype())))
    return [Result(n.emit(op.max(there, None, bool(n.attribute("keepdims")))), None)]


CONVERTERS: dict[str, Callable[[Selecting], Results]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "NonMaxSuppression": _suppressed,
    "NonZero": _non_zero,
    "Range": _range,
    "ReduceMax": _largest,
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "Slice": _slice,
    "TopK": _top_k,
}
SHAPES = {("Expand", 1), ("ConstantOfShape", 0), ("Reshape", 1), ("Slice", 2), ("TopK", 1)} | {
    ("Range", place) for place in range(3)
}  # where a node may read how many rows there are
