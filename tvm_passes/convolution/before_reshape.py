"""Rules that move what follows a fully connected layer to before the reshape, or transpose, of its rows.

There the convolution that the layer has become can take it in.
"""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import as_constant, of_each_channel
from ..analysis.evaluate import value_of
from ..analysis.layouts import TO_NHWC, order_of_axes, shape_in_order
from ..analysis.operators import ACTIVATIONS
from ..analysis.scalar_functions import activation_of, call_below, computed_of
from ..engine.expressions import batch_shape, constant, op_name, static_shape
from ..engine.match import any_op
from ..engine.rule import NO_MATCH, Answer, Match, Rule
from .reshape_back import ReshapeBack

OF_PIXELS = ("nn.conv2d", "nn.bias_add", "nn.relu")
PRODUCTS = "multiply", "divide"  # which an activation ends with, that several operators compute


class ReshapeTwice(Rule):
    """Replace two reshapes with the second one.

    Why legal: no reshape changes the order of the elements.
    """

    data = wildcard()
    pattern = is_op("reshape")(is_op("reshape")(data))

    def where(self, match: Match) -> bool:
        shape = batch_shape(match.root)
        name = op_name(match.data)
        # A residual, or an activation in several operators, may be of such images.
        is_of_convolution = name in OF_PIXELS or (name in ("add", *PRODUCTS) and _is_of_pixels(match.data))
        is_of_convolution |= name == "transpose" and op_name(match.data.args[0]) in OF_PIXELS
        return is_of_convolution and shape is not None and 0 not in shape

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.reshape(match.data, _of_any_batch(match.root))


class ReshapeForTranspose(Rule):
    """Replace a transpose of rows by a reshape, as of one image whose batch comes second.

    Why legal: only axes of length 1 change places, so that no element does.
    """

    conv = wildcard()
    rows = is_op("reshape")(conv)
    pattern = is_op("transpose")(rows)

    def plan(self, match: Match) -> list[int] | Answer:
        shape = shape_in_order(match.root) if op_name(match.conv) in OF_PIXELS else None
        return NO_MATCH if shape is None else shape

    def rewrite(self, match: Match, plan: list[int]) -> relay.Expr:
        return relay.reshape(match.rows, plan)


class TransposeBack(Rule):
    """Drop two transposes of which the second undoes the first, such as those between two layers of pixels.

    Why legal: each axis is where it was.
    """

    data = wildcard()
    inner = is_op("transpose")(data)
    pattern = is_op("transpose")(inner)

    def where(self, match: Match) -> bool:
        inner, outer = order_of_axes(match.inner), order_of_axes(match.root)
        return inner is not None and outer is not None and [inner[axis] for axis in outer] == sorted(outer)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.data


class _BeforeReshape(Rule):
    """Move what follows the reshape before it, where the convolution can take it in."""

    conv = wildcard()
    reshape = is_op("reshape")(conv)

    def where(self, match: Match) -> bool:
        return _reads_rows_of(match.conv, match.root)


class BiasBeforeReshape(_BeforeReshape):
    """Add a bias to the convolution instead of the matrix, whose rows may be along several axes.

    Why legal: images are one pixel, so a column of the matrix is a channel.
    """

    given = wildcard()
    pattern = is_op("nn.bias_add")(_BeforeReshape.reshape, given) | is_op("add")(
        _BeforeReshape.reshape, given
    )
    compute = staticmethod(relay.nn.bias_add)
    along: tuple[int, ...] = (-1,)  # the shape of what it takes

    def plan(self, match: Match) -> np.ndarray | Answer:
        if match.root.checked_type != match.reshape.checked_type:
            return NO_MATCH
        vector, rank, given = None, len(match.root.checked_type.shape), match.given
        if len(given.checked_type.shape) == 1 and not isinstance(given, relay.Constant):
            given = value_of(given)  # joined of constants, such as that of queries, none for keys, of values
            given = as_constant(given, match.given.checked_type.dtype) if given is not None else match.given
        if op_name(match.root) != "nn.bias_add":
            vector = of_each_channel(given, rank, axis=rank - 1)
        elif int(match.root.attrs.axis) % rank == rank - 1:
            vector = constant(given)
        return NO_MATCH if vector is None else vector

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        return relay.reshape(self.computed(match, plan), _of_any_batch(match.root))

    def computed(self, match: Match, vector: np.ndarray) -> relay.Expr:
        numbers = np.resize(vector, int(match.root.checked_type.shape[-1])).reshape(self.along)
        given = as_constant(numbers, match.given.checked_type.dtype)
        return self.compute(match.conv, given)


class ScaleBeforeReshape(BiasBeforeReshape):
    """The same for a factor of each channel, as the scale of a layer, where nothing else reads the rows."""

    given, reshape = BiasBeforeReshape.given, _BeforeReshape.reshape
    pattern = is_op("multiply")(reshape, given) | is_op("multiply")(given, reshape)
    compute, along = staticmethod(relay.multiply), (-1, 1, 1)

    def where(self, match: Match) -> bool:
        return _is_read_once(match) and super().where(match)


class BiasBeforeTranspose(BiasBeforeReshape):
    """The same where the rows are the pixels of images, channels last, behind a transpose."""

    conv, given = BiasBeforeReshape.conv, BiasBeforeReshape.given
    reshape = is_op("transpose")(conv)
    pattern = (
        is_op("nn.bias_add")(reshape, given) | is_op("add")(reshape, given) | is_op("add")(given, reshape)
    )

    def where(self, match: Match) -> bool:
        is_pixels = order_of_axes(match.reshape) == TO_NHWC and op_name(match.conv) in OF_PIXELS
        return is_pixels and len(match.graph.users(match.reshape)) == 1

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        return relay.transpose(self.computed(match, plan), TO_NHWC)


class ScaleBeforeTranspose(BiasBeforeTranspose):
    """The same for a factor of each channel."""

    given, reshape = BiasBeforeTranspose.given, BiasBeforeTranspose.reshape
    pattern = is_op("multiply")(reshape, given) | is_op("multiply")(given, reshape)
    compute, along = staticmethod(relay.multiply), (-1, 1, 1)

    def where(self, match: Match) -> bool:
        return _is_read_once(match) and super().where(match)


class ResidualBeforeReshape(_BeforeReshape):
    """Add another tensor to the result of the convolution instead of the matrix, where only this reads it.

    Why legal: the other tensor has the same elements in the same order, before it is given the same shape.
    """

    other = wildcard()
    pattern = is_op("add")(_BeforeReshape.reshape, other)

    def where(self, match: Match) -> bool:
        types = {str(expr.checked_type) for expr in (match.root, match.reshape, match.other)}
        if len(types) > 1 or static_shape(match.root) is None or constant(match.other) is not None:
            return False
        return _is_read_once(match) and super().where(match)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        of_pixels = relay.reshape(match.other, _of_any_batch(match.conv))
        return relay.reshape(relay.add(match.conv, of_pixels), _of_any_batch(match.root))


class ResidualToBeforeReshape(ResidualBeforeReshape):
    """The same for the second operand, where both are of convolutions and the first one is read elsewhere."""

    pattern = is_op("add")(ResidualBeforeReshape.other, _BeforeReshape.reshape)


class ActivationBeforeReshape(_BeforeReshape):
    """Activate the result of the convolution instead of the matrix.

    Why legal: every element is treated alike, wherever it is.
    """

    pattern = any_op(ACTIVATIONS, _BeforeReshape.reshape)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        activated = relay.Call(match.root.op, [match.conv], match.root.attrs)
        return relay.reshape(activated, _of_any_batch(match.root))


class SpelledActivationBeforeReshape(Rule):
    """The same where several operators compute the activation, as they do GELU.

    Why legal: it is that of each element, wherever it is, and nothing else uses what they compute.
    """

    pattern = any_op(PRODUCTS, wildcard(), wildcard())

    def plan(self, match: Match) -> relay.Call | Answer:
        """The reshape whose result they read."""
        reshape = call_below(match.root, "reshape")
        if reshape is None or not _reads_rows_of(reshape.args[0], reshape):
            return NO_MATCH
        return reshape if activation_of(match.root, reshape, match.graph) else NO_MATCH

    def rewrite(self, match: Match, plan: relay.Call) -> relay.Expr:
        activated = computed_of(plan.args[0], match.root, plan)
        return relay.reshape(activated, _of_any_batch(match.root))


BEFORE_RESHAPE = (
    ReshapeBack,
    ReshapeTwice,
    ReshapeForTranspose,
    TransposeBack,
    BiasBeforeReshape,
    ScaleBeforeReshape,
    BiasBeforeTranspose,
    ScaleBeforeTranspose,
    ResidualBeforeReshape,
    ResidualToBeforeReshape,
    ActivationBeforeReshape,
    SpelledActivationBeforeReshape,
)


def _is_read_once(match: Match) -> bool:
    """Whether nothing else reads the rows, of which the convolution would have to be computed twice."""
    return all(len(match.graph.users(each)) == 1 for each in (match.conv, match.reshape))


def _is_of_pixels(expr: relay.Expr) -> bool:
    """Whether it is of images of one pixel."""
    shape = batch_shape(expr)
    return shape is not None and len(shape) == 4 and shape[2:] == (1, 1)


def _reads_rows_of(conv: relay.Expr, rows: relay.Expr) -> bool:
    """Whether the rows are images of one pixel that a convolution computes, channels along the last axis."""
    if not _is_of_pixels(conv) or op_name(conv) not in OF_PIXELS:
        return False
    return (batch_shape(rows) or (0,))[-1] == int(conv.checked_type.shape[1])


def _of_any_batch(expr: relay.Expr) -> list[int]:
    """The new shape of a reshape to the shape of an expression, of which the batch may be dynamic."""
    first, *others = expr.checked_type.shape
    return [int(first) if hasattr(first, "value") else -1, *map(int, others)]
