"""Replace operators that take the shape of another tensor with those that have it as an attribute."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relay
from tvm.relay.dataflow_pattern import wildcard

from ...engine.expressions import known_shape, op_name, static_shape
from ...engine.match import any_op
from ...engine.rule import Match, Rule


class LikeKnownShape(Rule):
    """Replace an operator such as broadcast_to_like with its static form where all shapes are known.

    Why legal: of the other tensor it takes nothing but the shape. Without it, what computes that tensor need
    not be in memory, nor come first. (What fills a tensor, as zeros_like, reads nothing of it as it is.)
    """

    data = wildcard()
    pattern = any_op(
        ("broadcast_to_like", "collapse_sum_like", "reshape_like", "slice_like"), data, wildcard()
    )

    def where(self, match: Match) -> bool:
        shapes = [static_shape(each) for each in (match.root, match.data)]
        return all(shape is not None and 0 not in shape for shape in shapes)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return _FORMS[op_name(match.root) or ""](match.root)


def _broadcast(call: relay.Call) -> relay.Expr:
    return relay.broadcast_to(call.args[0], known_shape(call))


def _reshaped(call: relay.Call) -> relay.Expr:
    return relay.reshape(call.args[0], known_shape(call))


def _sliced(call: relay.Call) -> relay.Expr:
    shape = known_shape(call)
    return relay.strided_slice(call.args[0], [0] * len(shape), shape)


def _summed(call: relay.Call) -> relay.Expr:
    """A sum along the axes that the result lacks, or has one element of."""
    data, shape = call.args[0], known_shape(call)
    lengths = known_shape(data)
    left = (*[1] * (len(lengths) - len(shape)), *shape)
    axes = [axis for axis, length in enumerate(lengths) if length != left[axis]]
    return relay.reshape(relay.sum(data, axes, keepdims=True) if axes else data, shape)


_FORMS: dict[str, Callable[[relay.Call], relay.Expr]] = {
    "broadcast_to_like": _broadcast,
    "collapse_sum_like": _summed,
    "reshape_like": _reshaped,
    "slice_like": _sliced,
}
