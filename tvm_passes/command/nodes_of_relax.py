"""The nodes of a module of Relax, as they are shown."""

from __future__ import annotations

from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst

from ..relax.graph import Graph, op_name
from ..relax.rule_pass import tidied
from .node import Node, constant_text


def nodes_of(mod: tvm.IRModule) -> list[Node]:
    """The shown nodes of all functions of Relax, with inputs and outputs, in the order of their bindings."""
    nodes: list[Node] = []
    for function in tidied(mod).functions.values():
        if isinstance(function, relax.Function):
            _Shown(function, nodes)
    return nodes


class _Shown:
    """Adds the nodes of one function to the shown ones."""

    def __init__(self, function: relax.Function, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.graph = Graph(function)
        self.indices: dict[Expr, int] = {}
        for param in function.params:
            self._add(param, Node("(input)", {"name": str(param.name)}, type_text(param.ty), "", [], []))
        for _, value in self.graph.bindings:
            is_within_others = isinstance(value, (relax.Tuple, relax.TupleGetItem, relax.Var, GenericConst))
            if not is_within_others and value not in self.indices:
                self._add(value, self._shown(value))
        self._add_outputs(function)

    def _add(self, value: Expr, node: Node) -> None:
        self.indices[value] = len(self.nodes)
        self.nodes.append(node)

    def _shown(self, value: Expr) -> Node:
        name = op_name(value)
        operands = list(value.args) if isinstance(value, relax.Call) else relax.analysis.free_vars(value)
        op = name.removeprefix("relax.") or ("(call)" if isinstance(value, relax.Call) else "(If)")
        attrs = _attrs(value.attrs) if name else {}
        return self._node(op, value, operands, attrs, self.graph.location(value))

    def _node(self, op: str, value: Expr, operands: Any, attrs: dict[str, str], location: str) -> Node:
        weights: list[str] = []
        inputs: list[tuple[int, int | None]] = []
        for each in operands:
            self._add_source(each, None, weights, inputs)
        return Node(op, attrs, type_text(value.ty), location, weights, inputs)

    def _add_source(
        self, expr: Expr, output: int | None, weights: list[str], inputs: list[tuple[int, int | None]]
    ) -> None:
        """How an operand is shown: the nodes it comes from, and the weights in it."""
        value = self.graph.value(expr)
        if value in self.indices:
            inputs.append((self.indices[value], output))
        elif isinstance(value, relax.TupleGetItem):
            inner = self.graph.value(value.tuple_value)
            if isinstance(inner, relax.Tuple):
                self._add_source(inner.fields[value.index], output, weights, inputs)
            else:
                self._add_source(inner, int(value.index), weights, inputs)
        elif isinstance(value, relax.Tuple):
            for field in value.fields:
                self._add_source(field, None, weights, inputs)
        elif isinstance(value, GenericConst):
            weights.append(constant_text(value.value))

    def _add_outputs(self, function: relax.Function) -> None:
        body = self.graph.value(function.body.body)
        results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        names = list(function.attrs.get("output_names", ())) if function.attrs else []
        for index, result in enumerate(results):
            name = str(names[index]) if len(names) == len(results) else f"output{index}"
            self.nodes.append(self._node("(output)", result, [result], {"name": name}, ""))


def type_text(type_: tvm.ir.Type) -> str:
    """A type as `float32[1, 3, ?, ?]`, and several in parentheses."""
    if isinstance(type_, relax.TupleType):
        return f"({', '.join(map(type_text, type_.fields))})"
    if not isinstance(type_, relax.TensorType) or type_.dtype is None:
        return " ".join(str(type_).split())
    is_known = isinstance(type_.shape, relax.ShapeExpr)
    extents = list(type_.shape.values) if is_known else [None] * type_.ndim
    lengths = (str(getattr(each, "value", "?")) for each in extents)
    return f"{type_.dtype.dtype}[{', '.join(lengths)}]"


def _attrs(attrs: tvm.ir.Attrs | None) -> dict[str, str]:
    """Attributes as text, by name, without those that carry no information."""
    if attrs is None:
        return {}
    if isinstance(attrs, tvm.ir.DictAttrs):
        fields = dict(attrs.items())
    else:
        fields = {each.name: getattr(attrs, each.name) for each in type(attrs).__tvm_ffi_type_info__.fields}
    texts = {str(name): _attr_text(value) for name, value in fields.items()}
    return {name: texts[name] for name in sorted(texts) if texts[name]}


def _attr_text(value: Any) -> str:
    return "" if value is None else str(getattr(value, "value", value))
