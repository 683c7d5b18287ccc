"""The limits of the elements of a tensor, and how arithmetic changes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple


class Limits(NamedTuple):
    """The least and the greatest number that an element may be."""

    least: float
    greatest: float


ALL = Limits(-math.inf, math.inf)
PLACES = Limits(0, 2**40)  # positions and lengths: no tensor has as many elements

Rule = Callable[..., "Limits | None"]  # over the limits of a call's operands, with tuples flattened


def any_of(*args: Limits) -> Limits:
    """The limits of elements taken from any of these."""
    return Limits(min(arg.least for arg in args), max(arg.greatest for arg in args))


def of_both(function: Callable[[Any, Any], float]) -> Rule:
    """The limits of a function that increases with both its arguments."""
    return lambda left, right: Limits(
        function(left.least, right.least), function(left.greatest, right.greatest)
    )


def of_difference(left: Limits, right: Limits) -> Limits:
    return Limits(left.least - right.greatest, left.greatest - right.least)


def of_product(left: Limits, right: Limits) -> Limits:
    corners = [a * b if a and b else 0 for a, b in product(left, right)]  # 0 times infinity is 0
    return Limits(min(corners), max(corners))


def of_quotient(left: Limits, right: Limits) -> Limits | None:
    return Limits(0, left.greatest) if min(left.least, right.least) >= 0 else None


def of_remainder(_: Limits, divisor: Limits) -> Limits | None:
    return Limits(0, max(0, divisor.greatest - 1)) if divisor.least >= 0 else None


def of_arange(start: Limits, stop: Limits, step: Limits) -> Limits | None:
    return Limits(start.least, max(start.least, stop.greatest - 1)) if step.least > 0 else None


def of_where(_: Limits, true: Limits, false: Limits) -> Limits:
    return any_of(true, false)


def always(least: float, greatest: float) -> Rule:
    return lambda *_: Limits(least, greatest)
