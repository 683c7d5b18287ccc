"""The Relay operator `topi_ext.slice_by_lengths`: its arguments, types, layouts, and its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from .._register import known, refuse
from .._strategy import ABOVE_STOCK
from .._tvm import Attrs, Expr, TensorType, Type, call, is_registered, register_operator, te, tir
from .bounds import LENGTH, Bounds, Range, Term, check, lengths_in, range_of, read, with_lengths, written

NAME = "topi_ext.slice_by_lengths"
MANY = 2**16  # elements, more than in any vector
ARGUMENTS = {"data": "What to take a part of.", "others": "Tensors whose lengths are in bounds; not read."}


def slice_by_lengths(
    data: Expr, others: Sequence[Expr], bounds: Mapping[int, tuple[Term, Term, int]]
) -> Expr:
    """A part of a tensor, at bounds that are computed from the lengths of tensors.

    Other than a slice by bounds in a tensor, it is computed together with what reads it, and its type tells
    the lengths of the axes that it does not cut.

    Parameters
    ----------
    data : Expr
        Of any shape and type.
    others : sequence of Expr
        Tensors whose lengths are in bounds; their elements are not read.
    bounds : mapping of int to (start, stop, step)
        For each axis that is cut, what Python calls a slice. A step is a number above 0. A start or stop is a
        number; `("length", i, axis)`, the length of an axis of tensor number i, of which `data` is 0 and
        `others` are the next; or `(function, left, right)` of two such, where the function is one of add,
        subtract, multiply, minimum, maximum, less, less_equal, greater, greater_equal, and, with a number on
        the right, floor_divide, floor_mod, divide and mod, in int64, as Relay computes them; or `("where",
        condition, yes, no)`.

    Returns
    -------
    result : Expr
        As NumPy's `data[start:stop:step]`.

    >>> from topi_ext.slice_by_lengths import reference
    >>> image, other = np.arange(6), np.zeros(3)
    >>> print(reference.slice_by_lengths(image, [other], {0: (1, ("add", ("length", 1, 0), 1), 1)}))
    [1 2 3]
    """
    of_axes = {axis: Bounds(*each) for axis, each in bounds.items()}
    for start, stop, step in of_axes.values():
        if not isinstance(step, int) or step < 1:
            raise ValueError(f"slice_by_lengths: a step must be a number above 0, not {step!r}")
        for term in (start, stop):
            check(term)
            for place, _ in lengths_in(term):
                if not 0 <= place <= len(others):
                    raise ValueError(
                        f"slice_by_lengths: there is no tensor {place} beside {len(others)} others"
                    )
    if min(of_axes, default=0) < 0:
        raise ValueError(f"slice_by_lengths: axes are numbers from 0, not {sorted(of_axes)}")
    return call(NAME, [data, *others], bounds=written(of_axes))


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    shape, lengths = list(types[0].shape), [list(map(known, type_.shape)) for type_ in types]
    for axis, bounds in read(attrs["bounds"]).items():
        if axis >= len(shape):
            refuse(NAME, f"data of {len(shape)} axes has no axis {axis}")
        dims = [*lengths_in(bounds.start), *lengths_in(bounds.stop)]
        if any(other >= len(lengths[place]) for place, other in dims):
            refuse(NAME, "a bound is computed from the length of an axis that its tensor has not")
        needed = [lengths[0][axis], *(lengths[place][other] for place, other in dims)]
        is_known = None not in needed
        shape[axis] = range_of(bounds, lengths[0][axis], lengths).count if is_known else relay.Any()
    return TensorType(shape, types[0].dtype)


def _ranges(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> dict[int, Range]:
    lengths = [[tir.Cast("int64", tvm.runtime.convert(length)) for length in shape] for shape in shapes]
    return {
        axis: range_of(bounds, lengths[0][axis], lengths) for axis, bounds in read(attrs["bounds"]).items()
    }


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shapes = [[shape[axis] for axis in range(int(shape.shape[0]))] if shape.shape else [] for shape in inputs]
    ranges = _ranges(attrs, shapes)

    def length(axis: tir.Var) -> tir.PrimExpr:
        result = inputs[0][axis]
        for place, taken in ranges.items():
            result = tir.Select(axis == place, taken.count, result)
        return result

    return [te.compute(inputs[0].shape, length, name="shape")]


def _implementation_for(attrs: Attrs, _inputs: Sequence[te.Tensor], _target: tvm.target.Target) -> Any:
    """The function from inputs to outputs, and what schedules them."""

    def compute(inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
        data = inputs[0]
        ranges = _ranges(attrs, [tensor.shape for tensor in inputs])
        shape = [
            _extent(ranges[axis].count.astype(length.dtype)) if axis in ranges else length
            for axis, length in enumerate(data.shape)
        ]

        def element(*places: tir.Var) -> tir.PrimExpr:
            moved = [
                place * ranges[axis].step + ranges[axis].first.astype(place.dtype)
                if axis in ranges
                else place
                for axis, place in enumerate(places)
            ]
            return data(*moved)

        return [te.compute(shape, element, name="slice_by_lengths", tag="injective")]

    return compute, _Kernels


def _extent(count: tir.PrimExpr) -> tir.PrimExpr:
    """The extent of an axis, of which TVM's schedules make vectors of as many lanes as they like.

    They see that there are none where it is a constant 0. That there may be fewer than lanes, which TVM could
    prove of a part of a short axis, must stay unknown to it: it makes no vectors then, and fails. Nothing is
    known of `^`.
    """
    analyzer = tvm.arith.Analyzer()
    count = analyzer.simplify(count)
    is_short = analyzer.const_int_bound(count).max_value < MANY
    return count ^ 0 if is_short and not isinstance(count, tir.IntImm) else count


class _Kernels:
    """Any target's own schedule."""

    @staticmethod
    def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
        return relay.op.strategy.schedule_injective(None, outs, tvm.target.Target.current())


def _layouts(
    attrs: Attrs, new: Sequence[Any] | None, old: Sequence[Any], types: Sequence[Type]
) -> InferCorrectLayoutOutput:
    """Where axes only move, bounds are those of the moved ones; else, all stays as it is."""
    if old[0] is None:
        return InferCorrectLayoutOutput([None] * len(types), [None], attrs)
    ranks = [len(type_.shape) for type_ in types]
    old = [_any_of(rank) if layout is None else layout for layout, rank in zip(old, ranks)]
    if not new or not _only_moves(new[0], old[0], ranks[0]):
        return InferCorrectLayoutOutput(old, old[:1], attrs)
    inputs = [
        after if _only_moves(after, before, rank) else before for after, before, rank in zip(new, old, ranks)
    ]
    places = [[after.name.index(axis) for axis in before.name] for after, before in zip(inputs, old)]

    def moved(term: Term) -> Term:
        return with_lengths(term, lambda place, axis: (LENGTH, place, places[place][axis]))

    bounds = {
        places[0][axis]: Bounds(moved(start), moved(stop), step)
        for axis, (start, stop, step) in read(attrs["bounds"]).items()
    }
    attrs = tvm.ir.make_node("DictAttrs", bounds=written(bounds))
    return InferCorrectLayoutOutput(inputs, inputs[:1], attrs)


def _any_of(rank: int) -> Any:
    """A layout for a tensor that no pass has one for, whose axes stay where they are."""
    return tvm.tir.layout(ascii_uppercase[:rank])


def _only_moves(new: Any, old: Any, rank: int) -> bool:
    """Whether one layout has the axes of another in some order, and none in blocks."""
    return new is not None and len(old.name) == rank and sorted(new.name) == sorted(old.name)


if not is_registered(NAME):
    _parts = ARGUMENTS, _type_relation, _shape_function, _implementation_for
    register_operator(NAME, "A part of a tensor, at bounds of lengths.", *_parts, is_variadic=True)
    registry.register_pattern(NAME, registry.OpPattern.INJECTIVE, ABOVE_STOCK)
    relay.op.get(NAME).set_attr("FInferCorrectLayout", _layouts)
