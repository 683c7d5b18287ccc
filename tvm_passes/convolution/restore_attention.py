"""Restore attention from the matrix products and the softmax that spell it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import topi_ext
from topi_ext.attention.cuda_tiles import EIGHT, MAX_LENGTH
from topi_ext.attention.op import FLOATS
from topi_ext.attention.op import NAME as ATTENTION
from topi_ext.attention.problem import BHND, BNHD

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.layouts import order_of_axes
from ..analysis.operators import keeps_order
from ..engine.expressions import either_way, known_shape, op_name, scalar, static_shape
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .reshape_back import ReshapeBack


class ProductsAroundSoftmax(Rule):
    """Replace `softmax(query key^T * scale + mask) value` with `topi_ext.attention`.

    Either product may be spelled the other way around, as (B^T A^T)^T. In between there may be reshapes that
    split or merge batch and heads, transposes, and casts from one floating-point type to another; the scale
    may be a factor or divisor of the scores, the queries or the keys.

    Why legal: the operator computes the same, in float32. The softmax is over the keys, the scale is a
    constant, and nothing else uses the scores or their softmax. Results differ by rounding.
    """

    pattern = is_op("nn.batch_matmul")(wildcard(), wildcard())

    def plan(self, match: Match) -> _Plan | Refusal | Answer:
        for side, (rows, columns) in enumerate(("NE", "EN")):
            operands = _operands(match.root, rows, columns, "M")
            weights, passed = _softmax_below(operands[side])
            if weights is not None:
                break
        else:
            return NO_MATCH
        if int(weights.expr.attrs.axis) % len(weights.axes) != weights.axes.index("M"):
            return Refusal("the softmax is not over the axis that the second product sums")
        scores = _scores_of(_View(weights.expr.args[0], weights.axes))
        if scores is None or isinstance(scores, Refusal):
            return scores or Refusal("the softmax is not of a product of queries and keys, scaled and masked")
        inside = [*passed, weights.expr, *scores.passed]
        if any(user not in [*inside, match.root] for node in inside for user in match.graph.users(node)):
            return Refusal("the scores or their softmax are used elsewhere, too")
        both = _operands(scores.product.expr, *scores.product.axes[1:], "D")
        query, key = both if "N" in both[0].axes else both[::-1]
        views = query, key, operands[1 - side]
        shapes = [static_shape(view.expr) for view in views]
        if None in shapes or static_shape(match.root) is None:
            return Refusal("a shape is dynamic")
        if len({shape[0] for shape in shapes}) > 1:
            return Refusal("one operand serves all items of the batch")
        if len({expr.checked_type.dtype for expr in (match.root, *(view.expr for view in views))}) > 1:
            return Refusal("queries, keys, values and result differ in type")
        if match.root.checked_type.dtype not in FLOATS or 0 in (extent for shape in shapes for extent in shape):
            return Refusal("it is empty, or not of floating-point numbers")
        lengths = [shape[view.axes.index(axis)] for view, shape, axis in zip(views, shapes, "DDE")]
        if any(length % EIGHT or length > MAX_LENGTH for length in lengths):
            return Refusal(f"vectors are no multiple of {EIGHT}, or longer than {MAX_LENGTH}")
        return _best_plan(views, scores, f"G{rows}{columns}")

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        result = topi_ext.attention(
            *plan.inputs, plan.mask, scale=plan.scale, layouts=(*plan.layouts, BHND)
        )
        result = result if plan.result == "GNE" else relay.transpose(result, [0, 1, 3, 2])
        return relay.reshape(result, known_shape(match.root))


class _View(NamedTuple):
    """A tensor and what its axes are.

    B is the batch, H the heads, G both as one axis, N the queries, M the keys, D the length of queries and
    keys, E that of values.
    """

    expr: relay.Expr
    axes: str


class _Scores(NamedTuple):
    """The product of queries and keys, what is done to it before the softmax, and the nodes in between."""

    product: _View
    scale: float
    masks: list[tuple[relay.Expr, _View]]  # each with the view to which it is added
    passed: list[relay.Expr]


class _Plan(NamedTuple):
    inputs: list[relay.Expr]
    mask: relay.Expr | None
    scale: float
    layouts: list[str]
    result: str  # the axes of the match's result


# --- what products and softmax are of


def _operands(product: relay.Call, rows: str, columns: str, summed: str) -> tuple[_View, _View]:
    """The operands of a batch_matmul whose result is (G, rows, columns)."""
    attrs, (left, right) = product.attrs, product.args
    of_left = summed + rows if attrs.transpose_a else rows + summed
    of_right = columns + summed if attrs.transpose_b else summed + columns
    return _View(left, f"G{of_left}"), _View(right, f"G{of_right}")


def _softmax_below(view: _View) -> tuple[_View | None, list[relay.Expr]]:
    """The softmax that a tensor is, moved or rounded, and the nodes that do it."""
    passed: list[relay.Expr] = []
    below: _View | None = view
    while below is not None and op_name(below.expr) != "nn.softmax":
        passed.append(below.expr)
        below = _uncast(below) or _moved(below)
    return below, passed


def _scores_of(view: _View) -> _Scores | Refusal | None:
    """The product below what a softmax is of; None if there is none."""
    scale, masks, passed = 1.0, [], []
    while True:
        passed.append(view.expr)
        name = op_name(view.expr)
        if name == "nn.batch_matmul":
            return _Scores(view, scale, masks, passed) if len(view.axes) == 3 and view.axes[0] == "G" else None
        if name == "add":
            return _masked(view, scale, passed)
        scaled = _scaled(view)
        if scaled is not None:
            view, factor = scaled
            scale *= factor
            continue
        below = _uncast(view) or _moved(view)
        if below is None:
            return None
        view = below


def _masked(view: _View, scale: float, passed: list[relay.Expr]) -> _Scores | Refusal | None:
    """The scores that are one operand of an addition, with the other one as their mask."""
    for data, mask in either_way(view.expr):
        if static_shape(data) is None or static_shape(data) != static_shape(view.expr):
            continue
        scores = _scores_of(_View(data, view.axes))
        if isinstance(scores, _Scores):
            if scale != 1.0:
                return Refusal("the mask is scaled, too")
            masks = [*scores.masks, (mask, view)]
            return scores._replace(masks=masks, passed=[*passed, *scores.passed])
    return None


def _scaled(view: _View) -> tuple[_View, float] | None:
    """What is multiplied by a constant, or divided, and the factor."""
    name = op_name(view.expr)
    if name not in ("multiply", "divide"):
        return None
    for data, number in either_way(view.expr) if name == "multiply" else [tuple(view.expr.args)]:
        factor = scalar(number)
        if isinstance(factor, float) and static_shape(data) == static_shape(view.expr):
            factor = factor if name == "multiply" else 1 / factor if factor else math.inf
            return (_View(data, view.axes), factor) if math.isfinite(factor) else None
    return None


def _uncast(view: _View) -> _View | None:
    """What is cast from one floating-point type to another."""
    if op_name(view.expr) != "cast":
        return None
    (data,) = view.expr.args
    is_float = {data.checked_type.dtype, view.expr.checked_type.dtype} <= set(FLOATS)
    return _View(data, view.axes) if is_float else None


def _moved(view: _View) -> _View | None:
    """What is transposed, or reshaped so that batch and heads are split or merged."""
    expr, axes = view
    if op_name(expr) in ("transpose", "layout_transform"):
        order = order_of_axes(expr)
        if order is None:
            return None
        return _View(expr.args[0], "".join(axes[order.index(axis)] for axis in range(len(order))))
    if not keeps_order(expr):
        return None
    (data, *_), after = expr.args, static_shape(expr)
    before = static_shape(data)
    if before is None or after is None:
        return None
    if before == after:
        return _View(data, axes)
    for old, new in (("G", "BH"), ("BH", "G")):
        at = axes.find(old)
        if at < 0:
            continue
        head, tail = at, at + len(old)
        merged = math.prod(after[head:tail])
        split = before[head : head + len(new)]
        if before == (*after[:head], *split, *after[tail:]) and math.prod(split) == merged:
            return _View(data, axes.replace(old, new))
    return None


# --- how the operator is called


def _best_plan(views: Sequence[_View], scores: _Scores, result: str) -> _Plan | Refusal:
    """The plan that needs the fewest transposes, of those with batch and heads apart or all as heads."""
    chains = [list(_below(view, is_scaled=at < 2)) for at, view in enumerate(views)]
    groups = known_shape(views[0].expr)[0]
    sizes = [(1, groups)]
    for each in [*(view for chain in chains for view, _ in chain), *(view for _, view in scores.masks)]:
        if "B" in each.axes:
            shape = known_shape(each.expr)
            size = shape[each.axes.index("B")], shape[each.axes.index("H")]
            sizes += [] if size in sizes else [size]
    plans = [_plan(chains, scores, result, size) for size in sizes]
    legal = [plan for plan in plans if plan is not None]
    if not legal:
        return Refusal("the mask is not by batch, head, query and key")
    return max(legal, key=lambda plan: plan.layouts.count(BNHD))


def _below(view: _View, is_scaled: bool) -> Iterator[tuple[_View, float]]:
    """What an operand is moved from, step by step, and the factor by which it was multiplied on the way."""
    scale, below = 1.0, view
    while below is not None:
        yield below, scale
        scaled = _scaled(below) if is_scaled else None
        if scaled is not None:
            below, factor = scaled
            scale *= factor
        else:
            below = _moved(below)


def _plan(
    chains: Sequence[Sequence[tuple[_View, float]]], scores: _Scores, result: str, size: tuple[int, int]
) -> _Plan | None:
    """The plan for this batch and number of heads; None if a mask does not have them."""
    inputs, layouts, scale = [], [], scores.scale
    for chain, vector in zip(chains, "DDE"):
        fitting = [(*each, _layout_of(each[0].axes, _extents(each[0]), size, vector)) for each in chain]
        fitting = [each for each in fitting if each[2] is not None]
        view, factor, layout = fitting[-1] if fitting else (*chain[0], BHND)
        extents = _extents(view)
        items = extents.get("N", extents.get("M"))
        given = view.expr if fitting else relay.transpose(view.expr, [0, 2, 1])
        by_axis = dict(zip("BHND", (*size, items, extents[vector])))
        inputs.append(relay.reshape(given, [by_axis[axis] for axis in layout]))
        layouts.append(layout)
        scale *= factor
    masks = [_aligned(mask, view, size) for mask, view in scores.masks]
    if None in masks or not math.isfinite(scale):
        return None
    return _Plan(inputs, reduce(relay.add, masks) if masks else None, scale, layouts, result)


def _layout_of(axes: str, extents: dict[str, int], size: Sequence[int], vector: str) -> str | None:
    """The layout in which a reshape of a view is, for this batch and number of heads."""
    axes = axes.replace("BH", "G")  # any size, if batch and heads are side by side
    if "B" in axes and (extents["B"], extents["H"]) != tuple(size):
        return None
    extents = {**extents, **dict(zip("BH", size))}
    order = axes.replace("G", "BH")
    for layout in (BHND, BNHD):
        wanted = layout.replace("N", "N" if "N" in axes else "M").replace("D", vector)
        if [a for a in order if extents[a] > 1] == [a for a in wanted if extents[a] > 1]:
            return layout
    return None


def _aligned(mask: relay.Expr, view: _View, size: tuple[int, int]) -> relay.Expr | None:
    """A mask that is added to a view, by batch, head, query and key."""
    shape, dtype = static_shape(mask), mask.checked_type.dtype
    if shape is None or dtype not in FLOATS:
        return None
    shape = (1,) * (len(view.axes) - len(shape)) + shape
    if view.axes == "GNM":
        shape = (*((1, 1) if shape[0] == 1 else size), *shape[1:])
    elif view.axes != "BHNM" or (known_shape(view.expr)[:2] != size and shape[:2] != (1, 1)):
        return None
    return relay.reshape(relay.cast(mask, "float32") if dtype != "float32" else mask, shape)


def _extents(view: _View) -> dict[str, int]:
    return dict(zip(view.axes, known_shape(view.expr)))


class TransposeOfResult(Rule):
    """Let the operator write what is transposed in the order in which it is needed.

    Why legal: the same numbers are in the same order; nothing else uses the result.
    """

    data = wildcard()
    pattern = is_op("transpose")(data)

    def plan(self, match: Match) -> list[relay.Expr] | Refusal | Answer:
        passed, shape = [match.data], static_shape(match.data)
        while keeps_order(passed[-1]):
            passed.append(passed[-1].args[0])
        attention, order = passed[-1], order_of_axes(match.root)
        if op_name(attention) != ATTENTION or str(attention.attrs["layouts"][3]) != BHND:
            return NO_MATCH
        size = known_shape(attention)
        if shape is None or order is None or shape[-2:] != size[2:] or len(shape) not in (3, 4):
            return NO_MATCH
        axes = "BHNE" if len(shape) == 4 else "GNE"
        after = "".join(axes[axis] for axis in order)
        if _layout_of(after, dict(zip(axes, shape)), size[:2], "E") != BNHD:
            return NO_MATCH
        below = [match.root, *passed]
        if any(user not in below for node in passed for user in match.graph.users(node)):
            return Refusal("the result is used elsewhere, too")
        return passed

    def rewrite(self, match: Match, plan: list[relay.Expr]) -> relay.Expr:
        layouts = [*map(str, plan[-1].attrs["layouts"][:3]), BNHD]
        result = _again(plan[-1], plan[-1].args[:3], layouts)
        return relay.reshape(result, known_shape(match.root))


class BetweenCasts(Rule):
    """Attend in half precision to what is in half precision, instead of casting it to float32 and back.

    Why legal: `topi_ext.attention` computes in float32, and rounds its result as the cast does.
    """

    query, key, value, mask = wildcard(), wildcard(), wildcard(), wildcard()
    wide = [is_op("cast")(each) for each in (query, key, value)]
    result = is_op(ATTENTION)(*wide, mask)
    pattern = is_op("cast")(result)

    def where(self, match: Match) -> bool:
        dtypes = {each.checked_type.dtype for each in (match.query, match.key, match.value, match.root)}
        return dtypes in ({"float16"}, {"bfloat16"})

    def plan(self, match: Match) -> Refusal | Answer:
        if match.used_elsewhere(match.result):
            return Refusal("the result is used elsewhere, too")
        return LEGAL

    def rewrite(self, match: Match, plan: Answer) -> relay.Expr:
        layouts = list(map(str, match.result.attrs["layouts"]))
        return _again(match.result, (match.query, match.key, match.value), layouts)


def _again(
    attention: relay.Call, inputs: Sequence[relay.Expr], layouts: Sequence[str]
) -> relay.Call:
    """The same attention, with other inputs or layouts."""
    attrs = attention.attrs
    mask = attention.args[3] if attrs["has_mask"] else None
    return topi_ext.attention(*inputs, mask, scale=float(attrs["scale"]), layouts=layouts)


class RestoreAttention(RulePass):
    """Replace the matrix products, the scale, the mask and the softmax of attention with one operator.

    >>> query, key, value = (relay.var(name, shape=(2, 10, 8)) for name in ("query", "key", "value"))
    >>> scores = relay.nn.batch_matmul(query, key) * relay.const(0.5)
    >>> y = relay.nn.batch_matmul(relay.nn.softmax(scores), value, transpose_b=False)
    >>> mod = tvm.IRModule.from_expr(relay.Function([query, key, value], y))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreAttention()(mod)))
    """

    rules = (ProductsAroundSoftmax, TransposeOfResult, BetweenCasts, ReshapeBack)
