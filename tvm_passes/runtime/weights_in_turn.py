"""The order of convolutions on CPUs: those with the same weights one after the other, while these are cached.

The heads of RetinaNet read the same weights for each level of its pyramid. TVM computes a graph in depth
first, all layers of a level before the next one, and so reads the weights of all layers from memory for each
level, which takes longer than the products for the smaller ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from topi_ext.conv2d_nhwc.op import NAME  # topi_ext comes before tvm

import tvm
from tvm import relay

from ..engine.graph import Graph, children

WITH_SCOPES = relay.Function, relay.If, relay.Let, relay.Match  # out of which nothing may be taken


def weights_in_turn(mod: tvm.IRModule) -> tvm.IRModule:
    """A typed module in which `main` binds these convolutions to variables, in the order of computation."""
    main = mod["main"]
    graph = Graph(main.body)
    groups = _sharing(graph)
    has_scopes = any(isinstance(node, WITH_SCOPES) for node in graph.nodes)
    order = _in_order(graph, groups) if groups and not has_scopes else []
    if not order:
        return mod
    variables = {call: relay.Var("shared", call.checked_type) for call in order}
    values = [relay.Call(call.op, call.args, call.attrs, call.type_args, call.span) for call in order]
    whole = Graph(relay.Tuple([main.body, *values])).rebuilt(variables)
    body, *values = whole.fields
    for call, value in reversed([*zip(order, values)]):
        body = relay.Let(variables[call], value, body)
    function = relay.Function(main.params, body, main.ret_type, main.type_params, main.attrs, main.span)
    return relay.transform.InferType()(tvm.IRModule({**mod.functions, mod.get_global_var("main"): function}))


def _sharing(graph: Graph) -> list[list[relay.Call]]:
    """Calls whose weights are the same."""
    found: dict[str, list[relay.Call]] = defaultdict(list)
    for node, name in graph.named:
        if name == NAME and node.attrs.weight_id:
            found[node.attrs.weight_id].append(node)
    return [calls for calls in found.values() if len(calls) > 1]


def _in_order(graph: Graph, groups: list[list[relay.Call]]) -> list[relay.Call]:
    """The calls of these groups, each after those that it needs; none where there is no such order."""
    of_call = {call: at for at, calls in enumerate(groups) for call in calls}
    needed: dict[relay.Expr, frozenset[int]] = {}  # groups, for a node and all below it
    before: dict[int, set[int]] = {at: set() for at in range(len(groups))}
    for node in graph.nodes:
        below = _union(needed.get(child, frozenset()) for child in children(node))
        if node in of_call:
            before[of_call[node]] |= below
            below |= {of_call[node]}
        needed[node] = below
    try:
        return [call for at in TopologicalSorter(before).static_order() for call in groups[at]]
    except CycleError:  # such as a layer that is applied to its own result
        return []


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
