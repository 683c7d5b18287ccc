"""With which tensors, in which layouts, the operator is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from topi_ext.attention.cuda_tiles import MAX_LENGTH
from topi_ext.attention.op import FLOATS
from topi_ext.attention.problem import BHND, BNHD

from tvm import relay

from ...engine.expressions import known_shape, shape_of_type, static_shape, type_of
from ...engine.rule import Refusal
from .scores import Scores
from .views import GROUP, NONE, Axis, View, layout_of, moved, scaled

Size = tuple[int, int]  # of the batch, and the number of heads


class Plan(NamedTuple):
    inputs: list[relay.Expr]
    mask: relay.Expr | None
    scale: float
    layouts: list[str]
    axes: str  # of the result, behind batch and heads


def why_not(result: relay.Expr, views: Sequence[View]) -> str | None:
    """Why the operator does not serve these queries, keys and values, or None."""
    shapes = [static_shape(each) for each in (result, *(view.expr for view in views))]
    if any(shape is None for shape in shapes):
        return "a shape is dynamic"
    if any(known_shape(view.expr)[0] != known_shape(result)[0] for view in views):
        return "one operand serves all items of the batch"
    dtypes = {each.checked_type.dtype for each in (result, *(view.expr for view in views))}
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        return "queries, keys, values and result are not of the same floating-point type"
    if any(0 in known_shape(view.expr) for view in views):
        return "it is empty"
    lengths = [view.extents[axis] for view, axis in zip(views, "DDE")]
    if max(lengths) > MAX_LENGTH:
        return f"vectors of {max(lengths)} are longer than {MAX_LENGTH}"
    return None


def plan_for(views: Sequence[View], scores: Scores, axes: str) -> Plan | Refusal:
    """The plan that needs the fewest transposes: either has batch and heads apart, or has all as heads.

    Those that are apart go first: with strides of their own, they may be read in place, and written there.
    """
    chains = [list(_below(view, is_scaled="D" in view.axes)) for view in views]
    seen = [view for chain in chains for view, _ in chain]
    seen += [view for _, view in scores.factors] + [mask.view for mask in scores.masks]
    whole = known_shape(views[0].expr)[0]
    heads = {axis for view in seen for axis, extent in view.along if isinstance(axis, int) and extent > 1}
    sizes = [(whole // each, each) for each in sorted(heads - {NONE, GROUP})] + [(1, whole)]
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
        fitting = [(each, layout) for each in chain if (layout := layout_of(each[0].along, size))]
        (view, factor), layout = fitting[-1] if fitting else (chain[0], BHND)
        given = view.expr if fitting else relay.transpose(view.expr, [0, 2, 1])
        inputs.append(relay.reshape(given, _shape(view, layout, size)))
        layouts.append(layout)
        scale *= factor
    mask = None
    for each in scores.masks:
        aligned = _aligned(each.tensor, each.view, size)
        if aligned is None:
            return None
        mask = each.onto(aligned, mask)
    for array, scaled_view in scores.factors:
        exponent = int(np.frexp(np.abs(array).max())[1])
        scale *= 2.0**exponent  # by which queries or keys in half precision might overflow
        aligned = _aligned(relay.const(np.ldexp(array, -exponent)), scaled_view, size)
        if aligned is None:
            return None
        of_keys = int(array.shape[scaled_view.axes.index("M")] > 1)
        inputs[of_keys] = _multiplied(inputs[of_keys], aligned, layouts[of_keys], is_of_keys=bool(of_keys))
    return Plan(inputs, mask, scale, layouts, axes) if math.isfinite(scale) else None


def _multiplied(data: relay.Expr, factor: relay.Expr, layout: str, is_of_keys: bool) -> relay.Expr:
    """Queries or keys, times what their scores are to be multiplied by: (B, H, N, 1) or (B, H, 1, M)."""
    order = [0, 1, 3, 2] if is_of_keys else [0, 1, 2, 3]
    order = order if layout == BHND else [order[at] for at in (0, 2, 1, 3)]
    dtype = type_of(data).dtype
    return relay.multiply(data, relay.cast(relay.transpose(factor, order), dtype))


def _shape(view: View, layout: str, size: Size) -> list[int]:
    """The shape of a view in a layout."""
    extents: dict[Axis, int] = {**view.extents, "B": size[0], "H": size[1]}
    kinds = {"B": "B", "H": "H", "N": "NM", "D": "DE"}
    return [next(extents[name] for name in kinds[axis] if name in extents) for axis in layout]


def _aligned(mask: relay.Expr, view: View, size: Size) -> relay.Expr | None:
    """What is added to a view, or where it is replaced, by batch, head, query and key."""
    shape, dtype = shape_of_type(type_of(mask)), type_of(mask).dtype
    if shape is None or dtype not in (*FLOATS, "bool"):
        return None
    shape = (1,) * (len(view.axes) - len(shape)) + shape
    *outer, query, key = [axis for axis, extent in view.along if isinstance(axis, str) or extent > 1]
    if (query, key) != ("N", "M") or outer != sorted(outer, key=_stride, reverse=True):
        return None
    sides: list[list[int]] = [[], []]  # the axes of the batch, and those of heads; one may be of both
    for at, (axis, extent) in enumerate(view.along):
        if isinstance(axis, int) and extent > 1:
            sides[0] += [at] if axis * extent > size[1] else []
            sides[1] += [at] if axis < size[1] else []
    is_split = bool(set(sides[0]) & set(sides[1]))
    for side in [sides[0] + sides[1]] if is_split else sides:
        if any(shape[at] > 1 for at in side):  # such as one mask of the windows for all images
            shape = tuple(view.along[at][1] if at in side else extent for at, extent in enumerate(shape))
    if shape != static_shape(mask):
        mask = relay.broadcast_to(mask, shape)
    batch, heads = (math.prod(shape[at] for at in side) for side in sides)
    ends = [shape[view.axes.index(axis)] for axis in "NM"]
    shape = (*((size if batch > 1 else (1, 1)) if is_split else (batch, heads)), *ends)
    return relay.reshape(mask if dtype in ("float32", "bool") else relay.cast(mask, "float32"), shape)


def _stride(axis: Axis) -> int:
    return axis if isinstance(axis, int) else 0
