"""Move nn.depth_to_space past the elementwise operators that follow it, next to the next convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import (
    channels_at,
    constant_channels,
    depth_to_space,
    shuffle_of,
    why_not_whole,
    with_channels,
)
from ..analysis.operators import BINARY, ELEMENTWISE, OF_A_CHANNEL
from ..engine.expressions import op_name
from ..engine.match import any_op
from ..engine.rule import LEGAL, Answer, Match, Refusal, Rule, RulePass


class _Sink(Rule):
    data = wildcard()
    shuffle = is_op("nn.depth_to_space")(data)

    def plan(self, match: Match) -> Any:
        if match.used_elsewhere(match.shuffle):
            return why_not_whole(match.shuffle) or Refusal("the shuffled tensor has other users")
        return why_not_whole(match.shuffle) or self.plan_for_other(match)

    def plan_for_other(self, match: Match) -> Any:
        """As `plan`, for the operator's other operand."""
        return LEGAL


class PastElementwise(_Sink):
    """Replace `relu(depth_to_space(x))` with `depth_to_space(relu(x))`.

    Why legal: the operator treats every element alike, wherever it is.
    """

    pattern = any_op(ELEMENTWISE, _Sink.shuffle)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return depth_to_space(match.shuffle, tvm.relay.Call(match.root.op, [match.data], match.root.attrs))


class PastConstant(_Sink):
    """Replace `depth_to_space(x) + b` with `depth_to_space(x + b')`, and likewise for others with a constant.

    Why legal: the constant has one value for each channel, or one for all; b' repeats it for each of the
    channels that the shuffle makes this one from.
    """

    constant = wildcard()
    pattern = (
        any_op(BINARY, _Sink.shuffle, constant)
        | any_op(BINARY, constant, _Sink.shuffle)
        | any_op(OF_A_CHANNEL, _Sink.shuffle, constant)
    )

    def where(self, match: Match) -> bool:
        return isinstance(match.constant, tvm.relay.Constant)

    def plan_for_other(self, match: Match) -> dict[int, np.ndarray] | Refusal:
        """The constants, by argument, as vectors of the channels before the shuffle."""
        if match.root.checked_type != match.shuffle.checked_type:
            return Refusal("the constant makes the tensor larger")
        vectors = constant_channels(match.root, _axis(match))
        if vectors is None:
            return Refusal("the constant is not per-channel")
        spread, has_one_each = shuffle_of(match.shuffle).spread, op_name(match.root) in OF_A_CHANNEL
        return {
            index: spread(vector) if len(vector) > 1 or has_one_each else vector
            for index, vector in vectors.items()
        }

    def rewrite(self, match: Match, plan: dict[int, np.ndarray]) -> relay.Expr:
        data = [match.data if arg.same_as(match.shuffle) else arg for arg in match.root.args]
        return depth_to_space(match.shuffle, with_channels(match.root, data, plan, _axis(match)))


class PastBoth(_Sink):
    """Replace `depth_to_space(x) + depth_to_space(y)` with `depth_to_space(x + y)`.

    Why legal: the shuffles are alike, so the elements that meet are the same.
    """

    other_data = wildcard()
    other = is_op("nn.depth_to_space")(other_data)
    pattern = any_op(BINARY, _Sink.shuffle, other)

    def plan_for_other(self, match: Match) -> Answer | Refusal:
        if not tvm.ir.structural_equal(match.shuffle.attrs, match.other.attrs):
            return Refusal("the two shuffles differ")
        if match.data.checked_type != match.other_data.checked_type:
            return Refusal("one of the shuffled tensors is broadcast to the other")
        if match.used_elsewhere(match.other):
            return Refusal("the shuffled tensor has other users")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        data = tvm.relay.Call(match.root.op, [match.data, match.other_data], match.root.attrs)
        return depth_to_space(match.shuffle, data)


class SinkDepthToSpace(RulePass):
    """Move shuffles past elementwise operators, which are then next to the convolution before.

    They become part of its epilogue, and the shuffle is next to the convolution after.

    >>> x = relay.var("x", shape=(1, 12, 6, 10))
    >>> y = relay.nn.depth_to_space(x, 2, "NCHW") + relay.const(np.ones((3, 1, 1), "float32"))
    >>> mod = tvm.IRModule.from_expr(relay.nn.relu(y))
    >>> print(tvm_passes.as_text(tvm_passes.SinkDepthToSpace()(mod)))
    def @main(%x: Tensor[(1, 12, 6, 10), float32]) -> Tensor[(1, 3, 12, 20), float32] {
      %0 = add(%x, const[(12, 1, 1), float32]);
      %1 = nn.relu(%0);
      nn.depth_to_space(%1, block_size=2)
    }
    """

    rules = (PastElementwise, PastConstant, PastBoth)


def _axis(match: Match) -> int:
    return channels_at(str(match.shuffle.attrs.layout))
