"""Combine transposes that follow each other, so that those that cancel are gone."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._layouts import order_of_axes
from ._matchers import static_shape
from ._rule import Match, Rule, RulePass


class TransposeOfTranspose(Rule):
    """Replace two transposes in a row, also those that layout_transform spells, with one.

    Why legal: axes that are put into one order, then into another, are put into some order.
    """

    data = wildcard()
    inner = is_op("transpose")(data) | is_op("layout_transform")(data)
    pattern = is_op("transpose")(inner) | is_op("layout_transform")(inner)

    def where(self, match: Match) -> bool:
        return order_of_axes(match.root) is not None and order_of_axes(match.inner) is not None

    def rewrite(self, match: Match) -> relay.Expr:
        inner = order_of_axes(match.inner)
        return relay.transpose(match.data, [inner[axis] for axis in order_of_axes(match.root)])


class TransposeOfNothing(Rule):
    """Replace a transpose that only moves axes of extent 1 with a reshape, which costs nothing.

    Why legal: the elements stay in their order, whatever such an axis does.
    """

    data = wildcard()
    pattern = is_op("transpose")(data) | is_op("layout_transform")(data)

    def where(self, match: Match) -> bool:
        shape, axes = static_shape(match.data), order_of_axes(match.root)
        if shape is None or axes is None or 0 in shape:  # 0 among a reshape's lengths says something else
            return False
        longer = [axis for axis in axes if shape[axis] != 1]
        return longer == sorted(longer)

    def rewrite(self, match: Match) -> relay.Expr:
        if list(order_of_axes(match.root)) == sorted(order_of_axes(match.root)):
            return match.data
        return relay.reshape(match.data, static_shape(match.root))


class CombineTransposes(RulePass):
    """Combine transposes, and drop those that move nothing.

    >>> x = relay.var("x", shape=(1, 8, 4, 5))
    >>> y = relay.transpose(relay.layout_transform(x, "NCHW", "NHWC"), [0, 3, 1, 2])
    >>> mod = tvm.IRModule.from_expr(relay.nn.relu(y))
    >>> print(tvm_passes.as_text(tvm_passes.CombineTransposes()(mod)))
    def @main(%x: Tensor[(1, 8, 4, 5), float32]) -> Tensor[(1, 8, 4, 5), float32] {
      nn.relu(%x)
    }
    """

    rules = (TransposeOfTranspose, TransposeOfNothing)
