"""Turn fully connected layers into convolutions, so that they are part of a network in NHWC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topi_ext.conv2d_nhwc.op import takes_any_batch

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import as_constant
from ..analysis.evaluate import value_of
from ..analysis.layouts import FROM_NHWC, TO_NHWC
from ..analysis.operators import keeps_elements, keeps_order
from ..analysis.targets import target_or_current
from ..engine.expressions import batch_shape, constant, known_shape, op_name, shape_but_batch, static_shape
from ..engine.graph import Graph
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .before_reshape import BEFORE_RESHAPE


class OfDense(Rule):
    """Replace nn.dense of flattened images with a convolution as large as an image.

    Why legal: it is the same sum of products, in the order in which the images were flattened. Tensor cores
    then see the images in NHWC, with the weights rearranged, where the flat rows would have to be NCHW.
    Rows that are the pixels of images, channels last, are those of a convolution of 1x1 pixels, between
    transposes that go when the network is in NHWC. Other rows count as images of one pixel.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.dense")(data, weight)
    batch_may_vary = False

    def where(self, match: Match) -> bool:
        return constant(match.weight) is not None

    def plan(self, match: Match) -> relay.Expr | Answer | Refusal:
        """The images, channels last, of whose pixels the layer is, if it is."""
        shape = batch_shape(match.data)
        if shape is None or (shape[0] is None and not self.batch_may_vary):
            return Refusal("the shape is dynamic")
        if len(shape) != 2 or 0 in shape:
            return Refusal("the data is empty or not a matrix")
        if len({expr.checked_type.dtype for expr in (match.data, match.weight, match.root)}) > 1:
            return Refusal("data, weights and result differ in type")
        images = _images_of_pixels(match)
        return LEGAL if images is None else images

    def rewrite(self, match: Match, plan: relay.Expr | Answer) -> relay.Expr:
        weights: Any = constant(match.weight)
        images, image = _images(match.data)
        if isinstance(plan, relay.Expr):
            images, image = relay.transpose(plan, FROM_NHWC), (weights.shape[1], 1, 1)
        weight = weights.reshape(-1, *image)
        result = relay.nn.conv2d(
            images,
            as_constant(weight, match.weight.data.dtype),
            channels=len(weight),
            kernel_size=weight.shape[2:],
        )
        if isinstance(plan, relay.Expr):
            result = relay.transpose(result, TO_NHWC)
        return relay.reshape(result, (-1, len(weight)))


class OfDenseInAnyBatch(OfDense):
    """The same where it is known only at run time how many images there are."""

    batch_may_vary = True


class OfSameWeights(Rule):
    """Replace nn.batch_matmul with nn.dense where constant weights are the same for all items of the batch.

    Why legal: then the rows of all items are rows of one matrix.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.batch_matmul")(data, weight)

    def where(self, match: Match) -> bool:
        source = match.weight
        while keeps_elements(source) or op_name(source) == "broadcast_to":
            source = source.args[0]
        return isinstance(source, relay.Constant)

    def plan(self, match: Match) -> np.ndarray | Refusal | Answer:
        """The weights, (columns, length)."""
        weight, shape = value_of(match.weight), static_shape(match.data)
        if weight is None or weight.dtype.name != match.weight.checked_type.dtype:
            return NO_MATCH  # such as bfloat16
        if shape is None or 0 in shape:
            return Refusal("the shape is dynamic or empty")
        if match.root.attrs.transpose_a or match.root.checked_type.dtype != match.data.checked_type.dtype:
            return Refusal("the data are transposed, or the result is of another type")
        if len(weight) > shape[0] or (weight != weight[:1]).any():
            return Refusal("each item of the batch has weights of its own")
        return weight[0] if match.root.attrs.transpose_b else weight[0].T

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        rows = relay.reshape(match.data, (-1, plan.shape[1]))
        product = relay.nn.dense(rows, relay.const(np.ascontiguousarray(plan)))
        return relay.reshape(product, known_shape(match.root))


class DenseAsConvolution(RulePass):
    """Turn fully connected layers with constant weights into convolutions, with bias and activation.

    `target` is the target to compile for, by default the current one: for one with oneDNN, the number of
    rows may be known only at run time.

    >>> x, weight = relay.var("x", shape=(10, 8, 7, 7)), relay.const(np.ones((16, 8 * 7 * 7), "float32"))
    >>> y = relay.nn.dense(relay.nn.batch_flatten(x), weight)
    >>> y = relay.nn.relu(relay.nn.bias_add(y, relay.const(np.ones(16, "float32"))))
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.DenseAsConvolution()(mod)))
    def @main(%x: Tensor[(10, 8, 7, 7), float32]) -> Tensor[(10, 16), float32] {
      %0 = nn.conv2d(%x, const[(16, 8, 7, 7), float32], padding=[0, 0, 0, 0], channels=16,
          kernel_size=[7, 7]);
      %1 = nn.bias_add(%0, const[(16,), float32]);
      %2 = nn.relu(%1);
      reshape(%2, newshape=[10, 16])
    }
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        of_dense = OfDenseInAnyBatch if takes_any_batch(target) else OfDense
        self.rules = (OfSameWeights, of_dense, *BEFORE_RESHAPE)
        super().__init__()


def _images_of_pixels(match: Match) -> relay.Expr | None:
    """The images, (N, H, W, C), whose pixels are the rows, where the product is read as such images, too."""
    (_, channels), (_, columns) = match.data.checked_type.shape, match.root.checked_type.shape
    source = match.data
    while keeps_order(source) and len(source.checked_type.shape) < 4:
        source = source.args[0]
    shape = batch_shape(source)
    if shape is None or len(shape) != 4 or shape[-1] != int(channels) or shape[1:3] == (1, 1):
        return None
    return source if _is_read_as((*shape[:-1], int(columns)), match.root, match.graph) else None


def _is_read_as(shape: tuple[int | None, ...], expr: relay.Expr, graph: Graph) -> bool:
    """Whether all that read a tensor do so behind reshapes to a shape."""
    readers = graph.users(expr)
    return bool(readers) and all(
        op_name(each) == "reshape" and (batch_shape(each) == shape or _is_read_as(shape, each, graph))
        for each in readers
    )


def _images(matrix: relay.Expr) -> tuple[relay.Expr, tuple[int, ...]]:
    """The images, (N, C, H, W), that were flattened to the rows of a matrix, and the shape of one."""
    length = int(matrix.checked_type.shape[1])
    images, image = relay.reshape(matrix, (-1, length, 1, 1)), (length, 1, 1)
    source = matrix
    while keeps_order(source):
        source = source.args[0]
        shape = shape_but_batch(source)
        if shape is not None and len(shape) == 3 and math.prod(shape) == length:
            images, image = source, shape
    return images, image
