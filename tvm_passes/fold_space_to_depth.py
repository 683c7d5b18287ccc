"""Fold nn.space_to_depth and `pixel_unshuffle` into the convolution after them."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._convolution import Shuffle, constant_weights, pairs, why_not_plain, why_not_whole, with_weights
from ._matchers import op_name, static_shape
from ._rule import Match, Rule, RulePass
from .restore_depth_to_space import unshuffle_mode, why_no_unshuffle


class _Fold(Rule):
    data, weight = wildcard(), wildcard()

    def check(self, match: Match) -> str | None:
        conv = match.root
        if None in (static_shape(match.data), static_shape(match.blocks)):
            return "the shape is dynamic"
        reason = why_not_plain(conv)
        if reason is not None:
            return reason
        if self.layout(match) != str(conv.attrs.data_layout):
            return "the convolution and the shuffle are in different layouts"
        if any(op_name(user) != "nn.conv2d" for user in match.graph.users(match.blocks)):
            return "the tensor is also wanted by what is no convolution"
        if any(dilation != 1 for _, dilation, *_ in pairs(conv)):
            return "the convolution is dilated"
        if any(min(before, after) < 0 for _, _, before, after in pairs(conv)):
            return "the padding is negative"

    def rewrite(self, match: Match) -> relay.Expr:
        shuffle = self.shuffle(match)
        block, weights = shuffle.block, constant_weights(match.root)
        filters, channels, rows, columns = weights.shape
        deep = shuffle.deep(channels // block**2)  # by row and column in the block, and channel
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

    def layout(self, match: Match) -> str:
        """Of the shuffle."""
        raise NotImplementedError

    def shuffle(self, match: Match) -> Shuffle:
        """What it does with channels."""
        raise NotImplementedError


class OfSpaceToDepth(_Fold):
    """Replace `conv2d(space_to_depth(x), w)` with a convolution of x, block times the stride and the kernel.

    Why legal: a pixel of the result sees the same pixels of x, through the same weights: those that lay
    behind each other in depth now lie beside each other in space. It takes as many multiplications.
    """

    blocks = is_op("nn.space_to_depth")(_Fold.data)
    pattern = is_op("nn.conv2d")(blocks, _Fold.weight)

    def check(self, match: Match) -> str | None:
        return why_not_whole(match.blocks) or super().check(match)

    def layout(self, match: Match) -> str:
        return str(match.blocks.attrs.layout)

    def shuffle(self, match: Match) -> Shuffle:
        return Shuffle.of(match.blocks)


class OfPixelUnshuffle(_Fold):
    """The same for the reshape, transpose and reshape of `pixel_unshuffle`, whose order no operator has.

    Why legal: as above, with the weights taken in that order.
    """

    split = is_op("reshape")(_Fold.data)
    moved = is_op("transpose")(split)
    blocks = is_op("reshape")(moved)
    pattern = is_op("nn.conv2d")(blocks, _Fold.weight)

    def where(self, match: Match) -> bool:
        return why_no_unshuffle(match.data, match.split, match.moved, match.blocks) is None

    def layout(self, match: Match) -> str:
        return "NCHW"

    def shuffle(self, match: Match) -> Shuffle:
        return Shuffle(static_shape(match.split)[3], unshuffle_mode(match.moved))


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
