"""Split a convolution of concatenated tensors into one of each, so that nothing is copied together."""

from __future__ import annotations

from functools import reduce

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._convolution import channel_axis, constant_weights, why_not_plain, with_weights
from ._matchers import op_name, static_shape
from ._rule import Match, Rule, RulePass


class ConvolutionOfConcatenate(Rule):
    """Replace `conv2d(concatenate(x, y), w)` with `conv2d(x, wx) + conv2d(y, wy)`.

    Why legal: a convolution sums over the channels, and a sum can be taken in parts. Where the second one
    takes the first as its residual, the copy of x and y is saved, and a partial sum is written and read.
    """

    parts, weight = wildcard(), wildcard()
    concatenate = is_op("concatenate")(parts)
    pattern = is_op("nn.conv2d")(concatenate, weight)

    def where(self, match: Match) -> bool:
        return isinstance(match.parts, relay.Tuple) and len(match.parts.fields) > 1

    def check(self, match: Match) -> str | None:
        if None in (static_shape(match.concatenate), static_shape(match.root)):
            return "the shape is dynamic"
        reason = why_not_plain(match.root)
        if reason is not None:
            return reason
        axis = channel_axis(str(match.root.attrs.data_layout))
        if int(match.concatenate.attrs.axis) % 4 != axis:
            return "what is concatenated are not the channels"
        if any(static_shape(part)[axis] == 0 for part in match.parts.fields):
            return "a part has no channels"
        if any(op_name(user) != "nn.conv2d" for user in match.graph.users(match.concatenate)):
            return "the concatenated tensor is also wanted by what is no convolution"
        copied = np.prod(static_shape(match.concatenate))
        partial = np.prod(static_shape(match.root)) * (len(match.parts.fields) - 1)
        if partial > copied:
            return f"the partial sums take {partial / copied:.1f} times the memory of what is concatenated"

    def rewrite(self, match: Match) -> relay.Expr:
        axis = channel_axis(str(match.root.attrs.data_layout))
        channels = [static_shape(part)[axis] for part in match.parts.fields]
        weights = np.split(constant_weights(match.root), np.cumsum(channels)[:-1], axis=1)
        return reduce(
            relay.add,
            (with_weights(match.root, part, own) for part, own in zip(match.parts.fields, weights)),
        )


class SplitConcatenate(RulePass):
    """Split convolutions of concatenated tensors, such as those of a skip connection.

    >>> x, y = (relay.var(name, shape=(1, 16, 6, 10)) for name in "xy")
    >>> weight = relay.const(np.ones((8, 32, 3, 3), "float32"))
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d(relay.concatenate([x, y], 1), weight, padding=1))
    >>> print(tvm_passes.as_text(tvm_passes.SplitConcatenate()(mod)))
    def @main(%x: Tensor[(1, 16, 6, 10), float32], %y: Tensor[(1, 16, 6, 10), float32])
        -> Tensor[(1, 8, 6, 10), float32] {
      %0 = nn.conv2d(%x, const[(8, 16, 3, 3), float32], padding=[1, 1, 1, 1], channels=8,
          kernel_size=[3, 3]);
      %1 = nn.conv2d(%y, const[(8, 16, 3, 3), float32], padding=[1, 1, 1, 1], channels=8,
          kernel_size=[3, 3]);
      add(%0, %1)
    }
    """

    rules = (ConvolutionOfConcatenate,)
