"""Compute what is made of weights alone.

TVM's FoldConstant compiles every such call for the CPU, which for the batch norms and transposed weights of a
detector takes half a minute. NumPy does the few operators among them in no time, to the same bits; what else
there is remains for FoldConstant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tvm
from tvm import relay

from ..analysis.layouts import order_of_axes
from ..engine.expressions import constant, known_shape, op_name, static_shape
from ..engine.graph import Graph, relay_functions
from ..engine.stock import apply_stock


def _reshaped(call: relay.Call, array: np.ndarray) -> np.ndarray:
    return array.reshape(known_shape(call))


def _transposed(call: relay.Call, array: np.ndarray) -> np.ndarray:
    return array.transpose(order_of_axes(call))


TABLE: dict[str, Callable[..., np.ndarray]] = {
    **{
        name: lambda call, *arrays, function=function: function(*arrays)
        for name, function in {
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "divide": np.divide,
            "negative": np.negative,
            "sqrt": np.sqrt,
        }.items()
    },
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), _reshaped),
    **dict.fromkeys(("transpose", "layout_transform"), _transposed),
}
FLOATS = ("float32", "float16")


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with constants folded: weights with NumPy, all else with TVM's FoldConstant."""
    mod = relay.transform.InferType()(mod)
    for name, function in relay_functions(mod).items():
        graph = Graph(function)
        mod.update_func(name, graph.rebuilt(_constants(graph)))
    return apply_stock(relay.transform.FoldConstant(), to=mod)


def _constants(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{call: its value}, without those that only others of them use."""
    arrays = {}
    for node in graph.nodes:
        if isinstance(node, relay.Constant):
            arrays[node] = constant(node)
        elif node not in graph.foreign and _can_compute(node) and all(arg in arrays for arg in node.args):
            with np.errstate(all="ignore"):
                arrays[node] = TABLE[node.op.name](node, *(arrays[arg] for arg in node.args))
    return {
        node: relay.const(np.asarray(array), node.checked_type.dtype)
        for node, array in arrays.items()
        if isinstance(node, relay.Call) and not all(user in arrays for user in graph.users(node))
    }


def _can_compute(node: relay.Expr) -> bool:
    name = op_name(node)
    if name not in TABLE or static_shape(node) is None or node.checked_type.dtype not in FLOATS:
        return False
    return TABLE[name] is not _transposed or order_of_axes(node) is not None
