"""Fold calls whose operands are all constants.

TVM's FoldConstant compiles every such call for the CPU, which for the batch norms, transposed weights and
anchors of a detector takes half a minute. NumPy computes the few operators involved in no time, bit for bit
the same; the rest is left to FoldConstant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ..engine.expressions import op_name, static_shape
from ..engine.graph import Graph
from ..engine.stock import apply_stock
from ..engine.typed import typed
from .evaluate import TABLE, add_value

FLOATS = ("float32", "float16")


def with_weights(mod: tvm.IRModule, params: Mapping[str, Any] | None) -> tvm.IRModule:
    """A module with weights in place of the parameters of `main`."""
    if not params:
        return mod
    main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
    return tvm.IRModule({**mod.functions, mod.get_global_var("main"): main}, mod.type_definitions)


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with constants folded: with NumPy where it can, all else with TVM's FoldConstant."""
    mod, graphs = typed(mod)
    for name, graph in graphs.items():
        mod.update_func(name, graph.rebuilt(_constants(graph)))
    return apply_stock(relay.transform.FoldConstant(), to=mod)


def _constants(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{call: its value}, without those whose users are all among them."""
    values: dict[relay.Expr, Any] = {}  # an array, or a list of arrays
    for node in graph.nodes:
        if not isinstance(node, relay.Call) or (node not in graph.foreign and _is_known(node)):
            add_value(node, values)
    needed: set[relay.Expr] = set()
    for node in reversed(graph.nodes):
        users = graph.users(node)
        if node in values and (
            not users or any(user not in values or _passes_on(user, needed) for user in users)
        ):
            needed.add(node)
    return {
        node: relay.const(values[node], node.checked_type.dtype)
        for node in graph.nodes
        if node in needed and isinstance(values[node], np.ndarray) and not isinstance(node, relay.Constant)
    }


def _passes_on(user: relay.Expr, needed: set[relay.Expr]) -> bool:
    """Whether what is needed of a tuple is its fields."""
    return isinstance(user, relay.Tuple) and user in needed


def _is_known(node: relay.Expr) -> bool:
    """Whether NumPy may know the value. What fills a tensor, TVM does not fold if it has no operands."""
    return op_name(node) in TABLE and (len(node.args) > 0 or _is_of_floats(node))


def _is_of_floats(node: relay.Expr) -> bool:
    return static_shape(node) is not None and node.checked_type.dtype in FLOATS
