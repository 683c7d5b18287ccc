"""The nodes of a module of Relay, as they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import topi_ext.bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relay

from ..engine.expressions import location, op_name
from ..engine.graph import Graph, children, relay_functions
from .node import Node, constant_text


def nodes_of(mod: tvm.IRModule) -> list[Node]:
    """The shown nodes of all functions, with inputs and outputs, in topological order."""
    nodes: list[Node] = []
    for function in relay_functions(relay.transform.InferType()(mod)).values():
        _Shown(function, nodes)
    return nodes


class _Shown:
    """Adds the nodes of one function to the shown ones."""

    def __init__(self, function: relay.Function, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.graph = Graph(function)
        self.params = set(function.params)
        self.indices: dict[relay.Expr, int] = {}
        for node in self.graph.nodes:
            if not self._is_within_others(node):
                self.indices[node] = len(nodes)
                nodes.append(self._shown(node))
        self._add_outputs(function)

    def _is_within_others(self, node: relay.Expr) -> bool:
        """Weights are described at their users; tuples and their fields are parts of edges."""
        if isinstance(node, relay.Tuple):
            users = self.graph.users(node)
            return all(op_name(user) or user.same_as(self.graph.root) for user in users)
        return node.same_as(self.graph.root) or isinstance(
            node, (tvm.ir.Op, tvm.ir.GlobalVar, relay.Constant, relay.TupleGetItem)
        )

    def _shown(self, node: relay.Expr) -> Node:
        if isinstance(node, relay.Var):
            return self._node(
                "(input)" if node in self.params else "(variable)", node, [], {"name": node.name_hint}
            )
        if not isinstance(node, relay.Call):
            return self._node(f"({type(node).__name__})", node, children(node), {})
        op = op_name(node)
        if op:
            return self._node(op, node, node.args, _attrs(node.attrs))
        name = {"function": node.op.name_hint} if isinstance(node.op, tvm.ir.GlobalVar) else {}
        return self._node("(call)", node, children(node), name)

    def _node(self, op: str, node: relay.Expr, below: Iterable[relay.Expr], attrs: dict[str, str]) -> Node:
        weights: list[str] = []
        inputs: list[tuple[int, int | None]] = []
        for each in below:
            self._add_source(each, None, weights, inputs)
        return Node(op, attrs, type_text(node.checked_type), location(node), weights, inputs)

    def _add_source(
        self, expr: relay.Expr, output: int | None, weights: list[str], inputs: list[tuple[int, int | None]]
    ) -> None:
        """How an operand is shown: the nodes it comes from, and the weights in it."""
        if expr in self.indices:
            inputs.append((self.indices[expr], output))
        elif isinstance(expr, relay.TupleGetItem):
            inner = expr.tuple_value
            if isinstance(inner, relay.Tuple) and inner not in self.indices:
                self._add_source(inner.fields[expr.index], output, weights, inputs)
            else:
                self._add_source(inner, expr.index, weights, inputs)
        elif isinstance(expr, relay.Tuple):
            for part in expr.fields:
                self._add_source(part, None, weights, inputs)
        elif isinstance(expr, relay.Constant):
            weights.append(constant_text(expr.data))

    def _add_outputs(self, function: relay.Function) -> None:
        results = list(function.body.fields) if isinstance(function.body, relay.Tuple) else [function.body]
        names = (function.attrs and function.attrs.get("output_names")) or []
        for index, result in enumerate(results):
            name = str(names[index]) if len(names) == len(results) else f"output{index}"
            output = self._node("(output)", result, [result], {"name": name})
            output.location = ""
            self.nodes.append(output)


def type_text(type_: relay.Type) -> str:
    """A type as `float32[1, 3, ?, ?]`, and several in parentheses."""
    if isinstance(type_, relay.TupleType):
        return f"({', '.join(map(type_text, type_.fields))})"
    if not isinstance(type_, relay.TensorType):
        return " ".join(str(type_).split())
    lengths = (str(getattr(length, "value", "?")) for length in type_.shape)
    return f"{type_.dtype}[{', '.join(lengths)}]"


def _attrs(attrs: tvm.ir.Attrs | None) -> dict[str, str]:
    """Attributes as text, by name, without those that carry no information."""
    texts = {str(key): _attr_text(attrs[key]) for key in attrs.keys()} if attrs is not None else {}  # noqa: SIM118
    return {key: texts[key] for key in sorted(texts) if texts[key]}


def _attr_text(value: Any) -> str:
    if isinstance(value, (tvm.tir.IntImm, tvm.tir.FloatImm)):
        return str(value.value)
    return "" if value is None else str(value)
