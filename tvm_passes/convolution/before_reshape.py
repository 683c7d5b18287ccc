"""Rules that move what follows a fully connected layer to before the reshape of its rows.

There the convolution that the layer has become can take it in.
"""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import as_constant, of_each_channel
from ..analysis.layouts import order_of_axes
from ..analysis.operators import ACTIVATIONS
from ..analysis.scalar_functions import activation_of, call_below, computed_of
from ..engine.expressions import batch_shape, constant, known_shape, op_name, static_shape
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
        is_of_convolution = op_name(match.data) in OF_PIXELS or _is_of_pixels(match.data)
        return is_of_convolution and shape is not None and 0 not in shape

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.reshape(match.data, _of_any_batch(match.root))


class ReshapeForTranspose(Rule):
    """Replace a transpose of rows by a reshape, as of one image whose batch comes second.

    Why legal: only axes of length 1 change places, so that no element does.
    """

    conv = wildcard()
    pattern = is_op("transpose")(is_op("reshape")(conv))

    def where(self, match: Match) -> bool:
        rows = match.root.args[0]
        shape = static_shape(rows)
        if shape is None or op_name(match.conv) not in OF_PIXELS:
            return False
        longer = [axis for axis in order_of_axes(match.root) or () if shape[axis] != 1]
        return longer == sorted(longer)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.reshape(match.root.args[0], known_shape(match.root))


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

    bias = wildcard()
    pattern = is_op("nn.bias_add")(_BeforeReshape.reshape, bias) | is_op("add")(_BeforeReshape.reshape, bias)

    def plan(self, match: Match) -> np.ndarray | Answer:
        if match.root.checked_type != match.reshape.checked_type:
            return NO_MATCH
        vector, rank = None, len(match.root.checked_type.shape)
        if op_name(match.root) == "add":
            vector = of_each_channel(match.bias, rank, axis=rank - 1)
        elif int(match.root.attrs.axis) % rank == rank - 1:
            vector = constant(match.bias)
        return NO_MATCH if vector is None else vector

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        shape = _of_any_batch(match.root)
        bias = as_constant(np.resize(plan, shape[-1]), match.bias.checked_type.dtype)
        return relay.reshape(relay.nn.bias_add(match.conv, bias), shape)


class ScaleBeforeReshape(_BeforeReshape):
    """Multiply the result of the convolution by a number for each channel, as the scale of a layer does.

    Why legal: as for a bias.
    """

    scale = wildcard()
    pattern = is_op("multiply")(_BeforeReshape.reshape, scale) | is_op("multiply")(
        scale, _BeforeReshape.reshape
    )

    def where(self, match: Match) -> bool:
        return _is_read_once(match) and super().where(match)

    def plan(self, match: Match) -> np.ndarray | Answer:
        if match.root.checked_type != match.reshape.checked_type:
            return NO_MATCH
        rank = len(match.root.checked_type.shape)
        vector = of_each_channel(match.scale, rank, axis=rank - 1)
        return NO_MATCH if vector is None else vector

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        shape = _of_any_batch(match.root)
        scale = np.resize(plan, shape[-1]).reshape(-1, 1, 1)
        scaled = relay.multiply(match.conv, as_constant(scale, match.scale.checked_type.dtype))
        return relay.reshape(scaled, shape)


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
    BiasBeforeReshape,
    ScaleBeforeReshape,
    ResidualBeforeReshape,
    ResidualToBeforeReshape,
    ActivationBeforeReshape,
    SpelledActivationBeforeReshape,
)


def _is_read_once(match: Match) -> bool:
    """Whether nothing else reads the rows, of which the convolution would have to be computed twice."""
    return all(len(match.graph.users(each)) == 1 for each in (match.conv, match.reshape))


def _is_of_pixels(expr: relay.Expr) -> bool:
    """Whether it may be a residual, or an activation in several operators, of images of one pixel."""
    shape = batch_shape(expr)
    return (
        op_name(expr) in ("add", *PRODUCTS) and shape is not None and len(shape) == 4 and shape[2:] == (1, 1)
    )


def _reads_rows_of(conv: relay.Expr, rows: relay.Expr) -> bool:
    """Whether the rows are images of one pixel that a convolution computes, channels along the last axis."""
    shape, of_rows = batch_shape(conv), batch_shape(rows) or (0,)
    if shape is None or len(shape) != 4 or shape[2:] != (1, 1):
        return False
    return of_rows[-1] == shape[1] and op_name(conv) in OF_PIXELS


def _of_any_batch(expr: relay.Expr) -> list[int]:
    """The new shape of a reshape to the shape of an expression, of which the batch may be dynamic."""
    first, *others = expr.checked_type.shape
    return [int(first) if hasattr(first, "value") else -1, *map(int, others)]
