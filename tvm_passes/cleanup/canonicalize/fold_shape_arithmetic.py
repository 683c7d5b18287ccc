"""Replace small integer expressions whose value is known with that constant."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import wildcard

from ...analysis.shape_values import all_known, shape_values
from ...engine.expressions import op_name
from ...engine.graph import Graph
from ...engine.rule import NO_MATCH, Answer, Match, Rule


class FoldShapeArithmetic(Rule):
    """Replace arithmetic on known dimensions with its value.

    Why legal: every element follows from constants and static types, and none leaves its dtype's range.
    TVM's FoldConstant compiles each such expression, and gives up where a neighbouring element is unknown.
    """

    pattern = wildcard()

    def plan(self, match: Match) -> np.ndarray | Answer:
        values, users = _known(match.graph, match.root), match.graph.users(match.root)
        if values is None or all(_known(match.graph, user) is not None for user in users):
            return NO_MATCH
        return values

    def rewrite(self, match: Match, plan: np.ndarray) -> relay.Expr:
        dtype = match.root.checked_type.dtype
        return relay.const(plan.astype(dtype), dtype)  # without dtype it would narrow int64 to int32


def _integers(node: relay.Call) -> relay.Expr:
    """The operand of a cast of a dimension to float, as for bounds of boxes; any other node itself."""
    is_float = op_name(node) == "cast" and node.checked_type.dtype in ("float32", "float64")
    return node.args[0] if is_float else node


def _known(graph: Graph, node: relay.Expr) -> np.ndarray | None:
    """The elements of a call's result, if all are known."""
    values = shape_values(graph, _integers(node)) if isinstance(node, relay.Call) else None
    return values if isinstance(values, np.ndarray) and all_known(values) else None
