"""Replace operators that take bounds or shapes as tensors with those that have them as attributes."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.ir import IRModule
from tvm.relay.dataflow_pattern import is_op, is_tuple, wildcard

from ...analysis.limits import limits
from ...analysis.shape_values import (
    TO_THE_END,
    Clamped,
    Dim,
    Element,
    all_equal,
    all_known,
    length,
    shape_values,
)
from ...engine.expressions import either_way, op_name, static_shape
from ...engine.graph import Graph
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule

Cuts = dict[int, tuple[int, int, int]]  # begin, end and stride of each axis that a slice does not take whole


class StaticSlice(Rule):
    """Replace dyn.strided_slice with strided_slice where each bound is known, or is the axis's own length.

    Why legal: bounds mean the same in both forms. But TVM's static form, where it cuts a dynamic axis,
    asks for memory of negative size if it begins past the end, and does not compile once fused: so only
    static axes are cut, and named.
    """

    data, begin, end, strides = wildcard(), wildcard(), wildcard(), wildcard()
    pattern = is_op("dyn.strided_slice")(data, begin, end, strides)

    def where(self, match: Match) -> bool:
        return str(match.root.attrs.slice_mode) == "end"

    def plan(self, match: Match) -> Cuts | Refusal | Answer:
        bounds, shape = _bounds(match), match.data.checked_type.shape
        if bounds is None:
            return NO_MATCH
        cuts = {axis: each for axis, each in enumerate(bounds) if each != (0, TO_THE_END, 1)}
        for axis, (begin, end, _) in cuts.items():
            if not hasattr(shape[axis], "value"):
                return Refusal("the slice cuts an axis of unknown length")
            first, last, _ = slice(begin, end).indices(int(shape[axis]))
            if first > last:
                return Refusal("the slice ends before it begins")
        return cuts

    def rewrite(self, match: Match, plan: Cuts) -> relay.Expr:
        if not plan:
            return match.data
        begin, end, strides = zip(*plan.values())
        return relay.strided_slice(match.data, begin, end, strides, axes=list(plan))


class StaticReshape(Rule):
    """Replace dyn.reshape with reshape where at most one dimension is unknown.

    Why legal: one unknown dimension follows from the number of elements, as -1 says, unless another is 0.
    """

    data, shape = wildcard(), wildcard()
    pattern = is_op("dyn.reshape")(data, shape)

    def plan(self, match: Match) -> list[int] | Answer:
        shape = _new_shape(match)
        return NO_MATCH if shape is None else shape

    def rewrite(self, match: Match, plan: list[int]) -> relay.Expr:
        return relay.reshape(match.data, plan, bool(match.root.attrs.allowzero))


class StaticOperator(Rule):
    """Replace any other dynamic operator with its static form where all its dynamic operands are constant.

    Why legal: TVM's own DynamicToStatic does it. It is run on that operator alone, since on a whole
    detection network it takes minutes.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        name = op_name(match.root) or ""
        constants = match.root.args[1:] if name.startswith("dyn.") else []
        return len(constants) > 0 and all(isinstance(arg, relay.Constant) for arg in constants)

    def plan(self, match: Match) -> relay.Expr | Refusal:
        """The static form."""
        data, *constants = match.root.args
        if op_name(match.root) == "dyn.strided_slice":
            if static_shape(data) is None:
                return Refusal("the sliced tensor has a dynamic shape")
            if any(abs(int(bound)) > TO_THE_END for arg in constants for bound in arg.data.numpy()):
                return Refusal("the slice has a bound that TVM's static form cannot hold")
        argument = relay.var("data", data.checked_type)
        call = relay.Call(match.root.op, [argument, *constants], match.root.attrs)
        alone = IRModule.from_expr(relay.Function([argument], call))
        static = relay.transform.DynamicToStatic()(alone)["main"]
        if op_name(static.body) == op_name(match.root):
            return Refusal(f"TVM has no static form of {op_name(match.root)}")
        return relay.bind(static.body, {static.params[0]: data})

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class TakeForAdvIndex(Rule):
    """Replace adv_index by one list of rows with take, which is what ONNX's Gather becomes.

    Why legal: both take rows along the first axis, and in the mode "wrap" negative ones count from the end,
    as in adv_index. The mode is "clip" where none does; rows out of range are undefined.
    """

    data, rows = wildcard(), wildcard()
    pattern = is_op("adv_index")(is_tuple([data, rows]))

    def where(self, match: Match) -> bool:
        return len(match.rows.checked_type.shape) == 1

    def plan(self, match: Match) -> str:
        return _mode(match.graph, match.data, match.rows)

    def rewrite(self, match: Match, plan: str) -> relay.Expr:
        return relay.take(match.data, match.rows, axis=0, mode=plan)


class TakeForGatherNd(Rule):
    """Replace gather_nd with one index per element with take, as above.

    Why legal: with one row of indices, gather_nd takes rows along the first axis.
    """

    data, indices = wildcard(), wildcard()
    pattern = is_op("gather_nd")(data, indices)

    def where(self, match: Match) -> bool:
        attrs, length = match.root.attrs, match.indices.checked_type.shape[0]
        return int(attrs.batch_dims) == 0 and hasattr(length, "value") and int(length) == 1

    def plan(self, match: Match) -> str:
        return _mode(match.graph, match.data, match.indices)

    def rewrite(self, match: Match, plan: str) -> relay.Expr:
        return relay.take(match.data, relay.squeeze(match.indices, [0]), axis=0, mode=plan)


class ArgwhereOfNothing(Rule):
    """Replace argwhere of an empty tensor with an empty constant.

    Why legal: there is nothing to find. TVM has no code for it on CUDA.
    """

    condition = wildcard()
    pattern = is_op("argwhere")(condition)

    def where(self, match: Match) -> bool:
        return 0 in (static_shape(match.condition) or ())

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        rank = len(match.condition.checked_type.shape)
        return relay.const(np.zeros((0, rank)), match.root.checked_type.dtype)


STATIC_FORMS = (
    StaticSlice,
    StaticReshape,
    StaticOperator,
    TakeForAdvIndex,
    TakeForGatherNd,
    ArgwhereOfNothing,
)


def _mode(graph: Graph, data: relay.Expr, rows: relay.Expr) -> str:
    """The mode in which take reads the rows that adv_index does."""
    is_clipped = limits(graph, rows).least >= 0 or _count_from_the_start(graph, data, rows)
    return "clip" if is_clipped else "wrap"


def _count_from_the_start(graph: Graph, data: relay.Expr, rows: relay.Expr) -> bool:
    """Whether rows are `where(given < 0, given + length, given)`, which importers write."""
    if op_name(rows) != "where":
        return False
    is_negative, moved, given = rows.args
    return (
        op_name(is_negative) == "less"
        and is_negative.args[0].same_as(given)
        and all_equal(graph, is_negative.args[1], 0)
        and op_name(moved) == "add"
        and any(
            one.same_as(given) and all_equal(graph, other, length(data, 0))
            for one, other in either_way(moved)
        )
    )


def _bounds(match: Match) -> list[tuple[int, int, int]] | None:
    """(begin, end, stride) for each axis, or None."""
    begin, end, strides = (
        shape_values(match.graph, bound) for bound in (match.begin, match.end, match.strides)
    )
    if (
        begin is None
        or end is None
        or strides is None
        or not all_known(strides)
        or min(strides, default=1) <= 0
    ):
        return None
    rank = len(match.data.checked_type.shape)
    if not len(begin) == len(end) == len(strides) == rank:
        return None
    bounds = [_attribute(value, Dim(match.data, place % rank)) for place, value in enumerate((*begin, *end))]
    known = [bound for bound in bounds if bound is not None]
    return list(zip(known[:rank], known[rank:], strides)) if len(known) == 2 * rank else None


def _attribute(bound: Element, dim: Dim) -> int | None:
    """The attribute for a bound of an axis of length `dim`, or None."""
    if bound == dim or (isinstance(bound, int) and bound >= TO_THE_END):
        return TO_THE_END
    if isinstance(bound, int) and bound <= -TO_THE_END:
        return None
    if isinstance(bound, Clamped) and bound.dim == dim:
        return bound.bound
    return bound if isinstance(bound, int) else None


def _new_shape(match: Match) -> list[int] | None:
    """The attribute of a static reshape, or None."""
    values = shape_values(match.graph, match.shape)
    if values is None:
        return None
    known = [value for value in values if isinstance(value, int)]
    if len(known) == len(values):
        return known
    if len(values) - len(known) > 1 or any(value <= 0 for value in known):
        return None
    return [value if isinstance(value, int) else -1 for value in values]
