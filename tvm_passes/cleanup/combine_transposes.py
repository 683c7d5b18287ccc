"""Combine consecutive transposes, so that those that cancel disappear."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.layouts import order_of_axes
from ..engine.expressions import static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass


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


class TransposeOfSplit(Rule):
    """Replace two transposes with a reshape in between that splits axes with a reshape and one transpose.

    A detector's head, converted to NHWC, has them: back to NCHW, then anchors apart from what is predicted
    for each, then all that to the end again. What is left moves nothing, and costs nothing.

    Why legal: the parts of an axis may be moved one by one, so split first, they move once.
    """

    data = wildcard()
    inner = is_op("transpose")(data) | is_op("layout_transform")(data)
    split = is_op("reshape")(inner)
    pattern = is_op("transpose")(split) | is_op("layout_transform")(split)

    def plan(self, match: Match) -> tuple[list[int], list[int]] | Answer:
        """The shape to split the data to, and where each axis of the result comes from."""
        inner, outer = order_of_axes(match.inner), order_of_axes(match.root)
        whole, parts = static_shape(match.inner), static_shape(match.split)
        if inner is None or outer is None or whole is None or parts is None or 0 in whole:
            return NO_MATCH
        groups = _split_axes(whole, parts)
        if groups is None:
            return NO_MATCH
        in_order = [axis for source in range(len(inner)) for axis in groups[inner.index(source)]]
        return [parts[axis] for axis in in_order], [in_order.index(axis) for axis in outer]

    def rewrite(self, match: Match, plan: tuple[list[int], list[int]]) -> relay.Expr:
        shape, axes = plan
        return relay.transpose(relay.reshape(match.data, shape), axes)


def _split_axes(whole: Sequence[int], parts: Sequence[int]) -> list[list[int]] | None:
    """The axes that each axis is split to; None where a reshape does not only split, but also merges."""
    groups: list[list[int]] = []
    at = 0
    for extent in whole:
        group: list[int] = []
        while math.prod(parts[axis] for axis in group) < extent and at < len(parts):
            group.append(at)
            at += 1
        if math.prod(parts[axis] for axis in group) != extent:
            return None
        groups.append(group)
    if groups:
        groups[-1] += range(at, len(parts))  # of extent 1, since the elements are as many
    return groups or None


class TransposeOfNothing(Rule):
    """Replace a transpose that only moves axes of extent 1 with a reshape, which costs nothing.

    Why legal: the elements stay in order, wherever such an axis moves.
    """

    data = wildcard()
    pattern = is_op("transpose")(data) | is_op("layout_transform")(data)

    def plan(self, match: Match) -> relay.Expr | Answer:
        shape, axes = static_shape(match.data), order_of_axes(match.root)
        if shape is None or axes is None or 0 in shape:  # 0 in a reshape means something else
            return NO_MATCH
        longer = [axis for axis in axes if shape[axis] != 1]
        if longer != sorted(longer):
            return NO_MATCH
        if list(axes) == sorted(axes):
            return match.data
        return relay.reshape(match.data, [shape[axis] for axis in axes])

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class CombineTransposes(RulePass):
    """Combine transposes, also across a reshape that splits axes, and drop those that move nothing.

    >>> x = relay.var("x", shape=(1, 8, 4, 5))
    >>> y = relay.transpose(relay.layout_transform(x, "NCHW", "NHWC"), [0, 3, 1, 2])
    >>> mod = tvm.IRModule.from_expr(relay.nn.relu(y))
    >>> print(tvm_passes.as_text(tvm_passes.CombineTransposes()(mod)))
    def @main(%x: Tensor[(1, 8, 4, 5), float32]) -> Tensor[(1, 8, 4, 5), float32] {
      nn.relu(%x)
    }
    """

    rules = (TransposeOfTranspose, TransposeOfSplit, TransposeOfNothing)
