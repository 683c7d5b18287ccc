"""Drop operators that change nothing."""

from __future__ import annotations

import numpy as np

from tvm import relay, tir
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_constant, is_op, is_tuple_get_item, wildcard

from ...analysis.limits import never_holds
from ...engine.expressions import constant, known_shape, static_shape, type_of
from ...engine.match import any_op
from ...engine.rule import LEGAL, NO_MATCH, Answer, Match, Rule


class _Identity(Rule):
    """An operator whose result equals its operand `data`."""

    data = wildcard()

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.data


class TransposeToSameOrder(_Identity):
    """Drop a transpose that keeps the order of the axes."""

    pattern = is_op("transpose")(_Identity.data)

    def where(self, match: Match) -> bool:
        rank = len(match.data.checked_type.shape)
        axes = match.root.attrs.axes
        return rank < 2 or (axes is not None and [int(axis) % rank for axis in axes] == list(range(rank)))


class ReshapeToSameShape(_Identity):
    """Drop a reshape, a squeeze or a broadcast_to the shape that is already there."""

    pattern = any_op(("reshape", "squeeze", "broadcast_to"), _Identity.data)

    def where(self, match: Match) -> bool:
        shape = static_shape(match.data)
        return shape is not None and shape == static_shape(match.root)


class Dropout(_Identity):
    """Drop a dropout: TVM compiles networks for inference, where it drops nothing."""

    pattern = is_tuple_get_item(is_op("nn.dropout")(_Identity.data), 0)


class CastToSameType(_Identity):
    """Drop a cast to the type that is already there."""

    pattern = is_op("cast")(_Identity.data) | is_op("cast_like")(_Identity.data, wildcard())

    def where(self, match: Match) -> bool:
        return match.data.checked_type.dtype == match.root.checked_type.dtype


class CastUndone(_Identity):
    """Drop a cast to a type that represents every number of the first, and the cast back."""

    wider = is_op("cast")(_Identity.data)
    pattern = is_op("cast")(wider)

    def where(self, match: Match) -> bool:
        first, wider, last = (node.checked_type.dtype for node in (match.data, match.wider, match.root))
        return first == last and _has_every_number_of(wider, first)


class SliceOfEverything(_Identity):
    """Drop a slice that takes all of every axis, in order."""

    pattern = is_op("strided_slice")(_Identity.data)

    def where(self, match: Match) -> bool:
        attrs, shape = match.root.attrs, match.data.checked_type.shape
        if str(attrs.slice_mode) != "end" or any(int(stride) != 1 for stride in attrs.strides or ()):
            return False
        axes = range(len(shape)) if attrs.axes is None else [int(axis) for axis in attrs.axes]
        return all(_takes_all(shape[axis], *bounds) for axis, *bounds in zip(axes, attrs.begin, attrs.end))


class ConcatenateOfOne(Rule):
    """Drop a concatenate of one tensor."""

    parts = wildcard()
    pattern = is_op("concatenate")(parts)

    def where(self, match: Match) -> bool:
        return isinstance(match.parts, relay.Tuple) and len(match.parts.fields) == 1

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.parts.fields[0]


class ConcatenateOfEmpty(Rule):
    """Drop parts without elements from a concatenate, unless its type is as precise as it is due to them."""

    parts = wildcard()
    pattern = is_op("concatenate")(parts)

    def where(self, match: Match) -> bool:
        return isinstance(match.parts, relay.Tuple) and 0 < len(self._rest(match)) < len(match.parts.fields)

    def plan(self, match: Match) -> Answer:
        """The type of those that remain must be as precise."""
        shorter = type_of(self.rewrite(match, None))
        return LEGAL if structural_equal(shorter, match.root.checked_type) else NO_MATCH

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.Call(match.root.op, [relay.Tuple(self._rest(match))], match.root.attrs)

    def _rest(self, match: Match) -> list[relay.Expr]:
        axis = int(match.root.attrs.axis)
        return [part for part in match.parts.fields if not _is_zero(part.checked_type.shape[axis])]


class SqueezeUndone(_Identity):
    """Drop a squeeze and the expand_dims that puts the same axes back."""

    squeezed = is_op("squeeze")(_Identity.data)
    pattern = is_op("expand_dims")(squeezed)

    def where(self, match: Match) -> bool:
        rank, gone = len(match.data.checked_type.shape), match.squeezed.attrs.axis
        first, count = int(match.root.attrs.axis), int(match.root.attrs.num_newaxis)
        first += rank - count + 1 if first < 0 else 0
        return gone is not None and sorted(int(axis) % rank for axis in gone) == [
            *range(first, first + count)
        ]


class WhereNever(Rule):
    """Drop a `where` whose condition never holds, such as `where(index < 0, index + length, index)`.

    Why legal: no element of an index from argwhere or a top-k is negative.
    """

    condition, chosen = wildcard(), wildcard()
    pattern = is_op("where")(condition, wildcard(), chosen)

    def where(self, match: Match) -> bool:
        same_type = structural_equal(match.chosen.checked_type, match.root.checked_type)
        return same_type and never_holds(match.graph, match.condition)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.chosen


class PlusZero(_Identity):
    """Drop the sum of integers and zeros."""

    zeros = is_constant()
    pattern = is_op("add")(_Identity.data, zeros)

    def where(self, match: Match) -> bool:
        same_type = structural_equal(match.data.checked_type, match.root.checked_type)
        return same_type and _is_integer_zero(match.zeros)


class TimesZero(Rule):
    """Replace the product of integers and zeros with zeros."""

    zeros = is_constant()
    pattern = is_op("multiply")(wildcard(), zeros)

    def where(self, match: Match) -> bool:
        return _is_integer_zero(match.zeros) and static_shape(match.root) is not None

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        dtype = match.root.checked_type.dtype
        return relay.const(np.zeros(known_shape(match.root), dtype), dtype)


class SplitIntoOne(_Identity):
    """Drop a split into one piece."""

    pieces = is_op("split")(_Identity.data)
    pattern = is_tuple_get_item(pieces)

    def where(self, match: Match) -> bool:
        return len(match.pieces.checked_type.fields) == 1


class SplitOfConcatenate(Rule):
    """Take a part of a concatenate from where it was before, if a split takes exactly this part.

    Heads of detectors concatenate what they give for all levels, which is then split by level.
    """

    parts = wildcard()
    whole = is_op("concatenate")(parts)
    pieces = is_op("split")(whole)
    pattern = is_tuple_get_item(pieces)

    def where(self, match: Match) -> bool:
        tensors = [*getattr(match.parts, "fields", ()), match.whole]
        return len(tensors) > 1 and all(static_shape(each) is not None for each in tensors)

    def plan(self, match: Match) -> relay.Expr | Answer:
        """The part that begins where the piece does, and is as long."""
        rank = len(match.whole.checked_type.shape)
        axis = int(match.whole.attrs.axis) % rank
        if axis != int(match.pieces.attrs.axis) % rank:
            return NO_MATCH
        lengths = [int(piece.shape[axis]) for piece in match.pieces.checked_type.fields]
        begin, length = sum(lengths[: match.root.index]), lengths[match.root.index]
        for part in match.parts.fields:
            if begin == 0 and known_shape(part)[axis] == length:
                return part
            begin -= known_shape(part)[axis]
        return NO_MATCH

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class FieldOfTuple(Rule):
    """Replace a field of a tuple with the expression that the tuple has there."""

    whole = wildcard()
    pattern = is_tuple_get_item(whole)

    def where(self, match: Match) -> bool:
        return isinstance(match.whole, relay.Tuple)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.whole.fields[match.root.index]


def _has_every_number_of(wider: str, dtype: str) -> bool:
    if "bfloat16" in (wider, dtype) or (dtype in ("int64", "uint64") and wider.startswith("float")):
        return False  # NumPy lacks bfloat16, and calls int64 to float64 safe
    return np.can_cast(dtype, wider, "safe")


def _is_integer_zero(expr: relay.Expr) -> bool:
    value = constant(expr)
    return value is not None and value.dtype.kind in "iu" and not value.any()


def _takes_all(dim: tir.PrimExpr, begin: tir.PrimExpr, end: tir.PrimExpr) -> bool:
    if int(begin) != 0:
        return False
    return int(end) >= (int(dim) if hasattr(dim, "value") else 2**31 - 1)


def _is_zero(length: tir.PrimExpr) -> bool:
    return getattr(length, "value", None) == 0


IDENTITIES = (
    TransposeToSameOrder,
    ReshapeToSameShape,
    Dropout,
    CastToSameType,
    CastUndone,
    SliceOfEverything,
    SqueezeUndone,
    WhereNever,
    PlusZero,
    TimesZero,
    ConcatenateOfEmpty,
    ConcatenateOfOne,
    SplitIntoOne,
    SplitOfConcatenate,
    FieldOfTuple,
)
