"""Move nn.depth_to_space past the convolution after it, where that makes the convolution faster.

A convolution of few channels on a large image is bound by memory, and by tensor cores that compute unused
columns. The same convolution before the shuffle has block² times the channels and the filters, on an
image block² times smaller.
"""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import (
    channels_at,
    depth_to_space,
    shuffle_of,
    weights_of,
    why_not_whole,
)
from ..analysis.operators import ACTIVATIONS, OF_A_CHANNEL
from ..engine.expressions import op_name, static_shape
from ..engine.rule import Match, Refusal, Rule, RulePass
from .convolve_earlier import cost, moved_convolution, moved_weights, why_not_earlier


class PastConvolution(Rule):
    """Replace `conv2d(depth_to_space(x), w)` with `depth_to_space(conv2d(x, w'))`.

    Why legal: the pixel (y, x) of the shuffled image is in the channels (y % b, x % b) of pixel (y // b,
    x // b). So each of the b x b pixels of a block, which w' computes as separate filters, sees some
    pixels of x, each through the channels and weights that w has for it, and through zeros elsewhere. Zeros
    padded around the shuffled image are zeros around x, as the result is as large as the image. Around an
    infinite pixel the other zeros may make the result NaN.
    """

    data, weight = wildcard(), wildcard()
    shuffle = is_op("nn.depth_to_space")(data)
    pattern = is_op("nn.conv2d")(shuffle, weight)

    def plan(self, match: Match) -> np.ndarray | Refusal:
        """The weights of the convolution before the shuffle."""
        conv, shape = match.root, static_shape(match.root)
        if shape is None or None in (static_shape(match.data), static_shape(match.shuffle)):
            return Refusal("the shape is dynamic")
        refusal = why_not_earlier(conv) or why_not_whole(match.shuffle)
        if refusal:
            return refusal
        if str(match.shuffle.attrs.layout) != str(conv.attrs.data_layout):
            return Refusal("the convolution and the shuffle are in different layouts")
        if match.used_elsewhere(match.shuffle):
            return Refusal("the shuffled tensor has other users")
        shuffle, weights = shuffle_of(match.shuffle), weights_of(conv)
        moved = moved_weights(conv, *map(shuffle.deep, weights.shape[:2]))
        pixels = int(np.prod(shape)) // shape[channels_at(str(conv.attrs.data_layout))]
        times = _cost_before(match, pixels, moved) / _cost_now(match, pixels, weights)
        if times >= 1:
            return Refusal(
                f"the convolution would be no quicker before the shuffle: {times:.1f} times as long"
            )
        return moved

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        block = int(match.shuffle.attrs.block_size)
        return depth_to_space(match.shuffle, moved_convolution(match.root, block, match.data, plan))


class MoveDepthToSpace(RulePass):
    """Move shuffles past the convolution after them where that convolution becomes faster.

    >>> x, weight = relay.var("x", shape=(1, 16, 64, 64)), relay.const(np.ones((1, 4, 3, 3), "float32"))
    >>> shuffled = relay.nn.depth_to_space(x, 2, "NCHW")
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d(shuffled, weight, padding=1))
    >>> print(tvm_passes.as_text(tvm_passes.MoveDepthToSpace()(mod)))
    def @main(%x: Tensor[(1, 16, 64, 64), float32]) -> Tensor[(1, 1, 128, 128), float32] {
      %0 = nn.conv2d(%x, const[(4, 16, 3, 3), float32], padding=[1, 1, 1, 1], channels=4,
          kernel_size=[3, 3]);
      nn.depth_to_space(%0, block_size=2)
    }
    """

    rules = (PastConvolution,)


def _cost_now(match: Match, pixels: int, weights: np.ndarray) -> float:
    # A shuffle that is not fused with the kernel before it reads and writes everything.
    shuffled = 0 if _fuses_with_producer(match) else 2 * pixels * weights.shape[1]
    return cost(pixels, weights.shape) + shuffled


def _cost_before(match: Match, pixels: int, moved: np.ndarray) -> float:
    return cost(pixels // int(match.shuffle.attrs.block_size) ** 2, moved.shape)


def _fuses_with_producer(match: Match) -> bool:
    """Whether the shuffle costs nothing where it is; it does after the sum of two tensors."""
    if op_name(match.data) == "add":
        return any(isinstance(term, relay.Constant) for term in match.data.args)
    return op_name(match.data) in ("nn.conv2d", *OF_A_CHANNEL, *ACTIVATIONS)
