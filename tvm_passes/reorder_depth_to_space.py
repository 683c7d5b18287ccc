"""Bring nn.depth_to_space to the order DCR, in which it copies whole slabs, by reordering its channels."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._convolution import (
    BINARY,
    ELEMENTWISE,
    OF_A_CHANNEL,
    Shuffle,
    channel_axis,
    constant_channels,
    constant_weights,
    depth_to_space,
    why_not_plain,
    why_not_whole,
    with_channels,
    with_weights,
)
from ._graph import Graph
from ._matchers import op_name, static_shape
from ._rule import Match, Rule, RulePass


class CrdToDcr(Rule):
    """Replace depth_to_space in mode CRD with mode DCR, over channels in another order.

    Why legal: the modes differ in which channel goes to which place in the block. The channels are put into
    that order where they come from, in the weights of a convolution; what lies between has its constants of
    each channel reordered, or treats all elements alike.
    """

    data = wildcard()
    pattern = is_op("nn.depth_to_space")(data)

    def where(self, match: Match) -> bool:
        return Shuffle.of(match.root).mode == "CRD"

    def check(self, match: Match) -> str | None:
        reason = why_not_whole(match.root)
        if reason is not None:
            return reason
        if static_shape(match.root) is None or static_shape(match.data) is None:
            return "the shape is dynamic"
        try:
            self.rewrite(match)
        except _CannotReorder as reason:
            return str(reason)

    def rewrite(self, match: Match) -> relay.Expr:
        axis = channel_axis(str(match.root.attrs.layout))
        channels, block = static_shape(match.root)[axis], int(match.root.attrs.block_size)
        if channels == 1:  # the modes mean the same
            return depth_to_space(match.root, match.data, "DCR")
        order = Shuffle(block, "CRD").deep(channels).ravel()  # DCR is this, in ascending order
        return depth_to_space(match.root, _reordered(match.graph, match.data, order, axis), "DCR")


class ReorderDepthToSpace(RulePass):
    """Bring shuffles to the order DCR: in NHWC each row of a block is then one contiguous copy.

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


class _CannotReorder(Exception):
    pass


def _reordered(graph: Graph, expr: relay.Expr, order: np.ndarray, axis: int) -> relay.Expr:
    """The expression with its channels in another order; raises `_CannotReorder` where that takes a copy."""
    name = op_name(expr)
    if not isinstance(expr, relay.Call):
        raise _CannotReorder("the channels are not made here, but come from outside or from a tuple")
    if len(graph.users(expr)) != 1:
        raise _CannotReorder(f"the result of {name} has other users, who want its channels as they are")
    if name == "nn.conv2d":
        return _reordered_convolution(expr, order, axis)
    if name in ELEMENTWISE:
        return relay.Call(expr.op, [_reordered(graph, expr.args[0], order, axis)], expr.attrs)
    if name not in BINARY + OF_A_CHANNEL:
        raise _CannotReorder(f"the channels come from {name}, which cannot give them in another order")
    vectors = constant_channels(expr, axis)
    if vectors is None:
        raise _CannotReorder(f"{name} has a constant that is not one number for each channel")
    arguments = list(expr.args)
    for index in set(range(len(arguments))) - set(vectors):
        shape = static_shape(arguments[index])
        if shape is None or len(shape) != len(expr.checked_type.shape):
            raise _CannotReorder(f"{name} broadcasts a tensor of lower rank")
        if shape[axis] != 1:
            arguments[index] = _reordered(graph, arguments[index], order, axis)
    reordered = {index: value[order] if len(value) > 1 else value for index, value in vectors.items()}
    return with_channels(expr, arguments, reordered, axis)


def _reordered_convolution(conv: relay.Call, order: np.ndarray, axis: int) -> relay.Expr:
    reason = why_not_plain(conv)
    if reason is not None:
        raise _CannotReorder(reason)
    if channel_axis(str(conv.attrs.data_layout)) != axis:
        raise _CannotReorder("the convolution and the shuffle are in different layouts")
    return with_weights(conv, conv.args[0], np.ascontiguousarray(constant_weights(conv)[order]))
