"""Read a tensor itself where its parts are concatenated again, and slice where one part is used."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple_get_item, wildcard

from ...engine.expressions import known_shape, op_name, static_shape
from ...engine.rule import NO_MATCH, Answer, Match, Rule


class WholeForParts(Rule):
    """Replace `concatenate(split(x).0, split(x).1, y)` with `concatenate(x, y)`, or with x if that is all.

    Blocks that compute on half of the channels and then concatenate all of them are written like this.

    Why legal: the parts of a split, all of them, in order and along the same axis, are what was split.
    """

    parts = wildcard()
    pattern = is_op("concatenate")(parts)

    def plan(self, match: Match) -> list[relay.Expr] | Answer:
        """What to concatenate instead."""
        if not isinstance(match.parts, relay.Tuple):
            return NO_MATCH
        left, found = list(match.parts.fields), []
        while left:
            whole = _whole(left, int(match.root.attrs.axis) % len(match.root.checked_type.shape))
            found.append(left[0] if whole is None else whole.args[0])
            left = left[1 if whole is None else len(whole.checked_type.fields) :]
        return NO_MATCH if len(found) == len(match.parts.fields) else found

    def rewrite(self, match: Match, plan: list[relay.Expr]) -> relay.Expr:
        return plan[0] if len(plan) == 1 else relay.concatenate(plan, int(match.root.attrs.axis))


def _whole(fields: list[relay.Expr], axis: int) -> relay.Call | None:
    """The split along the axis all of whose parts are the first of these fields, in order; or None."""
    split = fields[0].tuple_value if isinstance(fields[0], relay.TupleGetItem) else None
    if split is None or op_name(split) != "split":
        return None
    count = len(split.checked_type.fields)
    of_it = [field for field in fields[:count] if isinstance(field, relay.TupleGetItem)]
    in_order = [field.index for field in of_it if field.tuple_value.same_as(split)] == list(range(count))
    return (
        split if in_order and int(split.attrs.axis) % len(split.args[0].checked_type.shape) == axis else None
    )


class Slice(NamedTuple):
    begin: int
    end: int
    axis: int


class SliceForPart(Rule):
    """Replace the only part of a split that is used with a slice, which later operators take in.

    Why legal: a part is a slice, and its place follows from the lengths of the parts, which are static.
    """

    data = wildcard()
    split = is_op("split")(data)
    pattern = is_tuple_get_item(split)

    def plan(self, match: Match) -> Slice | Answer:
        if any(
            not isinstance(user, relay.TupleGetItem) or user.index != match.root.index
            for user in match.graph.users(match.split)
        ):
            return NO_MATCH
        if static_shape(match.data) is None:
            return NO_MATCH
        axis = int(match.split.attrs.axis) % len(known_shape(match.data))
        lengths = [int(type_.shape[axis]) for type_ in match.split.checked_type.fields]
        end = sum(lengths[: match.root.index + 1])
        return Slice(end - lengths[match.root.index], end, axis)

    def rewrite(self, match: Match, plan: Slice) -> relay.Expr:
        return relay.strided_slice(match.data, [plan.begin], [plan.end], axes=[plan.axis])
