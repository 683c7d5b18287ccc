"""Convert nn.depth_to_space to mode DCR, in which it copies whole slabs, by reordering its channels."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import (
    channel_axis,
    channels_at,
    constant_channels,
    depth_to_space,
    shuffle_of,
    weights_of,
    why_not_plain,
    why_not_whole,
    with_channels,
    with_weights,
)
from ..analysis.operators import BINARY, ELEMENTWISE, OF_A_CHANNEL
from ..analysis.shuffles import Shuffle
from ..engine.expressions import op_name, static_shape
from ..engine.graph import Graph
from ..engine.rule import Match, Refusal, Rule, RulePass


class CrdToDcr(Rule):
    """Replace depth_to_space in mode CRD with mode DCR, over channels in another order.

    Why legal: the modes differ in which channel goes to which place in the block. The channels are put into
    that order where they come from, in the weights of a convolution; operators in between have their
    per-channel constants reordered, or treat all elements alike.
    """

    data = wildcard()
    pattern = is_op("nn.depth_to_space")(data)

    def where(self, match: Match) -> bool:
        return shuffle_of(match.root).mode == "CRD"

    def plan(self, match: Match) -> relay.Expr | Refusal:
        """The data with its channels in the order that DCR takes them in."""
        refusal = why_not_whole(match.root)
        if refusal:
            return refusal
        axis, shape = channels_at(str(match.root.attrs.layout)), static_shape(match.root)
        if shape is None or static_shape(match.data) is None:
            return Refusal("the shape is dynamic")
        channels, block = shape[axis], int(match.root.attrs.block_size)
        if channels == 1:  # the modes mean the same
            return match.data
        order = Shuffle(block, "CRD").deep(channels).ravel()  # in DCR this would be ascending
        return _reordered(match.graph, match.data, order, axis)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return depth_to_space(match.root, plan, "DCR")


class ReorderDepthToSpace(RulePass):
    """Convert shuffles to mode DCR: in NHWC each row of a block is then one contiguous copy.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((12, 8, 3, 3), "float32"))
    >>> y = relay.nn.relu(relay.nn.conv2d(x, weight, padding=1))
    >>> mod = tvm.IRModule.from_expr(relay.nn.depth_to_space(y, 2, "NCHW", "CRD"))
    >>> print(tvm_passes.as_text(tvm_passes.ReorderDepthToSpace()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 3, 12, 20), float32] {
      %0 = nn.conv2d(%x, const[(12, 8, 3, 3), float32], padding=[1, 1, 1, 1], channels=12,
          kernel_size=[3, 3]);
      %1 = nn.relu(%0);
      nn.depth_to_space(%1, block_size=2)
    }
    """

    rules = (CrdToDcr,)


def _reordered(graph: Graph, expr: relay.Expr, order: np.ndarray, axis: int) -> relay.Expr | Refusal:
    """The expression with its channels in another order, or why that would take a copy."""
    name = op_name(expr)
    if not isinstance(expr, relay.Call):
        return Refusal("the channels come from outside or from a tuple, not from an operator")
    if len(graph.users(expr)) != 1:
        return Refusal(f"the result of {name} has other users, which need its channels as they are")
    if name == "nn.conv2d":
        return _reordered_convolution(expr, order, axis)
    if name in ELEMENTWISE:
        data = _reordered(graph, expr.args[0], order, axis)
        return data if isinstance(data, Refusal) else relay.Call(expr.op, [data], expr.attrs)
    if name not in (*BINARY, *OF_A_CHANNEL):
        return Refusal(f"the channels come from {name}, which cannot reorder them")
    vectors = constant_channels(expr, axis)
    if vectors is None:
        return Refusal(f"{name} has a constant that is not per-channel")
    arguments = list(expr.args)
    for index in set(range(len(arguments))) - set(vectors):
        shape = static_shape(arguments[index])
        if shape is None or len(shape) != len(expr.checked_type.shape):
            return Refusal(f"{name} broadcasts a tensor of lower rank")
        if shape[axis] != 1:
            argument = _reordered(graph, arguments[index], order, axis)
            if isinstance(argument, Refusal):
                return argument
            arguments[index] = argument
    reordered = {index: value[order] if len(value) > 1 else value for index, value in vectors.items()}
    return with_channels(expr, arguments, reordered, axis)


def _reordered_convolution(conv: relay.Call, order: np.ndarray, axis: int) -> relay.Expr | Refusal:
    refusal = why_not_plain(conv)
    if refusal:
        return refusal
    if channel_axis(str(conv.attrs.data_layout)) != axis:
        return Refusal("the convolution and the shuffle are in different layouts")
    return with_weights(conv, conv.args[0], np.ascontiguousarray(weights_of(conv)[order]))
