"""Pad a tensor instead of concatenating it with a filled one of computed length."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple, wildcard

from ...engine.expressions import constant, op_name, type_of
from ...engine.rule import NO_MATCH, Answer, Match, Rule

Plan = tuple[relay.Expr, relay.Expr]  # the shape of the filled tensor, and its number


class PadWithFilled(Rule):
    """Replace the concatenation of a tensor and one filled with a number, of computed length, with a pad.

    Why legal: a pad puts as many elements, all of this number, behind the same axis.
    """

    data, filled = wildcard(), wildcard()
    pattern = is_op("concatenate")(is_tuple([data, filled]))

    def plan(self, match: Match) -> Plan | Answer:
        axis = int(match.root.attrs.axis) % len(type_of(match.root).shape)
        made = _filled(match.filled, axis)
        if made is None or _filled(match.data, axis) is not None:
            return NO_MATCH
        return made.args[1], made.args[0]

    def rewrite(self, match: Match, plan: Plan) -> relay.Expr:
        shape, value = plan
        rank = len(type_of(match.root).shape)
        axis = int(match.root.attrs.axis) % rank
        length = relay.cast(relay.take(shape, relay.const([axis], "int32"), axis=0), "int64")
        none = relay.const(np.zeros(1), "int64")
        widths = relay.concatenate([length if side == (axis, 1) else none for side in np.ndindex(rank, 2)], 0)
        padded = relay.nn.pad(match.data, relay.reshape(widths, [rank, 2]), value)
        # The type of a pad by computed widths has no extent that is known.
        extents = [getattr(extent, "value", 0) for extent in type_of(match.root).shape]
        return relay.reshape(padded, extents) if any(extents) else padded


def _filled(expr: relay.Expr, axis: int) -> relay.Call | None:
    """The `full` of computed shape that this is, but for extents of other axes."""
    if op_name(expr) == "reshape" and _keeps(expr, axis):
        expr = expr.args[0]
    return expr if op_name(expr) == "dyn.full" and constant(expr.args[0]) is not None else None


def _keeps(reshape: relay.Call, axis: int) -> bool:
    """Whether a reshape only tells the extents of other axes."""
    new = [int(extent) for extent in reshape.attrs.newshape]
    return len(new) == len(type_of(reshape.args[0]).shape) and new[axis] == 0 and -1 not in new
