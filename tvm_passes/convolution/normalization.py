"""What spells a normalization, and what may follow it: rules that serve the passes that restore one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import topi_ext
from topi_ext.authoring import known
from topi_ext.corrections.convert_layout import GROUP_NORM, LAYER_NORM
from topi_ext.layer_norm.op import FLOATS

from tvm import relay
from tvm.relay.dataflow_pattern import DFPattern, is_constant, is_op, wildcard

from ..analysis.convolution import as_constant, of_each_channel
from ..analysis.operators import as_first_shaped, keeps_order, reduced_axes
from ..engine.expressions import constant, is_same, op_name, scalar, static_shape
from ..engine.match import any_op
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule
from .fused_call import given_activation


def _or_cast(pattern: DFPattern) -> DFPattern:
    return pattern | is_op("cast")(pattern)


class DividedDifference(Rule):
    """Replace `(x - mean(x)) / sqrt(variance(x) + epsilon)` with an operator.

    The rules of the passes say along which axes, what the spellings are, and why that is legal.
    """

    x, mean, variance, epsilon = wildcard(), wildcard(), wildcard(), is_constant()
    one, half, minus_half = is_constant(), is_constant(), is_constant()
    shifted = _or_cast(is_op("add")(variance, epsilon))
    root_ = _or_cast(is_op("sqrt")(shifted) | is_op("power")(shifted, half))
    inverse = is_op("rsqrt")(shifted) | is_op("divide")(one, root_) | is_op("power")(shifted, minus_half)
    inverse = _or_cast(inverse)
    difference = is_op("subtract")(x, mean)
    pattern = is_op("divide")(difference, root_) | is_op("multiply")(difference, inverse)

    def where(self, match: Match) -> bool:
        numbers = (match.one, 1.0), (match.half, 0.5), (match.minus_half, -0.5)
        return all(given is None or scalar(given) == wanted for given, wanted in numbers)

    def plan(self, match: Match) -> Plan | Refusal | Answer:
        mean, variance = _mean_of(match.mean), _variance_of(match.variance)
        if mean is None or variance is None:
            return NO_MATCH
        means = mean, variance.mean_of_data, variance.mean_of_squares
        data = _uncast(match.x)
        if not all(is_same(_uncast(each), data) for each in (mean.source, variance.data, means[1].source)):
            return Refusal("the mean and the variance are not those of the data from which the mean is taken")
        if any(each.axes != mean.axes for each in means):
            return Refusal("the mean and the variance are not along the same axis")
        type_ = match.x.checked_type
        refusal = self.why_not_along(mean.axes, len(type_.shape))
        if refusal is not None:
            return refusal
        lengths = [known(type_.shape[axis]) for axis in mean.axes]
        if None in lengths:
            return Refusal("the length of the axis is known only at run time")
        count = math.prod(length or 0 for length in lengths)
        if means[2].divisor == count - 1:
            return Refusal("the variance is unbiased: it is divided by one less than the length of the axis")
        if any(each.divisor != count for each in means):
            return NO_MATCH
        if not all(each.keeps_axes for each in means) or match.root.checked_type != type_:
            return Refusal("the mean or the variance does not keep the axis")
        value = constant(match.epsilon)
        epsilon = math.nan if value is None or value.size != 1 else float(value.item())
        refusal = why_not_by_operator(type_.dtype, epsilon)
        return refusal or Plan(min(mean.axes), epsilon, frozenset(mean.axes))

    def why_not_along(self, axes: set[int], rank: int) -> Refusal | Answer | None:
        """Why data are not normalized over these axes, or None if they are."""
        raise NotImplementedError


class Plan(NamedTuple):
    axis: int
    epsilon: float
    axes: frozenset[int] = frozenset()  # where there are several


def why_not_by_operator(dtype: str, epsilon: float) -> Refusal | None:
    """Why the operators of `topi_ext` do not normalize data of this type, or with this epsilon; or None."""
    if dtype not in FLOATS:
        return Refusal(f"{dtype} would be computed in float32")
    if not (math.isfinite(epsilon) and epsilon > 0):
        return Refusal("epsilon is not a number above 0")
    return None


class _Mean(NamedTuple):
    """What is summed along which axes, and what the sum is divided by."""

    source: relay.Expr
    axes: set[int]
    divisor: float  # NaN if it is known only at run time
    keeps_axes: bool  # with a length of 1


class _Variance(NamedTuple):
    """The mean of the squares of differences of data from their mean."""

    data: relay.Expr
    mean_of_data: _Mean
    mean_of_squares: _Mean


def _mean_of(expr: relay.Expr) -> _Mean | None:
    """What an expression is the mean of, which may be spelled as a sum that is divided and reshaped."""
    node, divisor = _uncast(expr), 1.0
    while keeps_order(node) or (op_name(node) == "divide" and scalar(node.args[1]) is not None):
        divisor *= 1.0 if keeps_order(node) else float(scalar(node.args[1]))
        node = _uncast(node.args[0])
    return _reduced(node, divisor, expr) if op_name(node) in ("mean", "sum") else None


def _variance_of(expr: relay.Expr) -> _Variance | None:
    """The variance that an expression computes, by TVM's operator or as a mean of squares."""
    if op_name(expr) == "variance":
        difference, of_squares = expr, _reduced(expr, 1.0, expr, int(expr.attrs.unbiased))
    else:
        mean = _mean_of(expr)
        difference = None if mean is None else _squared(_uncast(mean.source))
        if mean is None or op_name(difference) != "subtract":
            return None
        of_squares = mean
    data, center = difference.args  # the operands of TVM's operator are those of the difference, too
    of_data = _mean_of(center)
    return None if of_data is None else _Variance(data, of_data, of_squares)


def _reduced(node: relay.Call, divisor: float, result: relay.Expr, less: int = 0) -> _Mean:
    """A sum, or a mean over all elements but so many `less`, that is divided and reshaped to a result."""
    source, axes = node.args[0], reduced_axes(node)
    lengths = [known(length) for length in source.checked_type.shape]
    count = math.prod(lengths[axis] or math.nan for axis in axes) - less
    if result.same_as(node):
        keeps_axes = bool(node.attrs.keepdims)
    else:
        keeps_axes = static_shape(result) == tuple(1 if at in axes else n for at, n in enumerate(lengths))
    return _Mean(source, axes, divisor if op_name(node) == "sum" else divisor * count, keeps_axes)


def _squared(expr: relay.Call) -> relay.Expr | None:
    """What an expression is the square of."""
    if op_name(expr) == "multiply" and is_same(*expr.args):
        return _uncast(expr.args[0])
    return _uncast(expr.args[0]) if op_name(expr) == "power" and scalar(expr.args[1]) == 2 else None


def _uncast(expr: relay.Expr) -> relay.Expr:
    """What is cast, from one floating-point type to another."""
    while op_name(expr) == "cast" and {str(expr.attrs.dtype), expr.args[0].checked_type.dtype} <= set(FLOATS):
        expr = expr.args[0]
    return expr


NORM = any_op((LAYER_NORM, GROUP_NORM), wildcard(), wildcard(), wildcard())


class FactorOrAddend(Rule):
    """Make a factor or an addend of each channel behind a normalization its gamma or beta.

    Why legal: the operator multiplies by gamma and adds beta, in this order, before it rounds. Nothing else
    uses its result, and its own gamma and beta, if it has them, do not come later.
    """

    norm = NORM
    numbers = wildcard()
    pattern = (
        is_op("multiply")(norm, numbers) | is_op("add")(norm, numbers) | is_op("nn.bias_add")(norm, numbers)
    )

    def where(self, match: Match) -> bool:
        attrs = match.norm.attrs
        if is_activated(match.norm):
            return False
        return not attrs["has_beta"] and not (op_name(match.root) == "multiply" and attrs["has_gamma"])

    def plan(self, match: Match) -> np.ndarray | Refusal | Answer:
        shape, numbers = match.norm.checked_type.shape, reshaped_constant(match.numbers)
        if numbers is None:
            return NO_MATCH
        axis = int(match.norm.attrs["axis"]) % len(shape)
        vector = of_each_channel(numbers, len(shape), axis)
        if op_name(match.root) == "nn.bias_add":
            vector = constant(numbers) if int(match.root.attrs.axis) % len(shape) == axis else None
        if vector is None:
            return Refusal("what follows does not have a number for each channel")
        if match.used_elsewhere(match.norm):
            return Refusal("the normalized data are used elsewhere, too")
        return np.broadcast_to(vector.astype("float32"), [int(shape[axis])])

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        name = "gamma" if op_name(match.root) == "multiply" else "beta"
        return again(match.norm, match.norm.args[0], **{name: relay.const(plan)})


def reshaped_constant(expr: relay.Expr) -> relay.Constant | None:
    """A constant, which may be reshaped."""
    array, shape = constant(as_first_shaped(expr)), static_shape(expr)
    if array is None or shape is None:
        return None
    return as_constant(array.reshape(shape), expr.checked_type.dtype)


class BetweenCasts(Rule):
    """Normalize data of half precision as they are, instead of casting them to float32 and the result back.

    Why legal: the operator casts its data to float32 itself, and rounds its result as the cast does.
    """

    data, gamma, beta = wildcard(), wildcard(), wildcard()
    wide = is_op("cast")(data)
    norm = any_op((LAYER_NORM, GROUP_NORM), wide, gamma, beta)
    pattern = is_op("cast")(norm)

    def where(self, match: Match) -> bool:
        dtypes = [each.checked_type.dtype for each in (match.data, match.norm, match.root)]
        return dtypes in (["float16", "float32", "float16"], ["bfloat16", "float32", "bfloat16"])

    def plan(self, match: Match) -> Refusal | Answer:
        if match.used_elsewhere(match.norm):
            return Refusal("the normalized data are used elsewhere, too")
        return LEGAL

    def rewrite(self, match: Match, plan: Answer) -> relay.Expr:
        return again(match.norm, match.data)


def again(norm: relay.Call, data: relay.Expr, **changes: Any) -> relay.Expr:
    """The same normalization, of other data, or with other arguments."""
    attrs, (_, gamma, beta) = norm.attrs, norm.args
    arguments = {
        "gamma": gamma if attrs["has_gamma"] else None,
        "beta": beta if attrs["has_beta"] else None,
        "axis": int(attrs["axis"]),
        "epsilon": float(attrs["epsilon"]),
    }
    if op_name(norm) == LAYER_NORM:
        return topi_ext.layer_norm(data, **{**arguments, **changes})
    of_groups = {"groups": int(attrs["groups"]), "activation": given_activation(attrs, "activation")}
    return topi_ext.group_norm(data, **{**arguments, **of_groups, **changes})


def is_activated(norm: relay.Call) -> bool:
    """Whether a normalization has an activation already."""
    return op_name(norm) == GROUP_NORM and str(norm.attrs["activation"]) != "none"
