"""Replace small integer expressions whose value is known with that constant."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import wildcard

from .._graph import Graph
from .._matchers import op_name
from .._rule import Match, Rule
from .shape_values import all_known, shape_values


class FoldShapeArithmetic(Rule):
    """Replace arithmetic on known dimensions with its value.

    Why legal: every element follows from constants and static types, and none leaves its dtype's range.
    TVM's FoldConstant compiles each such expression, and gives up where a neighbouring element is unknown.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        users = match.graph.users(match.root)
        return _is_known(match.graph, match.root) and not all(_is_known(match.graph, user) for user in users)

    def rewrite(self, match: Match) -> relay.Expr:
        values = shape_values(match.graph, _integers(match.root))
        dtype = match.root.checked_type.dtype
        return relay.const(values.astype(dtype), dtype)  # without dtype it would narrow int64 to int32


def _integers(node: relay.Call) -> relay.Expr:
    """What a node that casts a dimension to float casts, as bounds of boxes are; any other node itself."""
    is_float = op_name(node) == "cast" and node.checked_type.dtype in ("float32", "float64")
    return node.args[0] if is_float else node


def _is_known(graph: Graph, node: relay.Expr) -> bool:
    if not isinstance(node, relay.Call):
        return False
    values = shape_values(graph, _integers(node))
    return isinstance(values, np.ndarray) and all_known(values)
