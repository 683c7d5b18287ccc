"""Filters: the rows that a mask keeps, and what it says about their scores."""

from __future__ import annotations

import math

from tvm import relay

from ..engine.expressions import constant, is_same, op_name, scalar, type_of
from .columns import Column, source_of
from .operators import keeps_column

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
    return number if number is not None and number > LOWEST and _are_same(above, scores) else None


def _are_same(left: relay.Expr, right: relay.Expr) -> bool:
    if is_same(left, right):
        return True
    if len(type_of(left).shape) != 1 or len(type_of(right).shape) != 1:
        return False
    one, other = (source_of(Column(each)) for each in (left, right))
    if one.place == other.place and is_same(one.of, other.of):
        return True
    # YOLOX filters by the product of columns, puts them side by side, and multiplies them once more.
    if op_name(one.of) != "multiply" or op_name(other.of) != "multiply":
        return False
    return any(
        all(map(_are_same, one.of.args, factors)) for factors in (other.of.args, reversed(other.of.args))
    )


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
