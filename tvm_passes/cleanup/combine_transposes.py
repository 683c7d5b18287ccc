"""Combine consecutive transposes, so that those that cancel disappear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.layouts import order_of_axes, shape_in_order
from ..analysis.operators import MOVED, TAKEN, keeps_order, known_of
from ..engine.expressions import op_name, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass

RESHAPES = "reshape", "squeeze", "expand_dims"


class TransposeOfTranspose(Rule):
    """Replace two transposes in a row, including those that layout_transform spells, with one.

    Why legal: two permutations of the axes, one after the other, are a permutation.
    """

    data = wildcard()
    inner = is_op("transpose")(data) | is_op("layout_transform")(data)
    pattern = is_op("transpose")(inner) | is_op("layout_transform")(inner)

    def plan(self, match: Match) -> list[int] | Answer:
        """Where each axis comes from."""
        inner, outer = order_of_axes(match.inner), order_of_axes(match.root)
        return NO_MATCH if inner is None or outer is None else [inner[axis] for axis in outer]

    def rewrite(self, match: Match, plan: list[int]) -> relay.Expr:
        return relay.transpose(match.data, plan)


class TransposeOfReshape(Rule):
    """Replace two transposes with reshapes in between by a reshape, one transpose, and a reshape.

    A detector's head, converted to NHWC, has them: back to NCHW, then height and width as one axis, or
    anchors apart from what is predicted for each, then all channels to the end again. What is left often
    moves nothing, and costs nothing.

    Why legal: a reshape keeps the order of the elements. Where the axes before and after it are products of
    the same factors, these are moved one by one, both moves at once.
    """

    reshaped = wildcard()
    pattern = is_op("transpose")(reshaped) | is_op("layout_transform")(reshaped)

    def plan(self, match: Match) -> relay.Expr | Answer:
        inner = match.reshaped
        while _keeps_order(inner):
            inner = inner.args[0]
        if inner is match.reshaped or op_name(inner) not in ("transpose", "layout_transform"):
            return NO_MATCH
        before, after = order_of_axes(inner), order_of_axes(match.root)
        whole, parts, result = map(static_shape, (inner, match.reshaped, match.root))
        if before is None or after is None or whole is None or parts is None or result is None or 0 in whole:
            return NO_MATCH
        factors = _common_factors(whole, parts)
        if factors is None:
            return NO_MATCH
        given = sorted(factors, key=lambda factor: before[factor.of_whole])
        moved = sorted(factors, key=lambda factor: after.index(factor.of_parts))
        if moved == given:
            return relay.reshape(inner.args[0], result)
        divided = relay.reshape(inner.args[0], [factor.extent for factor in given])
        data = relay.transpose(divided, [given.index(factor) for factor in moved])
        is_done = tuple(factor.extent for factor in moved) == result
        return data if is_done else relay.reshape(data, result)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class _Factor(NamedTuple):
    extent: int
    of_whole: int  # the axis that it divides, before the reshape
    of_parts: int  # and after it


def _common_factors(whole: Sequence[int], parts: Sequence[int]) -> list[_Factor] | None:
    """Of which the axes of both shapes are products, in order; None where there are none."""
    factors: list[_Factor] = []
    left, of_whole = 1, -1
    for of_parts, wanted in enumerate(parts):
        while wanted > 1:
            if left == 1:
                of_whole += 1
                left = whole[of_whole]
                continue
            extent = min(left, wanted)
            if left % extent or wanted % extent:
                return None
            factors.append(_Factor(extent, of_whole, of_parts))
            left, wanted = left // extent, wanted // extent
    return factors


def _keeps_order(expr: relay.Expr) -> bool:
    """Whether an operator only says anew which axes there are."""
    if op_name(expr) in RESHAPES:
        return True
    if op_name(expr) != "take" or expr.attrs.axis is None or str(expr.attrs.mode) == "fast":
        return False
    data, index = expr.args  # the only one along an axis
    shape = static_shape(data)
    return shape is not None and shape[int(expr.attrs.axis)] == 1 and len(index.checked_type.shape) == 0


class TakeOfTranspose(Rule):
    """Take one index of each axis before a transpose of which only such parts are read.

    Queries, keys and values that are computed at once are spelled so: each is read from where it was
    computed, instead of from a copy of all three.

    Why legal: a transpose moves the axis that is taken from as a whole, and reshapes behind it keep that axis
    and all before it, so an index along it names the same elements before and after.
    """

    data, index = wildcard(), wildcard()
    pattern = is_op("take")(data, index)

    def plan(self, match: Match) -> tuple[relay.Call, int] | Answer:
        """The transpose, and the axis of its result that is taken from."""
        axis, of_taken = _taken_from(match.root), static_shape(match.data)
        if axis is None or of_taken is None or 0 in of_taken:  # 0 in a reshape means something else
            return NO_MATCH
        inner, readers = match.data, [match.data]
        while op_name(inner) in RESHAPES:
            inner = inner.args[0]
            readers.append(inner)
        shape = static_shape(inner)
        if op_name(inner) != "transpose" or shape is None or shape[: axis + 1] != of_taken[: axis + 1]:
            return NO_MATCH
        users = [user for node in readers for user in match.graph.users(node) if user not in readers]
        is_all_taken = len(users) > 1 and all(_taken_from(user) == axis for user in users)
        if not is_all_taken or order_of_axes(inner) is None or _is_moved(inner.args[0]):
            return NO_MATCH
        return inner, axis

    def rewrite(self, match: Match, plan: tuple[relay.Call, int]) -> relay.Expr:
        (transpose, axis), attrs = plan, match.root.attrs
        axes = list(order_of_axes(transpose) or ())
        of_data = axes.pop(axis)
        taken = relay.take(transpose.args[0], match.index, of_data, mode=str(attrs.mode))
        moved = relay.transpose(taken, [each - (each > of_data) for each in axes])
        return relay.reshape(moved, static_shape(match.root))


def _is_moved(expr: relay.Expr) -> bool:
    """Whether a kernel that moves it to where it is would be needed, if it were not for the transpose."""
    while keeps_order(expr):
        expr = expr.args[0]
    return isinstance(expr, relay.TupleGetItem) or known_of(expr).elements in (MOVED, TAKEN)


def _taken_from(call: relay.Expr) -> int | None:
    """The axis of which a call takes what is at one constant index, or None."""
    if op_name(call) != "take" or call.attrs.axis is None or not isinstance(call.args[1], relay.Constant):
        return None
    is_one = len(call.args[1].data.shape) == 0 and int(call.attrs.batch_dims) == 0
    return int(call.attrs.axis) % len(call.args[0].checked_type.shape) if is_one else None


class TransposeOfNothing(Rule):
    """Replace a transpose that only moves axes of extent 1 with a reshape, which costs nothing.

    Why legal: the elements stay in order, wherever such an axis moves.
    """

    data = wildcard()
    pattern = is_op("transpose")(data) | is_op("layout_transform")(data)

    def plan(self, match: Match) -> relay.Expr | Answer:
        shape, axes = shape_in_order(match.root), order_of_axes(match.root) or ()
        if shape is None:
            return NO_MATCH
        return match.data if list(axes) == sorted(axes) else relay.reshape(match.data, shape)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class CombineTransposes(RulePass):
    """Combine transposes, also across reshapes, and drop those that move nothing.

    >>> x = relay.var("x", shape=(1, 8, 4, 5))
    >>> y = relay.transpose(relay.layout_transform(x, "NCHW", "NHWC"), [0, 3, 1, 2])
    >>> mod = tvm.IRModule.from_expr(relay.nn.relu(y))
    >>> print(tvm_passes.as_text(tvm_passes.CombineTransposes()(mod)))
    def @main(%x: Tensor[(1, 8, 4, 5), float32]) -> Tensor[(1, 8, 4, 5), float32] {
      nn.relu(%x)
    }
    """

    # First what costs nothing: a transpose that others read, too, would be made anew.
    rules = (TransposeOfNothing, TransposeOfTranspose, TransposeOfReshape, TakeOfTranspose)
