"""Tensors by what their axes are, as reshapes and transposes move them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from topi_ext.attention.op import FLOATS
from topi_ext.attention.problem import BHND, BNHD

import tvm
from tvm import relay

from ...analysis.evaluate import value_of
from ...analysis.layouts import order_of_axes
from ...analysis.operators import keeps_order
from ...engine.expressions import constant, either_way, known_shape, op_name, scalar, static_shape

# What an axis is: N are the queries, M the keys, D the elements of queries and keys, E those of values. Batch
# and heads are one axis, of stride GROUP, or several, such as images, windows and heads: each has its stride
# in that one.
Axis = Union[str, int]
GROUP = 1
NONE = 0  # an axis of extent 1 that is none of these
ROOTS: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x)}


class View(NamedTuple):
    """A tensor and what its axes are."""

    expr: relay.Expr
    axes: tuple[Axis, ...]

    @property
    def extents(self) -> dict[Axis, int]:
        """Those of queries, keys and elements."""
        return {axis: extent for axis, extent in self.along if isinstance(axis, str)}

    @property
    def along(self) -> list[tuple[Axis, int]]:
        """Each axis and its extent."""
        return list(zip(self.axes, known_shape(self.expr)))


def operands(product: View, summed: str) -> tuple[View, View]:
    """The operands of a batch_matmul that sums over an axis."""
    attrs, (left, right), (group, rows, columns) = product.expr.attrs, product.expr.args, list(product.axes)
    of_left = (summed, rows) if attrs.transpose_a else (rows, summed)
    of_right = (columns, summed) if attrs.transpose_b else (summed, columns)
    return View(left, (group, *of_left)), View(right, (group, *of_right))


def scaled(view: View) -> tuple[View, float] | None:
    """What is multiplied by a constant, or divided, and the factor."""
    name = op_name(view.expr)
    if name not in ("multiply", "divide"):
        return None
    for data, number in either_way(view.expr)[: 2 if name == "multiply" else 1]:
        factor = _factor(number)
        if isinstance(factor, float) and static_shape(data) == static_shape(view.expr):
            if name == "divide":
                factor = 1 / factor if factor else math.inf
            return (View(data, view.axes), factor) if math.isfinite(factor) else None
    return None


def _factor(number: relay.Expr) -> Any:
    """The value of a constant, or of the root of one, as importers spell `length**-0.5`."""
    root = ROOTS.get(op_name(number) or "")
    if root is None:
        return scalar(number)
    square = scalar(number.args[0])
    return root(square) if isinstance(square, float) and square > 0 else None


def finite_tensor(expr: relay.Expr, inverse: bool) -> np.ndarray | None:
    """The value of a constant expression in float32, or its reciprocal, if all of it is finite."""
    if expr.checked_type.dtype not in FLOATS or static_shape(expr) is None or relay.analysis.free_vars(expr):
        return None
    value = value_of(expr)
    if value is None:  # such as the exponential of a weight, which NumPy rounds otherwise
        value = constant(relay.transform.FoldConstantExpr(expr, tvm.IRModule()))
    if value is None:
        return None
    value = value.astype("float32")
    if inverse:
        with np.errstate(divide="ignore"):
            value = 1 / value
    return value if np.isfinite(value).all() else None


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
        return View(expr.args[0], tuple(axes[order.index(axis)] for axis in range(len(order))))
    if not keeps_order(expr):
        return None
    before, after = static_shape(expr.args[0]), static_shape(expr)
    if before is None or after is None:
        return None
    found = _axes_before(list(zip(axes, after)), before)
    return None if found is None else View(expr.args[0], tuple(found))


def _axes_before(along: Sequence[tuple[Axis, int]], before: Sequence[int]) -> list[Axis] | None:
    """The axes of a tensor of the shape `before` that is reshaped to these axes; None if they mix."""
    if along and before and isinstance(along[0][0], str) and along[0][1] == before[0]:
        rest = _axes_before(along[1:], before[1:])
        if rest is not None:
            return [along[0][0], *rest]
    if before and before[0] == 1:
        rest = _axes_before(along, before[1:])
        return None if rest is None else [NONE, *rest]
    if along and along[0][1] == 1 and not isinstance(along[0][0], str):
        return _axes_before(along[1:], before)
    if not along or not before:
        return None if along or before else []
    count = next((n for n, (axis, _) in enumerate(along) if isinstance(axis, str)), len(along))
    for few in range(1, count + 1):
        nested = _nested(along[:few])
        for many in range(1, len(before) + 1):
            if nested is None or math.prod(before[:many]) != nested[1]:
                continue
            strides = [nested[0] * math.prod(before[at + 1 : many]) for at in range(many)]
            rest = _axes_before(along[few:], before[many:])
            return None if rest is None else [*strides, *rest]
    return None


def _nested(along: Sequence[tuple[Axis, int]]) -> tuple[int, int] | None:
    """Several axes of batch and heads as one, its stride and its extent; None where they are out of order."""
    (*outer, (step, extent)) = along
    if not isinstance(step, int):
        return None
    for stride, more in reversed(outer):
        if more > 1 and stride != step * extent:
            return None
        extent *= more
    return step, extent


def layout_of(along: Iterable[tuple[Axis, int]], size: tuple[int, int]) -> str | None:
    """The layout in which a reshape of these axes is, for this batch and number of heads."""
    heads = size[1]
    order: list[tuple[Axis, int]] = []
    for axis, extent in along:
        if isinstance(axis, str):
            order.append(({"M": "N", "E": "D"}.get(axis, axis), extent))
        elif axis < heads < axis * extent:
            if heads % axis or axis * extent % heads:
                return None
            order += [(heads, axis * extent // heads), (axis, heads // axis)]
        else:
            order.append((axis, extent))
    order = [each for each in order if each[1] > 1]
    for layout in (BHND, BNHD):
        if order == _in_layout(layout, order, heads):
            return layout
    return None


def _in_layout(layout: str, order: Sequence[tuple[Axis, int]], heads: int) -> list[tuple[Axis, int]]:
    """The same axes in the order of a layout."""
    of_group = sorted(((axis, extent) for axis, extent in order if isinstance(axis, int)), reverse=True)
    parts: dict[str, list[tuple[Axis, int]]] = {
        "B": [each for each in of_group if each[0] >= heads],
        "H": [each for each in of_group if each[0] < heads],
        **{axis: [each for each in order if each[0] == axis] for axis in "ND"},
    }
    return [each for axis in layout for each in parts[axis]]
