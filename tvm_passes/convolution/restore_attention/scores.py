"""What a softmax is of: a product of queries and keys, which is scaled and masked."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay

from ...engine.expressions import either_way, op_name, static_shape
from ...engine.rule import Refusal
from .views import GROUP, NONE, View, moved, scaled, uncast

UNKNOWN = Refusal("the softmax is not of a product of queries and keys, scaled and masked")


class Scores(NamedTuple):
    """The product of queries and keys, what is done to it before the softmax, and the nodes that do it."""

    product: View
    scale: float
    masks: list[tuple[relay.Expr, View]]  # each with the sum whose other operand is the scores
    passed: list[relay.Expr]  # the product is the last one


def softmax_below(view: View) -> tuple[View, list[relay.Expr]] | None:
    """The softmax that a tensor is, moved or rounded, and the nodes that do it."""
    passed = []
    below: View | None = view
    while below is not None and op_name(below.expr) != "nn.softmax":
        passed.append(below.expr)
        below = uncast(below) or moved(below)
    return None if below is None else (below, passed)


def scores_of(view: View) -> Scores | Refusal:
    """The scores that a softmax is of."""
    passed: list[relay.Expr] = []
    scale, below = 1.0, view
    while op_name(below.expr) not in ("nn.batch_matmul", "add"):
        passed.append(below.expr)
        found = scaled(below)
        if found is not None:
            below, factor = found
            scale *= factor
            continue
        next_one = uncast(below) or moved(below)
        if next_one is None:
            return UNKNOWN
        below = next_one
    passed.append(below.expr)
    if op_name(below.expr) == "add":
        return _masked(below, scale, passed)
    # Batch and heads must be those of the product, whose other axes are queries and keys. An extent of 1 is
    # any of those that are 1.
    group, *others = below.axes
    if group not in (GROUP, NONE) or sorted(map(str, others)) != ["M", "N"]:
        return UNKNOWN
    return Scores(below._replace(axes=(GROUP, *others)), scale, [], passed)


def _masked(view: View, scale: float, passed: list[relay.Expr]) -> Scores | Refusal:
    """The scores that are one operand of a sum, with the other one as their mask."""
    for data, mask in either_way(view.expr):
        if static_shape(data) is None or static_shape(data) != static_shape(view.expr):
            continue
        scores = scores_of(View(data, view.axes))
        if isinstance(scores, Refusal):
            continue
        if scale != 1.0:
            return Refusal("the mask is scaled, too")
        return scores._replace(masks=[*scores.masks, (mask, view)], passed=[*passed, *scores.passed])
    return UNKNOWN
