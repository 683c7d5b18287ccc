"""Compute of a 1x1 convolution only the filter that is selected for each image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc.op import problem_of

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, is_tuple, wildcard

from ..analysis.layouts import FROM_NHWC, order_of_axes
from ..analysis.limits import limits
from ..analysis.operators import as_first_shaped, is_elementwise
from ..engine.expressions import constant, known_shape, op_name, static_shape
from ..engine.graph import Graph
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .fused_call import FusedCall


class Selected(NamedTuple):
    """A convolution from whose results filters are selected, and the functions of them in between."""

    conv: relay.Call
    functions: list[relay.Call]  # of one element each, the last one first

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
        return _selected(match.data) is not None

    def plan(self, match: Match) -> Selected | Answer | Refusal:
        found = _selected(match.data)
        if found is None:
            return NO_MATCH
        shape = static_shape(found.conv)
        if shape is None:
            return Refusal("the number of images is dynamic")
        images = constant(match.images)
        if images is None or not np.array_equal(images, np.arange(shape[0])):
            return Refusal("the images are not all of them, in order")
        if static_shape(match.filters) != images.shape:
            return Refusal("the filters are not one for each image")
        return _why_not(match.graph, found, match.data) or found

    def rewrite(self, match: Match, plan: Selected) -> relay.Expr:
        return _results(plan, _from_the_start(match.graph, match.filters, known_shape(plan.conv)[3]))


class OfSelectedRows(Rule):
    """The same where the results of all filters are rows of a matrix, which is what ONNX's GatherND becomes.

    Why legal: the row of an image and a filter is `image * number of filters + filter`, and the limits of the
    filters show that none is that of another image.
    """

    data, first, filters = wildcard(), is_constant(), wildcard()
    pattern = is_op("take")(data, is_op("add")(first, filters))

    def where(self, match: Match) -> bool:
        found, attrs = _selected(as_first_shaped(match.data)), match.root.attrs
        if found is None or attrs.axis is None or (int(attrs.axis), int(attrs.batch_dims)) != (0, 0):
            return False
        images, rows = static_shape(found.conv), static_shape(match.data)
        return images is not None and rows is not None and rows[0] == images[0] * images[3]

    def plan(self, match: Match) -> Selected | Answer | Refusal:
        found = _selected(as_first_shaped(match.data))
        if found is None:
            return NO_MATCH
        count, _, _, filters = known_shape(found.conv)
        if not np.array_equal(match.first.data.numpy(), np.arange(count) * filters):
            return Refusal("the images are not all of them, in order")
        if static_shape(match.filters) != (count,):
            return Refusal("the filters are not one for each image")
        least, greatest = limits(match.graph, match.filters)
        if not 0 <= least <= greatest < filters:
            return Refusal("a filter may be that of another image")
        return _why_not(match.graph, found, match.data) or found

    def rewrite(self, match: Match, plan: Selected) -> relay.Expr:
        return relay.reshape(_results(plan, match.filters), known_shape(match.root))


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

    rules = (OfSelectedFilters, OfSelectedRows)


def _selected(data: relay.Expr) -> Selected | None:
    """The convolution whose results `data` has in NCHW, each by itself under a function."""
    functions, node = [], data
    order: tuple[int, ...] = (0, 1, 2, 3)
    while op_name(node) != "topi_ext.conv2d_nhwc":
        if op_name(node) in ("transpose", "layout_transform"):
            came_from = order_of_axes(node)
            if came_from is None or len(came_from) != len(order):
                return None
            order = tuple(came_from[axis] for axis in order)
        elif is_elementwise(node) and len(node.args) == 1:
            functions.append(node)
        else:
            return None
        node = node.args[0]
    return Selected(node, functions) if order == FROM_NHWC else None


def _why_not(graph: Graph, found: Selected, data: relay.Expr) -> Refusal | None:
    """Why this convolution cannot be computed for some filters, of which `data` has all results; or None."""
    problem = problem_of([argument.checked_type for argument in found.conv.args], found.conv.attrs)
    if problem.kernel != (1, 1) or problem.strides != (1, 1) or any(problem.padding):
        return Refusal("the convolution is not one of single pixels")
    if problem.groups > 1:
        return Refusal("the convolution is grouped")
    if problem.block > 1:
        return Refusal("the filters are shuffled into pixels")
    if problem.residual:
        return Refusal("a residual is added")
    if problem.is_quantized:
        return Refusal("the convolution is in int8, or its result is")
    if (problem.activation.name, problem.final_activation.name) != ("none", "none"):
        return Refusal("the convolution has an activation")
    return Refusal("more than the selected results is read") if found.is_shared(graph, data) else None


def _results(selected: Selected, filters: relay.Expr) -> relay.Expr:
    """The results of one filter for each image, (N, H, W)."""
    call, dtype = FusedCall(selected.conv), selected.conv.checked_type.dtype
    weights = relay.take(call.weight, filters, axis=0)  # (N, 1, 1, C)
    products = relay.cast(call.data, "float32") * relay.cast(weights, "float32")
    result = relay.sum(products, axis=3)
    if call.bias is not None:
        bias = relay.take(call.bias, filters, axis=0)
        result = result + relay.reshape(relay.cast(bias, "float32"), (-1, 1, 1))
    result = relay.cast(result, dtype)
    for function in reversed(selected.functions):
        result = relay.Call(function.op, [result], function.attrs)
    return result


def _from_the_start(graph: Graph, filters: relay.Expr, count: int) -> relay.Expr:
    """The indices of filters without negative ones, which count from the end."""
    if limits(graph, filters).least >= 0:
        return filters
    zero, whole = (relay.const(number, filters.checked_type.dtype) for number in (0, count))
    return relay.where(filters < zero, filters + whole, filters)
