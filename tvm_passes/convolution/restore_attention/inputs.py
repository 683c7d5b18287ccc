"""With which tensors, in which layouts, the operator is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from topi_ext.attention.cuda_tiles import EIGHT, MAX_LENGTH
from topi_ext.attention.op import FLOATS
from topi_ext.attention.problem import BHND, BNHD

from tvm import relay

from ...engine.expressions import known_shape, static_shape
from ...engine.rule import Refusal
from .scores import Scores
from .views import View, layout_of, moved, scaled

Size = tuple[int, int]  # of the batch, and the number of heads


class Plan(NamedTuple):
    inputs: list[relay.Expr]
    mask: relay.Expr | None
    scale: float
    layouts: list[str]
    axes: str  # of the result


def why_not(result: relay.Expr, views: Sequence[View]) -> str | None:
    """Why the operator does not serve these queries, keys and values, or None."""
    shapes = [static_shape(each) for each in (result, *(view.expr for view in views))]
    if any(shape is None for shape in shapes):
        return "a shape is dynamic"
    if any(view.extents["G"] != known_shape(result)[0] for view in views):
        return "one operand serves all items of the batch"
    dtypes = {each.checked_type.dtype for each in (result, *(view.expr for view in views))}
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        return "queries, keys, values and result are not of the same floating-point type"
    if any(0 in view.extents.values() for view in views):
        return "it is empty"
    lengths = [view.extents[axis] for view, axis in zip(views, "DDE")]
    unfit = [length for length in lengths if length % EIGHT or length > MAX_LENGTH]
    if unfit:
        return f"vectors of {unfit[0]} are no multiple of {EIGHT}, or longer than {MAX_LENGTH}"
    return None


def plan_for(views: Sequence[View], scores: Scores, axes: str) -> Plan | Refusal:
    """The plan that needs the fewest transposes: either has batch and heads apart, or has all as heads.

    Those that are apart go first: with strides of their own, they may be read in place, and written there.
    """
    chains = [list(_below(view, is_scaled="D" in view.axes)) for view in views]
    sizes = []
    for view in [*(view for chain in chains for view, _ in chain), *(view for _, view in scores.masks)]:
        if "B" in view.axes:
            sizes.append((view.extents["B"], view.extents["H"]))
    sizes.append((1, views[0].extents["G"]))
    plans = [_plan(chains, scores, axes, size) for size in dict.fromkeys(sizes)]
    legal = [plan for plan in plans if plan is not None]
    if not legal:
        return Refusal("the mask is not by batch, head, query and key")
    return max(legal, key=lambda plan: plan.layouts.count(BNHD))


def _below(view: View, is_scaled: bool) -> Iterator[tuple[View, float]]:
    """What an operand is moved from, step by step, and the factor by which it was multiplied on the way."""
    scale, below = 1.0, view
    while True:
        yield below, scale
        found = scaled(below) if is_scaled else None
        if found is not None:
            below, factor = found
            scale *= factor
            continue
        next_one = moved(below)
        if next_one is None:
            return
        below = next_one


def _plan(
    chains: Sequence[Sequence[tuple[View, float]]], scores: Scores, axes: str, size: Size
) -> Plan | None:
    """The plan for this size; None if a mask has another one."""
    inputs, layouts, scale = [], [], scores.scale
    for chain in chains:
        fitting = [
            (each, layout) for each in chain if (layout := layout_of(each[0].axes, each[0].extents, size))
        ]
        (view, factor), layout = fitting[-1] if fitting else (chain[0], BHND)
        given = view.expr if fitting else relay.transpose(view.expr, [0, 2, 1])
        inputs.append(relay.reshape(given, _shape(view, layout, size)))
        layouts.append(layout)
        scale *= factor
    masks = [_aligned(mask, view, size) for mask, view in scores.masks]
    if any(mask is None for mask in masks) or not math.isfinite(scale):
        return None
    return Plan(inputs, reduce(relay.add, masks) if masks else None, scale, layouts, axes)


def _shape(view: View, layout: str, size: Size) -> list[int]:
    """The shape of a view in a layout."""
    extents = {**view.extents, "B": size[0], "H": size[1]}
    kinds = {"B": "B", "H": "H", "N": "NM", "D": "DE"}
    return [next(extents[name] for name in kinds[axis] if name in extents) for axis in layout]


def _aligned(mask: relay.Expr, view: View, size: Size) -> relay.Expr | None:
    """A mask that is added to a view, by batch, head, query and key."""
    shape, dtype = static_shape(mask), mask.checked_type.dtype
    if shape is None or dtype not in FLOATS:
        return None
    shape = (1,) * (len(view.axes) - len(shape)) + shape
    if view.axes == "GNM":
        shape = (*((1, 1) if shape[0] == 1 else size), *shape[1:])
    elif view.axes != "BHNM" or (known_shape(view.expr)[:2] != size and shape[:2] != (1, 1)):
        return None
    return relay.reshape(mask if dtype == "float32" else relay.cast(mask, "float32"), shape)
