"""Tensors by what their axes are, as reshapes and transposes move them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from topi_ext.attention.op import FLOATS
from topi_ext.attention.problem import BHND, BNHD

from tvm import relay

from ...analysis.layouts import order_of_axes
from ...analysis.operators import keeps_order
from ...engine.expressions import either_way, known_shape, op_name, scalar, static_shape


class View(NamedTuple):
    """A tensor and what its axes are.

    B is the batch, H the heads, G both as one axis, N the queries, M the keys, D the length of queries and
    keys, E that of values.
    """

    expr: relay.Expr
    axes: str

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.axes, known_shape(self.expr)))


def operands(product: View, summed: str) -> tuple[View, View]:
    """The operands of a batch_matmul that sums over an axis."""
    attrs, (left, right), (group, rows, columns) = product.expr.attrs, product.expr.args, list(product.axes)
    of_left = summed + rows if attrs.transpose_a else rows + summed
    of_right = columns + summed if attrs.transpose_b else summed + columns
    return View(left, group + of_left), View(right, group + of_right)


def scaled(view: View) -> tuple[View, float] | None:
    """What is multiplied by a constant, or divided, and the factor."""
    name = op_name(view.expr)
    if name not in ("multiply", "divide"):
        return None
    for data, number in either_way(view.expr)[: 2 if name == "multiply" else 1]:
        factor = scalar(number)
        if isinstance(factor, float) and static_shape(data) == static_shape(view.expr):
            if name == "divide":
                factor = 1 / factor if factor else math.inf
            return (View(data, view.axes), factor) if math.isfinite(factor) else None
    return None


def uncast(view: View) -> View | None:
    """What is cast from one floating-point type to another."""
    if op_name(view.expr) != "cast":
        return None
    (data,) = view.expr.args
    is_float = {data.checked_type.dtype, view.expr.checked_type.dtype} <= set(FLOATS)
    return View(data, view.axes) if is_float else None


def moved(view: View) -> View | None:
    """What is transposed, or reshaped so that batch and heads are split or merged."""
    expr, axes = view
    if op_name(expr) in ("transpose", "layout_transform"):
        order = order_of_axes(expr)
        if order is None:
            return None
        return View(expr.args[0], "".join(axes[order.index(axis)] for axis in range(len(order))))
    if not keeps_order(expr):
        return None
    data = expr.args[0]
    before, after = static_shape(data), static_shape(expr)
    if before is None or after is None:
        return None
    if before == after:
        return View(data, axes)
    for new, old in (("G", "BH"), ("BH", "G")):
        head, _, tail = axes.partition(new)
        if head == axes:
            continue
        first, last = len(head), len(after) - len(tail)
        parts = before[first : len(before) - len(tail)]
        is_same = before == (*after[:first], *parts, *after[last:])
        if is_same and len(parts) == len(old) and math.prod(parts) == math.prod(after[first:last]):
            return View(data, head + old + tail)
    return None


def layout_of(axes: str, extents: Mapping[str, int], size: tuple[int, int]) -> str | None:
    """The layout in which a reshape of a view is, for this batch and number of heads."""
    axes = axes.replace("BH", "G")  # of any size, where batch and heads are side by side
    if "B" in axes and (extents["B"], extents["H"]) != size:
        return None
    all_extents = {**extents, "B": size[0], "H": size[1]}
    order = [axis for axis in axes.replace("G", "BH") if all_extents[axis] > 1]
    item, element = (next(axis for axis in axes if axis in kind) for kind in ("NM", "DE"))
    for layout in (BHND, BNHD):
        wanted = layout.replace("N", item).replace("D", element)
        if order == [axis for axis in wanted if all_extents[axis] > 1]:
            return layout
    return None
