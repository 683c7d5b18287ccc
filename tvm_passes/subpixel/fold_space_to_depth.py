"""Fold nn.space_to_depth and `pixel_unshuffle` into the convolution after them."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import (
    pairs,
    shuffle_of,
    weights_of,
    why_not_plain,
    why_not_whole,
    with_weights,
)
from ..analysis.layouts import order_of_axes
from ..analysis.shuffles import Shuffle, read_unshuffle
from ..engine.expressions import op_name, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass


class _Fold(Rule):
    data, weight = wildcard(), wildcard()

    def rewrite(self, match: Match, plan: Shuffle) -> relay.Expr:
        block, weights = plan.block, weights_of(match.root)
        filters, channels, rows, columns = weights.shape
        deep = plan.deep(channels // block**2)  # by row and column in the block, and channel
        blocks = weights[:, deep]  # filter, row and column in the block, channel, row, column
        spread = blocks.transpose(0, 3, 4, 1, 5, 2).reshape(filters, -1, rows * block, columns * block)
        strides, _, before, after = zip(*pairs(match.root))
        return with_weights(
            match.root,
            match.data,
            np.ascontiguousarray(spread),
            strides=[stride * block for stride in strides],
            padding=[padding * block for padding in (*before, *after)],
        )


def _why_not(match: Match, layout: str) -> Refusal | None:
    """Why the convolution does not take in a shuffle of this layout, or None."""
    conv = match.root
    if None in (static_shape(match.data), static_shape(match.blocks)):
        return Refusal("the shape is dynamic")
    refusal = why_not_plain(conv)
    if refusal:
        return refusal
    if layout != str(conv.attrs.data_layout):
        return Refusal("the convolution and the shuffle are in different layouts")
    if any(op_name(user) != "nn.conv2d" for user in match.graph.users(match.blocks)):
        return Refusal("the shuffled tensor has a user that is not a convolution")
    if any(dilation != 1 for _, dilation, *_ in pairs(conv)):
        return Refusal("the convolution is dilated")
    if any(min(before, after) < 0 for _, _, before, after in pairs(conv)):
        return Refusal("the padding is negative")
    return None


class OfSpaceToDepth(_Fold):
    """Replace `conv2d(space_to_depth(x), w)` with a convolution of x, stride and kernel scaled by the block.

    Why legal: a pixel of the result sees the same pixels of x, through the same weights: those that were
    stacked in depth are now side by side in space. It takes as many multiplications.
    """

    blocks = is_op("nn.space_to_depth")(_Fold.data)
    pattern = is_op("nn.conv2d")(blocks, _Fold.weight)

    def plan(self, match: Match) -> Shuffle | Refusal:
        layout = str(match.blocks.attrs.layout)
        return why_not_whole(match.blocks) or _why_not(match, layout) or shuffle_of(match.blocks)


class OfPixelUnshuffle(_Fold):
    """The same for the reshape, transpose and reshape of `pixel_unshuffle`, whose order no operator has.

    Why legal: as above, with the weights taken in that order.
    """

    split = is_op("reshape")(_Fold.data)
    moved = is_op("transpose")(split)
    blocks = is_op("reshape")(moved)
    pattern = is_op("nn.conv2d")(blocks, _Fold.weight)

    def plan(self, match: Match) -> Shuffle | Refusal | Answer:
        shapes = map(static_shape, (match.data, match.split, match.blocks))
        shuffle = read_unshuffle(*shapes, axes=order_of_axes(match.moved))
        return NO_MATCH if isinstance(shuffle, Refusal) else _why_not(match, "NCHW") or shuffle


class FoldSpaceToDepth(RulePass):
    """Fold the inverse of a sub-pixel shuffle into the convolution after it.

    >>> x, weight = relay.var("x", shape=(1, 3, 32, 32)), relay.const(np.ones((16, 12, 3, 3), "float32"))
    >>> deep = relay.nn.space_to_depth(x, 2)
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d(deep, weight, padding=1))
    >>> print(tvm_passes.as_text(tvm_passes.FoldSpaceToDepth()(mod)))
    def @main(%x: Tensor[(1, 3, 32, 32), float32]) -> Tensor[(1, 16, 16, 16), float32] {
      nn.conv2d(%x, const[(16, 3, 6, 6), float32], strides=[2, 2], padding=[2, 2, 2, 2],
          channels=16, kernel_size=[6, 6])
    }
    """

    rules = (OfSpaceToDepth, OfPixelUnshuffle)
