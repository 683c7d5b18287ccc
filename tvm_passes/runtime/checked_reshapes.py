"""A reshape of unknown sizes to a known shape keeps the number of elements, or says so."""

from __future__ import annotations

import tvm
from tvm import relay
from tvm.relay.op import dyn

from ..engine.expressions import static_shape
from ..engine.graph import Graph
from ..engine.typed import typed


def with_checked_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, in which data of another number of elements than a reshape's known shape is refused.

    TVM computes no shape that it knows, so that it compared nothing: it read beyond the end of a tensor with
    fewer elements, and ignored some of one with more. Now a shape is computed for the data first.
    """
    result, graphs = typed(mod)
    checked = {name: _checked(graph) for name, graph in graphs.items()}
    for name in filter(checked.get, checked):
        result.update_func(name, graphs[name].rebuilt(checked[name]))
    return typed(result).module if any(checked.values()) else mod


def _checked(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{a reshape of unknown sizes: the same of data of the known shape}."""
    reshapes = [node for node, op in graph.named if op == "reshape" and node not in graph.foreign]
    return {node: _with_check(node) for node in reshapes if _is_unchecked(node)}


def _is_unchecked(reshape: relay.Call) -> bool:
    (data,) = reshape.args
    return relay.ty.is_dynamic(data.checked_type) and static_shape(reshape) is not None


def _with_check(reshape: relay.Call) -> relay.Expr:
    shape = static_shape(reshape)
    of_as_many = relay.const(list(shape or (1,)), "int64")  # a number has one element
    checked = dyn._make.reshape(reshape.args[0], of_as_many, True)
    return relay.reshape(checked, shape, allowzero=True)
