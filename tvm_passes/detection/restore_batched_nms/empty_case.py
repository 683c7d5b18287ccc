"""Drop the branch that importers and torchvision put around an NMS for the case of no boxes."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_if, is_op, wildcard

from ...analysis.shape_values import all_equal
from ...engine.expressions import either_way, op_name, static_shape
from ...engine.rule import LEGAL, Answer, Match, Refusal, Rule
from ..selection import Selection, as_given


class NmsOfNothing(Selection, Rule):
    """Replace `if there are no boxes: no indices, else: nms(boxes)` with `nms(boxes)`.

    Why legal: given no boxes, topi_ext.batched_nms keeps none.
    """

    nothing, is_none = wildcard(), is_op("equal")(wildcard(), wildcard())
    pattern = is_if(is_none, nothing, Selection.selection)

    def plan(self, match: Match) -> Answer | Refusal:
        graph, boxes = match.graph, as_given(match.nms.args[0])
        pairs = either_way(match.is_none)
        if not any(_is_size(size, boxes) and all_equal(graph, zero, 0) for size, zero in pairs):
            return Refusal("the condition does not test for zero boxes")
        if not _is_empty(match.nothing):
            return Refusal("the branch for zero boxes returns indices")
        if str(match.selection.attrs.slice_mode) != "size" or not all_equal(graph, match.begin, 0):
            return Refusal("the branch returns indices other than the first ones")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.selection


def _is_size(size: relay.Expr, boxes: relay.Expr) -> bool:
    if op_name(size) == "prod":
        size = size.args[0]
        return op_name(size) == "shape_of" and size.args[0].same_as(boxes)
    return op_name(size) == "ndarray_size" and size.args[0].same_as(boxes)


def _is_empty(indices: relay.Expr) -> bool:
    # Merged with a branch of unknown length, the type of `If` loses that this one's length is 0.
    if op_name(indices) == "zeros":
        return [int(dim) for dim in indices.attrs.shape] == [0]
    value = getattr(indices, "data", None)
    return (value is not None and value.shape == (0,)) or static_shape(indices) == (0,)
