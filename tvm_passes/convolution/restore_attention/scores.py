"""What a softmax is of: a product of queries and keys, which is scaled and masked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tvm import relay

from ...engine.expressions import either_way, op_name, scalar, static_shape
from ...engine.rule import Refusal
from .views import GROUP, NONE, View, finite_tensor, moved, scaled, uncast

UNKNOWN = Refusal("the softmax is not of a product of queries and keys, scaled and masked")
# Float32 has no fractions from here on, so no softmax of scores as low as that means anything. `LOWEST` takes
# the place of such numbers, unless they are lower: it stays itself whatever score is added to it.
LOW, LOWEST = -(2.0**24), -1e30


class Sum(NamedTuple):
    """A mask that is added to scores."""

    view: View  # the sum
    tensor: relay.Expr
    factor: float

    def onto(self, aligned: relay.Expr, mask: relay.Expr | None) -> relay.Expr:
        """The mask for this sum and for what is below, whose own mask there is."""
        aligned = aligned if self.factor == 1.0 else aligned * relay.const(self.factor, "float32")
        return aligned if mask is None else relay.add(mask, aligned)


class Fill(NamedTuple):
    """A number that takes the place of some scores, which are excluded."""

    view: View  # the result
    tensor: relay.Expr  # of booleans
    number: float
    where: bool  # what the booleans are at the scores that are excluded

    def onto(self, aligned: relay.Expr, mask: relay.Expr | None) -> relay.Expr:
        """As of a sum: to the scores that are excluded, the number is added."""
        number, other = relay.const(self.number, "float32"), relay.const(0.0) if mask is None else mask
        return relay.where(aligned, *((number, other) if self.where else (other, number)))


class Scores(NamedTuple):
    """The product of queries and keys, what is done to it before the softmax, and the nodes that do it."""

    product: View
    scale: float
    factors: list[tuple[np.ndarray, View]]  # by which the product is multiplied, and what the result is
    masks: list[Sum | Fill]  # in the order in which they come after that
    passed: list[relay.Expr]  # the product is the last one


def softmax_below(view: View) -> tuple[View, list[relay.Expr]] | None:
    """The softmax that a tensor is, moved or rounded, and the nodes that do it."""
    passed = []
    below: View | None = view
    while below is not None and op_name(below.expr) != "nn.softmax":
        passed.append(below.expr)
        below = uncast(below) or moved(below)
    return None if below is None else (below, passed)


def scores_of(view: View, outer: float = 1.0) -> Scores | Refusal:
    """The scores that a softmax is of; those of the view are multiplied by `outer`."""
    passed: list[relay.Expr] = []
    factors: list[tuple[np.ndarray, View]] = []
    scale, below = 1.0, view
    while op_name(below.expr) not in ("nn.batch_matmul", "add", "where"):
        passed.append(below.expr)
        found = scaled(below)
        if found is not None:
            below, factor = found
            scale *= factor
            continue
        multiplied = _multiplied(below)
        if multiplied is not None:
            factors.append((multiplied[1], below))
            below = multiplied[0]
            continue
        next_one = uncast(below) or moved(below)
        if next_one is None:
            return UNKNOWN
        below = next_one
    passed.append(below.expr)
    if op_name(below.expr) != "nn.batch_matmul":
        masked = (_summed if op_name(below.expr) == "add" else _filled)(below, scale * outer)
        if isinstance(masked, Refusal):
            return masked
        if factors:
            return Refusal("the mask is multiplied by a tensor, too")
        return masked._replace(scale=masked.scale * scale, passed=[*passed, *masked.passed])
    # Batch and heads must be those of the product, whose other axes are queries and keys. An extent of 1 is
    # any of those that are 1.
    group, *others = below.axes
    if group not in (GROUP, NONE) or sorted(map(str, others)) != ["M", "N"]:
        return UNKNOWN
    return Scores(below._replace(axes=(GROUP, *others)), scale, factors, [], passed)


def _summed(view: View, outer: float) -> Scores | Refusal:
    """The scores that are one operand of a sum, with the other one as their mask."""
    for data, mask in either_way(view.expr):
        if static_shape(data) is None or static_shape(data) != static_shape(view.expr):
            continue
        scores = scores_of(View(data, view.axes), outer)
        if not isinstance(scores, Refusal):
            return scores._replace(masks=[*scores.masks, Sum(view, mask, outer)])
        if scores is not UNKNOWN:
            return scores
    return UNKNOWN


def _filled(view: View, outer: float) -> Scores | Refusal:
    """The scores of which some are replaced by a number."""
    condition, *both = view.expr.args
    for data, filling, where in ((*both, False), (*both[::-1], True)):
        number = scalar(filling)
        if not isinstance(number, float) or static_shape(data) != static_shape(view.expr):
            continue
        scores = scores_of(View(data, view.axes), outer)
        if isinstance(scores, Refusal):
            return scores
        if condition.checked_type.dtype != "bool":
            return UNKNOWN
        low = float(np.finfo("float16").min) if data.checked_type.dtype == "float16" else LOW
        if not number * outer <= low:
            return Refusal(f"scores are replaced by {number:g}, which others may be near")
        number = min(number * outer, LOWEST) if number * outer >= np.finfo("float32").min else -np.inf
        return scores._replace(masks=[*scores.masks, Fill(view, condition, number, where)])
    return UNKNOWN


def _multiplied(view: View) -> tuple[View, np.ndarray] | None:
    """What is multiplied or divided by constants that are the same for all keys, or for all queries."""
    name = op_name(view.expr)
    if name not in ("multiply", "divide"):
        return None
    for data, tensor in either_way(view.expr)[: 2 if name == "multiply" else 1]:
        factor = finite_tensor(tensor, inverse=name == "divide")
        if factor is None or static_shape(data) != static_shape(view.expr):
            continue
        factor = factor.reshape((1,) * (len(view.axes) - factor.ndim) + factor.shape)
        wide = {axis for axis, extent in zip(view.axes, factor.shape) if extent > 1}
        return None if wide >= {"N", "M"} else (View(data, view.axes), factor)
    return None
