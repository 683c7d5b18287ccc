"""Move a tensor as a whole, rather than in parts that are joined again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import known_shape, op_name, static_shape
from ...engine.rule import NO_MATCH, Answer, Match, Rule

RESHAPING = ("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
MAX_ELEMENTS = 2**26  # whose places are computed


class _Plan(NamedTuple):
    source: relay.Expr
    shape: list[int]
    axes: list[int]


class WholeOfMovedParts(Rule):
    """Transpose a tensor at once where the parts of a split are reshaped and transposed, then concatenated.

    Attention over the levels of a pyramid splits its values by level, moves each, and joins them again.

    Why legal: the place of each element is computed; they are those of one transpose.
    """

    parts = wildcard()
    pattern = is_op("concatenate")(parts)

    def where(self, match: Match) -> bool:
        is_static = static_shape(match.root) is not None
        return isinstance(match.parts, relay.Tuple) and len(match.parts.fields) > 1 and is_static

    def plan(self, match: Match) -> _Plan | Answer:
        moves, pieces = zip(*map(_moves_of, match.parts.fields))
        if not any(moves) or not all(_is_of_split(piece) for piece in pieces):
            return NO_MATCH
        split = pieces[0].tuple_value
        whole = split.args[0]
        shape = static_shape(whole)
        is_all = [piece.index for piece in pieces] == [*range(len(split.checked_type.fields))]
        if not is_all or any(not piece.tuple_value.same_as(split) for piece in pieces) or shape is None:
            return NO_MATCH
        if not 0 < np.prod(shape) <= MAX_ELEMENTS:
            return NO_MATCH
        axis = int(split.attrs.axis)
        lengths = [known_shape(piece)[axis] for piece in pieces]
        places = np.split(np.arange(np.prod(shape)).reshape(shape), np.cumsum(lengths)[:-1], axis)
        moved = [_moved(part, calls) for part, calls in zip(places, moves)]
        found = _transpose_of(np.concatenate(moved, int(match.root.attrs.axis)))
        return NO_MATCH if found is None else _Plan(whole, *found)

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        return relay.transpose(relay.reshape(plan.source, plan.shape), plan.axes)


def _moves_of(expr: relay.Expr) -> tuple[list[relay.Call], relay.Expr]:
    """The calls that move elements, the last of them first, and the tensor that they begin with."""
    calls = []
    while op_name(expr) in (*RESHAPING, "transpose"):
        calls.append(expr)
        expr = expr.args[0]
    return calls, expr


def _is_of_split(expr: relay.Expr) -> bool:
    return isinstance(expr, relay.TupleGetItem) and op_name(expr.tuple_value) == "split"


def _moved(array: np.ndarray, calls: list[relay.Call]) -> np.ndarray:
    for call in reversed(calls):
        is_transpose = op_name(call) == "transpose"
        axes = [int(axis) for axis in call.attrs.axes or ()] if is_transpose else None
        array = array.transpose(axes or None) if is_transpose else array.reshape(known_shape(call))
    return array


def _transpose_of(places: np.ndarray) -> tuple[list[int], list[int]] | None:
    """The shape and the axes of which a row of all numbers becomes this, or None if there are none."""
    strides = [int(np.take(places, min(1, n - 1), axis).flat[0]) for axis, n in enumerate(places.shape)]
    in_order = sorted(range(places.ndim), key=lambda axis: (-strides[axis], -places.shape[axis]))
    # Where an axis has one element, its stride is 0, and its place among the others is of no matter.
    shape = [places.shape[axis] for axis in in_order]
    axes = [in_order.index(axis) for axis in range(places.ndim)]
    made = np.arange(places.size).reshape(shape).transpose(axes)
    return (shape, axes) if np.array_equal(made, places) else None
