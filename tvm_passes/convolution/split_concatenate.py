"""Split a convolution of concatenated tensors into one of each, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from topi_ext.conv2d_nhwc_in_place.op import ALIGNMENT

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import channel_axis, weights_of, why_not_plain, with_weights
from ..analysis.operators import is_elementwise
from ..analysis.targets import is_for_gpu, target_or_current
from ..engine.expressions import op_name, static_shape
from ..engine.rule import Match, Refusal, Rule, RulePass, for_target


class ConvolutionOfConcatenate(Rule):
    """Replace `conv2d(concatenate(x, y), w)` with `conv2d(x, wx) + conv2d(y, wy)`.

    Why legal: a convolution sums over the channels, and a sum can be taken in parts. Where the second one
    takes the first as its residual, the copy of x and y is saved, but a partial sum is written and read.
    """

    target: tvm.target.Target | None = None
    parts, weight = wildcard(), wildcard()
    concatenate = is_op("concatenate")(parts)
    pattern = is_op("nn.conv2d")(concatenate, weight)

    def where(self, match: Match) -> bool:
        return isinstance(match.parts, relay.Tuple) and len(match.parts.fields) > 1

    def plan(self, match: Match) -> list[int] | Refusal:
        """How many channels each part has."""
        whole, result = static_shape(match.concatenate), static_shape(match.root)
        if whole is None or result is None:
            return Refusal("the shape is dynamic")
        refusal = why_not_plain(match.root)
        if refusal:
            return refusal
        axis = channel_axis(str(match.root.attrs.data_layout))
        if int(match.concatenate.attrs.axis) % 4 != axis:
            return Refusal("the tensors are not concatenated along the channels")
        channels = [int(part.checked_type.shape[axis]) for part in match.parts.fields]
        if 0 in channels:
            return Refusal("a part has no channels")
        if any(op_name(user) != "nn.conv2d" for user in match.graph.users(match.concatenate)):
            return Refusal("the concatenated tensor has a user that is not a convolution")
        if self._is_written_in_place(match.parts.fields, channels):
            return Refusal("the convolutions before it can write the concatenated tensor in place")
        copied, partial = np.prod(whole), np.prod(result) * (len(channels) - 1)
        if partial > copied:
            times = partial / copied
            return Refusal(f"the partial sums take {times:.1f} times the memory of the concatenated tensor")
        return channels

    def _is_written_in_place(self, parts: Sequence[relay.Expr], channels: list[int]) -> bool:
        """Whether `ConcatenateInPlace` is to be expected to do without the copy."""
        is_aligned = all(count % ALIGNMENT == 0 for count in channels)
        return is_for_gpu(self.target) and is_aligned and all(map(_is_of_convolutions, parts))

    def rewrite(self, match: Match, plan: list[int]) -> relay.Expr:
        weights = np.split(weights_of(match.root), np.cumsum(plan)[:-1], axis=1)
        return reduce(
            relay.add,
            (with_weights(match.root, part, own) for part, own in zip(match.parts.fields, weights)),
        )


class SplitConcatenate(RulePass):
    """Split convolutions of concatenated tensors, such as those of a skip connection.

    `target`: the target to compile for, by default the current one; on a GPU, what convolutions compute is
    left to `ConcatenateInPlace`.

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

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        rule = ConvolutionOfConcatenate
        self.rules = (for_target(rule, target),)
        super().__init__()


def _is_of_convolutions(expr: relay.Expr) -> bool:
    """Whether it is computed element by element from results of convolutions, and from constants."""
    waiting, seen, has_convolution = [expr], set(), False
    while waiting:
        node = waiting.pop()
        if op_name(node) == "nn.conv2d" and int(node.attrs.groups) == 1:
            has_convolution = True
            continue
        if node in seen or isinstance(node, relay.Constant):
            continue
        seen.add(node)
        if not is_elementwise(node):
            return False
        waiting.extend(node.args)
    return has_convolution
