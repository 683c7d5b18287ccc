"""Fold calls whose operands are all weights.

TVM's FoldConstant compiles every such call for the CPU, which for the batch norms and transposed weights of a
detector takes half a minute. NumPy computes the few operators involved in no time, bit for bit the same; the
rest is left to FoldConstant.
"""

from __future__ import annotations

import numpy as np

import tvm
from tvm import relay

from ..engine.expressions import op_name, static_shape
from ..engine.graph import Graph, relay_functions
from ..engine.stock import apply_stock
from .evaluate import TABLE, NotFolded, apply

FLOATS = ("float32", "float16")


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with constants folded: weights with NumPy, all else with TVM's FoldConstant."""
    mod = relay.transform.InferType()(mod)
    for name, function in relay_functions(mod).items():
        graph = Graph(function)
        mod.update_func(name, graph.rebuilt(_constants(graph)))
    return apply_stock(relay.transform.FoldConstant(), to=mod)


def _constants(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{call: its value}, without those whose users are all among them."""
    arrays: dict[relay.Expr, np.ndarray] = {}
    for node in graph.nodes:
        if isinstance(node, relay.Constant):
            arrays[node] = node.data.numpy()
        elif node not in graph.foreign and _is_of_weights(node) and all(arg in arrays for arg in node.args):
            try:
                arrays[node] = apply(node, node.checked_type, [arrays[arg] for arg in node.args])
            except NotFolded:
                continue
    return {
        node: relay.const(array, node.checked_type.dtype)
        for node, array in arrays.items()
        if isinstance(node, relay.Call) and not all(user in arrays for user in graph.users(node))
    }


def _is_of_weights(node: relay.Expr) -> bool:
    return op_name(node) in TABLE and static_shape(node) is not None and node.checked_type.dtype in FLOATS
