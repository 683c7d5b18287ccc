"""The numbers that scores exceed because a filter kept them."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay

from ..engine.expressions import op_name
from .filters import conditions, lower_bound
from .operators import keeps_column, keeps_elements
from .row_by_row import before_taking, mask_in_front


class Bound(NamedTuple):
    """A number that each score exceeds, or may equal if not strict."""

    number: float
    is_strict: bool

    def holds(self, scores: relay.Expr, dtype: str) -> relay.Expr:
        """Where scores of this type are above it."""
        compare = relay.greater if self.is_strict else relay.greater_equal
        return compare(scores, relay.const(self.number, dtype))


def bound(scores: relay.Expr) -> Bound | None:
    """A bound of scores by a filter that they passed, which so excludes NaN and -inf; None without one."""
    name = op_name(scores)
    if isinstance(scores, relay.TupleGetItem) and op_name(scores.tuple_value) in ("topk", "dyn.topk"):
        return bound(scores.tuple_value.args[0]) if scores.index == 0 else None
    if name in ("topk", "dyn.topk") or keeps_elements(scores):
        return bound(scores.args[0])
    if name == "concatenate" and isinstance(scores.args[0], relay.Tuple):
        parts = list(map(bound, scores.args[0].fields))
        known = [part for part in parts if part is not None]
        return min(known) if len(known) == len(parts) else None  # not strict comes before strict
    if name == "adv_index":
        return _bound_of_elements(*scores.args[0].fields)
    mask = mask_in_front(scores)
    before = None if mask is None else before_taking(scores, mask)
    found = None if before is None else _bound_by(mask, before)
    return bound(scores.args[0]) if found is None and name == "take" else found


def _bound_by(mask: relay.Expr, scores: relay.Expr) -> Bound | None:
    """The bound of scores where a mask is true."""
    for part in conditions(mask):
        for strict in (True, False):
            number = lower_bound(part, scores, strict)
            if number is not None:
                return Bound(number, strict)
    return None


def _bound_of_elements(data: relay.Expr, *indices: relay.Expr) -> Bound | None:
    """The bound of the elements that a mask of all axes selects."""
    columns = [_column_of_argwhere(index) for index in indices]
    places = columns[0][0] if columns[0] is not None else None
    if places is None or len(indices) != len(data.checked_type.shape):
        return None
    if any(
        each is None or each[1] != axis or not each[0].same_as(places) for axis, each in enumerate(columns)
    ):
        return None
    return _bound_by(places.args[0], data)


def _column_of_argwhere(index: relay.Expr) -> tuple[relay.Call, int] | None:
    """The call of argwhere that an index is a column of, and which."""
    while keeps_column(index):
        index = index.args[0]
    if not isinstance(index, relay.TupleGetItem) or op_name(index.tuple_value) != "split":
        return None
    split = index.tuple_value
    is_column = op_name(split.args[0]) == "argwhere" and int(split.attrs.axis) % 2 == 1
    return (split.args[0], index.index) if is_column else None


def is_bounded(scores: relay.Expr) -> bool:
    """Whether a filter that the scores passed excludes NaN and -inf."""
    return bound(scores) is not None
