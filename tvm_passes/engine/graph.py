"""A Relay function as a graph: its nodes in order, who uses what, and rebuilding it with replacements.

Relay's own Python mutators recurse, and overflow the stack on networks of a few thousand nodes; these
keep an explicit stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import tvm
from tvm import relay
from tvm.relay.expr import RefCreate, RefRead, RefWrite

from .expressions import op_name


class Graph:
    """The nodes below `root` in post-order, with the users of each.

    `infer_result`: whether a rebuilt function may change its type; not if others call it by name.
    """

    def __init__(self, root: relay.Expr, infer_result: bool = False) -> None:
        self.root = root
        self.infer_result = infer_result
        self.notes: dict[Any, dict[Any, Any]] = {}  # what analyses found out about this graph, by analysis
        self.nodes: list[relay.Expr] = []
        relay.analysis.post_order_visit(root, self.nodes.append)
        self.foreign = {
            inner
            for node in self.nodes
            if belongs_to_a_backend(node)
            for inner in Graph(node.body).nodes
            if isinstance(inner, relay.Call)
        }
        self._below = {node: children(node) for node in self.nodes}
        self._users: dict[relay.Expr, list[relay.Expr]] = {node: [] for node in self.nodes}
        for node, below in self._below.items():
            for child in below:
                self._users.setdefault(child, []).append(node)

    @cached_property
    def named(self) -> list[tuple[relay.Expr, str | None]]:
        """The nodes, and the names of the operators that they call."""
        return [(node, op_name(node)) for node in self.nodes]

    def users(self, node: relay.Expr) -> list[relay.Expr]:
        """The nodes that take `node` as an input, or the function whose result it is."""
        return self._users[node]

    def rebuilt(self, replacements: Mapping[relay.Expr, relay.Expr]) -> relay.Expr:
        """The root with every node in `replacements` replaced.

        A replacement is an expression over nodes of this graph, equal in value to what it replaces; those
        of them that are replaced themselves are replaced there too, so all replacements apply at once.
        Nodes that a replacement adds take the source location of the node it replaces.
        """
        above = self._above(replacements)
        done = {node: node for node in self.nodes if node not in above}
        entered: set[relay.Expr] = set()
        stack: list[tuple[relay.Expr, relay.Span | None]] = [(self.root, None)]
        while stack:
            node, location = stack[-1]
            if node in done:
                stack.pop()
                continue
            source = replacements.get(node, node)
            stands_for_another = source in self._users and not source.same_as(node)
            below = [source] if stands_for_another else self._below.get(source) or children(source)
            if node not in entered:
                entered.add(node)
                if node in self._users:
                    location = getattr(node, "span", None)
                    stack[-1] = (node, location)
                waiting = [child for child in below if child not in done]
                if any(child in entered for child in waiting):
                    raise ValueError(f"the replacement of a node contains that node:\n{node}")
                stack.extend((child, location) for child in waiting)
                continue
            stack.pop()
            new = [done[child] for child in below]
            if stands_for_another:
                done[node] = new[0]
            elif below and source not in self._users:  # added by a replacement
                done[node] = with_children(source, new, source.span or location)
            elif all(old.same_as(child) for old, child in zip(below, new)):
                done[node] = source
            else:
                done[node] = with_children(source, new, source.span)
        root = done[self.root]
        if not self.infer_result or not isinstance(root, relay.Function) or root.same_as(self.root):
            return root
        # The type of the result may be more precise than before, so it is inferred anew.
        return relay.Function(root.params, root.body, None, root.type_params, root.attrs, root.span)

    def _above(self, replacements: Iterable[relay.Expr]) -> set[relay.Expr]:
        """The nodes that are replaced, and all that are computed from them."""
        found: set[relay.Expr] = set()
        waiting = [node for node in replacements if node in self._users]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self._users[node]
        return found


def belongs_to_a_backend(node: relay.Expr) -> bool:
    """Whether a node is a function partitioned for a backend, whose body is not ours to change."""
    attrs: Any = node.attrs if isinstance(node, relay.Function) else None
    return bool(attrs) and any(key in attrs for key in ("Primitive", "Compiler", "Composite"))


def relay_functions(mod: tvm.IRModule) -> dict[relay.GlobalVar, relay.Function]:
    """The Relay functions by name, without those that belong to a backend."""
    return {
        name: function
        for name, function in mod.functions.items()
        if isinstance(function, relay.Function) and not belongs_to_a_backend(function)
    }


def calls_of(mod: tvm.IRModule, name: str) -> list[relay.Call]:
    """All calls of an operator in a module, including those in branches and nested functions."""
    found: list[relay.Call] = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and getattr(node.op, "name", None) == name:
            found.append(node)

    for function in relay_functions(mod).values():
        relay.analysis.post_order_visit(function, visit)
    return found


def children(node: relay.Expr) -> list[relay.Expr]:
    """The expressions directly below a node."""
    below = BELOW.get(type(node))
    return below(node) if below else []


BELOW: dict[type, Callable[[Any], list[relay.Expr]]] = {  # by type, of which there are a million to ask for
    relay.Call: lambda node: [node.op, *node.args],
    relay.Tuple: lambda node: list(node.fields),
    relay.TupleGetItem: lambda node: [node.tuple_value],
    relay.Function: lambda node: [*node.params, node.body],
    relay.If: lambda node: [node.cond, node.true_branch, node.false_branch],
    relay.Let: lambda node: [node.var, node.value, node.body],
    relay.Match: lambda node: [node.data, *(clause.rhs for clause in node.clauses)],
    RefCreate: lambda node: [node.value],
    RefRead: lambda node: [node.ref],
    RefWrite: lambda node: [node.ref, node.value],
}


def with_children(node: relay.Expr, new: list[relay.Expr], span: relay.Span | None) -> relay.Expr:
    """`node` with other children, at source location `span`."""
    if isinstance(node, relay.Call):
        return relay.Call(new[0], new[1:], node.attrs, node.type_args, span)
    if isinstance(node, relay.Tuple):
        return relay.Tuple(new, span)
    if isinstance(node, relay.TupleGetItem):
        return relay.TupleGetItem(new[0], node.index, span)
    if isinstance(node, relay.Function):
        return relay.Function(node.params, new[-1], node.ret_type, node.type_params, node.attrs, span)
    if isinstance(node, relay.If):
        return relay.If(*new, span)
    if isinstance(node, relay.Let):
        return relay.Let(*new, span)
    if isinstance(node, relay.Match):
        clauses = [relay.Clause(old.lhs, rhs) for old, rhs in zip(node.clauses, new[1:])]
        return relay.Match(new[0], clauses, node.complete)
    return type(node)(*new)
