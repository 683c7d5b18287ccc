"""Whether TVM's graph executor can run a network, which has a memory plan, or only its virtual machine."""

from __future__ import annotations

import tvm
from tvm import relay

from ..engine.graph import Graph, belongs_to_a_backend

PLAIN = (relay.Var, relay.Constant, relay.Call, relay.Tuple, relay.TupleGetItem, relay.GlobalVar, tvm.ir.Op)


def is_static(graph: Graph) -> bool:
    """Whether all types in a typed function are static, and it has no control flow."""
    return not any(map(_is_dynamic, graph.nodes)) and all(
        isinstance(node, PLAIN) or node.same_as(graph.root) or belongs_to_a_backend(node)
        for node in graph.nodes
    )


def _is_dynamic(node: relay.Expr) -> bool:
    type_ = getattr(node, "_checked_type_", None)  # an operator has none
    return type_ is not None and bool(relay.ty.is_dynamic(type_))
