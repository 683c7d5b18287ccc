"""Between which numbers integers are, and which conditions therefore never hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from operator import add
from typing import Any, NamedTuple

import numpy as np

from tvm import relay

from .._graph import Graph
from .._matchers import constant, op_name

MOST = 2**40  # no tensor has as many elements
_OF_FIRST = (
    "broadcast_to",
    "cast",
    "dyn.broadcast_to",
    "dyn.strided_slice",
    "expand_dims",
    "reshape",
    "squeeze",
    "strided_slice",
    "take",
    "transpose",
)
_INDICES = ("argwhere", "shape_of")


class Limits(NamedTuple):
    """The least and the greatest number that an element may be."""

    least: float
    greatest: float


ALL = Limits(-math.inf, math.inf)


def never_holds(graph: Graph, condition: relay.Expr) -> bool:
    """Whether a condition is false for every element."""
    name = op_name(condition)
    if isinstance(condition, relay.Constant):
        return not constant(condition).any()
    if name in ("less", "less_equal", "greater", "greater_equal"):
        low, high = condition.args if name.startswith("less") else reversed(condition.args)
        least, greatest = limits(graph, low).least, limits(graph, high).greatest
        return least > greatest or (least == greatest and not name.endswith("equal"))
    if name == "logical_and":
        return any(never_holds(graph, arg) for arg in condition.args)
    if name in ("logical_or", "logical_xor"):
        return all(never_holds(graph, arg) for arg in condition.args)
    return False


def limits(graph: Graph, expr: relay.Expr) -> Limits:
    """Limits of the elements of a tensor, by what computes it; or those of its type."""
    known = graph.notes.setdefault(limits, {})
    if expr not in known:
        dtype = getattr(expr.checked_type, "dtype", "")
        known[expr] = _of_integers(graph, expr, np.iinfo(dtype)) if "int" in dtype else ALL
    return known[expr]


def _of_integers(graph: Graph, expr: relay.Expr, of_type: np.iinfo) -> Limits:
    least, greatest = _found(graph, expr, of_type) or ALL
    if of_type.min <= least and greatest <= of_type.max:
        return Limits(least, greatest)
    return Limits(int(of_type.min), int(of_type.max))  # it might wrap around


def _found(graph: Graph, expr: relay.Expr, of_type: np.iinfo) -> Limits | None:
    name = op_name(expr)
    if isinstance(expr, relay.Constant):
        values = constant(expr)
        return Limits(int(values.min()), int(values.max())) if values.size else None
    if name in _INDICES or (name is None and _is_index_of_topk(expr)):
        return Limits(0, min(MOST, int(of_type.max)))
    if name in _OF_FIRST:
        return limits(graph, expr.args[0])
    if name not in _COMPUTED:
        return None
    args = [part for arg in expr.args for part in (arg.fields if isinstance(arg, relay.Tuple) else [arg])]
    return _COMPUTED[name](*(limits(graph, arg) for arg in args))


def _is_index_of_topk(expr: relay.Expr) -> bool:
    of = op_name(expr.tuple_value) if isinstance(expr, relay.TupleGetItem) else None
    return of in ("topk", "dyn.topk") and expr.index == 1


def _any_of(*args: Limits) -> Limits:
    return Limits(min(arg.least for arg in args), max(arg.greatest for arg in args))


def _of_both(function: Callable[[Any, Any], float]) -> Callable[[Limits, Limits], Limits]:
    return lambda left, right: Limits(
        function(left.least, right.least), function(left.greatest, right.greatest)
    )


def _product(left: Limits, right: Limits) -> Limits:
    return _any_of(*(Limits(a * b, a * b) for a, b in product(left, right)))


def _quotient(left: Limits, right: Limits) -> Limits | None:
    return Limits(0, left.greatest) if min(left.least, right.least) >= 0 else None


def _remainder(_: Limits, divisor: Limits) -> Limits | None:
    return Limits(0, divisor.greatest - 1) if divisor.least > 0 else None


def _counted(start: Limits, stop: Limits, step: Limits) -> Limits | None:
    return Limits(start.least, max(start.least, stop.greatest - 1)) if step.least > 0 else None


_COMPUTED: dict[str, Callable[..., Limits | None]] = {
    "add": _of_both(add),
    "arange": _counted,
    "concatenate": _any_of,
    "divide": _quotient,
    "floor_divide": _quotient,
    "floor_mod": _remainder,
    "maximum": _of_both(max),
    "minimum": _of_both(min),
    "multiply": _product,
    "stack": _any_of,
}
