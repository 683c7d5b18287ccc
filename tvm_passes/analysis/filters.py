"""Filters: the rows that a mask keeps, and what it says about their scores."""

from __future__ import annotations

import math

from tvm import relay

from ..engine.expressions import constant, op_name, scalar
from .operators import keeps_column, keeps_elements

LOWEST = -math.inf


def mask_of_rows(rows: relay.Expr) -> relay.Expr | None:
    """The mask whose true places `rows` lists, in order; None if it is something else."""
    if not isinstance(rows, relay.Call) or len(rows.checked_type.shape) != 1:
        return None
    # argwhere of a mask of rank 1 is one column, however it is transposed
    while keeps_column(rows) or _is_first_column(rows):
        rows = rows.args[0]
    if op_name(rows) != "argwhere" or len(rows.args[0].checked_type.shape) != 1:
        return None
    return rows.args[0]


def conditions(mask: relay.Expr) -> list[relay.Expr]:
    """The conditions that a mask is the conjunction of."""
    if op_name(mask) == "logical_and":
        return [part for arg in mask.args for part in conditions(arg)]
    return [mask]


def lower_bound(condition: relay.Expr, scores: relay.Expr, strict: bool = False) -> float | None:
    """The number that scores exceed (or may equal, if not strict) where the condition holds, or None."""
    name = op_name(condition)
    if name not in ("greater", "less") and (strict or name not in ("greater_equal", "less_equal")):
        return None
    above, below = condition.args if name.startswith("greater") else reversed(condition.args)
    number = scalar(below)
    # Nothing is above NaN; scores that may be -inf are not bounded.
    return number if above.same_as(scores) and number is not None and number > LOWEST else None


def is_bounded(scores: relay.Expr) -> bool:
    """Whether a filter that the scores passed excludes NaN and -inf."""
    name = op_name(scores)
    if isinstance(scores, relay.TupleGetItem) and op_name(scores.tuple_value) in ("topk", "dyn.topk"):
        return scores.index == 0 and is_bounded(scores.tuple_value.args[0])
    if name in ("topk", "dyn.topk") or keeps_elements(scores):
        return is_bounded(scores.args[0])
    if name == "concatenate" and isinstance(scores.args[0], relay.Tuple):
        return all(map(is_bounded, scores.args[0].fields))
    if name != "take":
        return False
    mask = mask_of_rows(scores.args[1])
    of_mask = mask is not None and any(
        lower_bound(part, scores.args[0]) is not None for part in conditions(mask)
    )
    return of_mask or is_bounded(scores.args[0])


def _is_first_column(take: relay.Expr) -> bool:
    if op_name(take) != "take":
        return False
    index, axis = constant(take.args[1]), take.attrs.axis
    return (
        index is not None
        and index.size == 1
        and int(index.item()) == 0
        and axis is not None
        and int(axis) == 1
    )
