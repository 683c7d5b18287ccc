"""Restore nn.depth_to_space and nn.space_to_depth from the reshapes and transposes that spell them."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.layouts import order_of_axes
from ..analysis.shuffles import Shuffle, read_shuffle, read_unshuffle
from ..engine.expressions import op_name, static_shape
from ..engine.rule import Match, Refusal, Rule, RulePass


class _Spelled(Rule):
    data = wildcard()
    split = is_op("reshape")(data)
    moved = is_op("transpose")(split)
    pattern = is_op("reshape")(moved)
    from_space: bool  # whether height and width are split, not the channels

    def where(self, match: Match) -> bool:
        ranks = [len(expr.checked_type.shape) for expr in (match.data, match.split, match.root)]
        return ranks == [4, 6, 4] and self.from_space == _splits_space(match)

    def plan(self, match: Match) -> Shuffle | Refusal:
        read = read_unshuffle if self.from_space else read_shuffle
        shapes = map(static_shape, (match.data, match.split, match.root))
        shuffle = read(*shapes, axes=order_of_axes(match.moved))
        if static_shape(match.root) and match.used_elsewhere(match.split, match.moved):
            return Refusal("the reshaped or transposed tensor has other users")
        return shuffle


class PixelShuffle(_Spelled):
    """Replace the reshape, transpose and reshape of `pixel_shuffle` with nn.depth_to_space.

    Why legal: splitting the channels into (C, b, b) or (b, b, C) and moving the two b behind H and W is
    what the op does in mode CRD or DCR.
    """

    from_space = False

    def rewrite(self, match: Match, plan: Shuffle) -> relay.Expr:
        return relay.nn.depth_to_space(match.data, plan.block, "NCHW", plan.mode)


class PixelUnshuffle(_Spelled):
    """Replace the reshape, transpose and reshape of `pixel_unshuffle` with nn.space_to_depth.

    Why legal: the op splits height and width alike, and puts the place in the block before the channel
    (DCR). `pixel_unshuffle` puts it after the channel (CRD), which is the same where there is one channel;
    else the channels of the result are taken in that order.
    """

    from_space = True

    def plan(self, match: Match) -> Shuffle | Refusal:
        shuffle = super().plan(match)
        is_reordered = isinstance(shuffle, Shuffle) and _is_reordered(match, shuffle)
        if is_reordered and all(map(_takes_it_in, match.graph.users(match.root))):
            return Refusal(
                "nn.space_to_depth puts the place in the block before the channel, this puts it after"
            )
        return shuffle

    def rewrite(self, match: Match, plan: Shuffle) -> relay.Expr:
        result = relay.nn.space_to_depth(match.data, plan.block)
        if not _is_reordered(match, plan):
            return result
        channels, places = int(match.data.checked_type.shape[1]), plan.block**2
        order = np.arange(channels * places).reshape(places, channels).T
        return relay.take(result, relay.const(order.ravel().astype("int32")), axis=1, mode="fast")


def _is_reordered(match: Match, shuffle: Shuffle) -> bool:
    return shuffle.mode == "CRD" and int(match.data.checked_type.shape[1]) > 1


def _takes_it_in(user: relay.Expr) -> bool:
    """Whether FoldSpaceToDepth can make the shuffle part of a user, in whatever order the channels are."""
    return op_name(user) == "nn.conv2d" and int(user.attrs.groups) == 1


class RestoreDepthToSpace(RulePass):
    """Replace the reshapes and transposes that spell a sub-pixel shuffle with the operator itself.

    With the operator in place, layouts can be converted around it, and the shuffle fuses with its producer.

    >>> x = relay.var("x", shape=(1, 12, 6, 10))
    >>> y = relay.transpose(relay.reshape(x, (1, 3, 2, 2, 6, 10)), [0, 1, 4, 2, 5, 3])
    >>> mod = tvm.IRModule.from_expr(relay.reshape(y, (1, 3, 12, 20)))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreDepthToSpace()(mod)))
    def @main(%x: Tensor[(1, 12, 6, 10), float32]) -> Tensor[(1, 3, 12, 20), float32] {
      nn.depth_to_space(%x, block_size=2, mode="CRD")
    }
    """

    rules = (PixelShuffle, PixelUnshuffle)


def _splits_space(match: Match) -> bool | None:
    """Whether height and width are split, or the channels; None for others, as by windows of attention."""
    data, split, result = map(static_shape, (match.data, match.split, match.root))
    if data is None or split is None or result is None or (data[0], data[2:]) == (split[0], split[4:]):
        return False
    return True if data[:2] == split[:2] and data[0] == result[0] else None
