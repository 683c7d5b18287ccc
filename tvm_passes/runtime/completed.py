"""Attributes that TVM's types have and its compiler asks for, where a module was written without them.

Importers write them. Without the size of its kernel, a convolution fails in many ways, by the target and by
the types; without the number of indices, a `gather_nd` at unknown sizes ends the process. A convolution
without the type of its result has that of its data: of int8, TVM's compiler does not keep to it, so that the
sums are int32 and their lowest bits are taken, which are the same.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay

from ..engine.graph import Graph
from ..engine.typed import typed


def completed(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with these attributes."""
    result, graphs = typed(mod)
    calls = {name: _completed(graph) for name, graph in graphs.items()}
    for name in filter(calls.get, calls):
        result.update_func(name, graphs[name].rebuilt(calls[name]))
    return result if any(calls.values()) else mod


def _completed(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{call: the same with all attributes}."""
    found = {}
    for node, name in graph.named:
        if name in LACKING and node not in graph.foreign:
            attrs, of_types = LACKING[name]
            lacking = {key: value for key, value in of_types(node).items() if node.attrs[key] is None}
            dtype = node.checked_type.dtype
            is_narrow = name == "nn.conv2d" and dtype in NARROW
            if is_narrow:
                lacking["out_dtype"] = "int32"
            if lacking:
                given = {str(key): value for key, value in dict(node.attrs).items()}
                whole = tvm.ir.make_node(f"relay.attrs.{attrs}", **{**given, **lacking})
                call = relay.Call(node.op, node.args, whole, node.type_args, node.span)
                found[node] = relay.cast(call, dtype) if is_narrow else call
    return found


def _of_convolution(conv: relay.Call) -> dict[str, Any]:
    layouts = str(conv.attrs.kernel_layout), str(conv.attrs.out_layout) or str(conv.attrs.data_layout)
    if not all(layout.isalpha() for layout in layouts):  # what TVM's own passes write, with all attributes
        return {}
    weight, result = (
        dict(zip(layout, of.checked_type.shape)) for layout, of in zip(layouts, (conv.args[1], conv))
    )
    return {"kernel_size": [weight["H"], weight["W"]], "channels": result["C"]}


def _of_gather(gather: relay.Call) -> dict[str, Any]:
    return {"index_rank": gather.args[1].checked_type.shape[0]}


NARROW = "int8", "uint8"
LACKING = {"nn.conv2d": ("Conv2DAttrs", _of_convolution), "gather_nd": ("GatherNDAttrs", _of_gather)}
