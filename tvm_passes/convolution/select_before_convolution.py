"""Compute of a 1x1 convolution only the filter that is selected for each image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc.op import problem_of

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple, wildcard

from ..analysis.layouts import order_of_axes
from ..analysis.limits import limits
from ..analysis.operators import is_elementwise
from ..engine.expressions import constant, known_shape, op_name, static_shape
from ..engine.graph import Graph
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .fused_call import FusedCall

IMAGE_AND_FILTER_FIRST = [0, 3, 1, 2]  # of the axes of NHWC


class Selected(NamedTuple):
    """A convolution from whose results filters are selected, and the functions of them in between."""

    conv: relay.Call
    functions: list[relay.Call]  # of one element each, the last one first
    order: list[int]  # of each axis that is indexed, its place in NHWC

    def is_shared(self, graph: Graph, data: relay.Expr) -> bool:
        """Whether something else reads the convolution, or what is computed between it and `data`."""
        node = data
        while True:
            if len(graph.users(node)) > 1:
                return True
            if node.same_as(self.conv):
                return False
            node = node.args[0]


class OfSelectedFilters(Rule):
    """Replace `adv_index(f(conv2d_nhwc(x, w) + b), every image, filters)` with f of sums of products.

    They are those of the pixels of each image and of the weights of its own filter: `sum(x * w[filters]) +
    b[filters]`.

    Why legal: a result of a 1x1 convolution without strides is the product of a pixel and of one filter's
    weights. f computes each element by itself. Indices out of range mean the same: negative ones count from
    the end, and what is beyond it is clipped. Sums are float32 and rounded once, as before.
    """

    data, images, filters = wildcard(), wildcard(), wildcard()
    pattern = is_op("adv_index")(is_tuple([data, images, filters]))

    def where(self, match: Match) -> bool:
        found = _selected(match.data)
        return found is not None and found.order == IMAGE_AND_FILTER_FIRST

    def plan(self, match: Match) -> Selected | Answer | Refusal:
        found = _selected(match.data)
        if found is None:
            return NO_MATCH
        problem = problem_of([argument.checked_type for argument in found.conv.args], found.conv.attrs)
        if problem.kernel != (1, 1) or problem.strides != (1, 1) or any(problem.padding):
            return Refusal("the convolution is not one of single pixels")
        if problem.groups > 1:
            return Refusal("the convolution is grouped")
        if problem.block > 1:
            return Refusal("the filters are shuffled into pixels")
        if problem.residual:
            return Refusal("a residual is added")
        if (problem.activation.name, problem.final_activation.name) != ("none", "none"):
            return Refusal("the convolution has an activation")
        images = constant(match.images)
        if images is None or not np.array_equal(images, np.arange(problem.batch)):
            return Refusal("the images are not all of them, in order")
        if static_shape(match.filters) != images.shape:
            return Refusal("the filters are not one for each image")
        if found.is_shared(match.graph, match.data):
            return Refusal("more than the selected results is read")
        return found

    def rewrite(self, match: Match, plan: Selected) -> relay.Expr:
        call, dtype = FusedCall(plan.conv), plan.conv.checked_type.dtype
        filters = _from_the_start(match, known_shape(call.weight)[0])
        weights = relay.take(call.weight, filters, axis=0)  # (N, 1, 1, C)
        products = relay.cast(call.data, "float32") * relay.cast(weights, "float32")
        result = relay.sum(products, axis=3)
        if call.bias is not None:
            bias = relay.take(call.bias, filters, axis=0)
            result = result + relay.reshape(relay.cast(bias, "float32"), (-1, 1, 1))
        result = relay.cast(result, dtype)
        for function in reversed(plan.functions):
            result = relay.Call(function.op, [result], function.attrs)
        return result


class SelectBeforeConvolution(RulePass):
    """Select filters in front of a 1x1 convolution rather than behind it.

    Mask R-CNN computes a mask for each of 91 classes, and takes the one of the detection's class: one result
    of 91, which a kernel that reads each pixel once computes.

    >>> x = relay.var("x", shape=(5, 28, 28, 64), dtype="float16")
    >>> labels = relay.var("labels", shape=(5,), dtype="uint8")
    >>> weight = relay.const(np.ones((91, 1, 1, 64), "float16"))
    >>> masks = relay.layout_transform(topi_ext.conv2d_nhwc(x, weight), "NHWC", "NCHW")
    >>> masks = relay.adv_index([relay.sigmoid(masks), relay.const(np.arange(5)), labels])
    >>> mod = tvm.IRModule.from_expr(relay.Function([x, labels], masks))
    >>> print(tvm_passes.as_text(tvm_passes.SelectBeforeConvolution()(mod)))
    def @main(%x: Tensor[(5, 28, 28, 64), float16], %labels: Tensor[(5), uint8])
        -> Tensor[(5, 28, 28), float16] {
      %0 = take(const[(91, 1, 1, 64), float16], %labels, axis=0);
      %1 = cast(%x, dtype="float32");
      %2 = cast(%0, dtype="float32");
      %3 = multiply(%1, %2);
      %4 = sum(%3, axis=[3]);
      %5 = cast(%4, dtype="float16");
      sigmoid(%5)
    }
    """

    rules = (OfSelectedFilters,)


def _selected(data: relay.Expr) -> Selected | None:
    """The convolution whose results `data` has, each by itself under a function, in any order of the axes."""
    functions, order, node = [], [0, 1, 2, 3], data
    while op_name(node) != "topi_ext.conv2d_nhwc":
        if op_name(node) in ("transpose", "layout_transform"):
            came_from = order_of_axes(node)
            if came_from is None or len(came_from) != len(order):
                return None
            order = [came_from[axis] for axis in order]
        elif is_elementwise(node) and len(node.args) == 1:
            functions.append(node)
        else:
            return None
        node = node.args[0]
    return Selected(node, functions, order)


def _from_the_start(match: Match, count: int) -> relay.Expr:
    """The indices of filters without negative ones, which count from the end."""
    if limits(match.graph, match.filters).least >= 0:
        return match.filters
    dtype = match.filters.checked_type.dtype
    zero, whole = relay.const(0, dtype), relay.const(count, dtype)
    return relay.where(match.filters < zero, match.filters + whole, match.filters)
