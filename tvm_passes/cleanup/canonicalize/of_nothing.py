"""Name what TVM divides by zero for: tensors without elements, and means of them."""

from __future__ import annotations

import math

from tvm import relay
from tvm.ir import Op
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import op_name, static_shape
from ...engine.match import any_op
from ...engine.rule import Match, Rule

MAKERS = "zeros", "full"  # which TVM compiles for any shape


class NothingIsMade(Rule):
    """Replace an operator whose result has no elements with an empty tensor of the same type.

    Why legal: operators have no effects, and tensors without elements differ in shape and type alone. TVM
    divides by their extents, and does not compile, such as in grouped convolutions of a batch of none.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        root = match.root
        return (
            isinstance(root, relay.Call)
            and isinstance(root.op, Op)
            and op_name(root) not in MAKERS
            and 0 in (static_shape(root) or ())
        )

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        type_ = match.root.checked_type
        return relay.zeros(type_.shape, type_.dtype)


class MeanOfNothing(Rule):
    """Replace the mean or variance of no numbers with NaN, which it is in torch and NumPy.

    Why legal: a sum of none, 0, divided by their number, 0, is NaN, and ONNX leaves it open. TVM
    refuses to divide by a constant 0.
    """

    data = wildcard()
    pattern = any_op(("mean", "variance"), data) | is_op("variance")(data, wildcard())

    def where(self, match: Match) -> bool:
        is_of_none = 0 in (static_shape(match.data) or ())
        is_static = static_shape(match.root) is not None
        return is_of_none and is_static and "float" in match.root.checked_type.dtype

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        type_ = match.root.checked_type
        return relay.full(relay.const(math.nan, type_.dtype), type_.shape, type_.dtype)
