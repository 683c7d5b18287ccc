"""Track each node of a graph through a sequence of passes.

Passes return new graphs of new objects. Nodes of two graphs are matched if they have the same operator,
attributes, type, weights and source location. Of the rest, nodes with the same operator and location count as
changed; all others were removed or added.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import topi_ext.bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relay

from ..engine.expressions import location, op_name
from ..engine.graph import Graph, children, relay_functions
from ..engine.report import Outcome, PassReport, recording


@dataclass
class Node:
    """A node as it is shown: weights, and tuples that only hold operands, are not nodes of their own."""

    op: str
    attrs: dict[str, str]
    type: str
    location: str
    weights: list[str]
    inputs: list[tuple[int, int | None]]  # (index of the node, index of its output or None)
    fate: str = "same"  # or "changed"; "removed" from the graph before; "added" to the graph after
    steps: list[int] = field(default_factory=list)  # the one that added, changed or removed it
    peer: int | None = None  # the same node in the other graph
    replaced: list[int] = field(
        default_factory=list
    )  # nodes of the other graph that this one replaces, or that replace it

    @property
    def looks(self) -> tuple[Any, ...]:
        return self.op, tuple(self.attrs.items()), self.type, tuple(self.weights), self.location


@dataclass
class Step:
    """One pass of a pipeline."""

    name: str
    seconds: float
    reports: list[PassReport] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of nodes "added", "removed", "changed"

    @property
    def rewrites(self) -> list[Outcome]:
        return [outcome for report in self.reports for outcome in report.rewrites]

    @property
    def refusals(self) -> list[Outcome]:
        return [outcome for report in self.reports for outcome in report.refusals]


@dataclass
class History:
    """A module before and after passes, and the steps between."""

    before: list[Node]
    after: list[Node]
    steps: list[Step]
    module: tvm.IRModule  # after


def apply_and_track(
    mod: tvm.IRModule, passes: tvm.transform.Pass, on_step: Callable[[str], None] = lambda name: None
) -> History:
    """Apply passes one by one; `on_step` is called with the name of each before it runs."""
    first = current = nodes_of(mod)
    origins: list[int | None] = list(
        range(len(first))
    )  # for each current node, its index in `first`, or None
    steps: list[Step] = []
    for each in _flat(passes):
        name = str(each.info.name)
        on_step(name)
        start = time.perf_counter()
        with recording() as report:
            after = each(mod)
        step = Step(name, time.perf_counter() - start, report.passes)
        if not after.same_as(mod):
            new = nodes_of(after)
            origins = _carry(current, new, origins, first, len(steps), step.counts)
            mod, current = after, new
        steps.append(step)
    for index, origin in enumerate(origins):
        if origin is not None:
            current[index].peer, first[origin].peer = origin, index
        for replaced in current[index].replaced:
            first[replaced].replaced.append(index)
    if current is first:  # no pass did anything, and the two graphs must not share node objects
        current = nodes_of(mod)
        for index, node in enumerate(current):
            node.peer = first[index].peer = index
    return History(first, current, steps, mod)


def operators(nodes: Iterable[Node]) -> Counter[str]:
    """The number of calls of each operator."""
    return Counter(node.op for node in nodes if not node.op.startswith("("))


def _flat(passes: tvm.transform.Pass) -> Iterator[tvm.transform.Pass]:
    """The passes of nested sequences, in order; all have level 0, so TVM would skip none of them."""
    parts = getattr(passes, "passes", None)
    if parts is None:
        yield passes
        return
    for part in parts:
        yield from _flat(part)


def _carry(
    old: list[Node],
    new: list[Node],
    origins: list[int | None],
    first: list[Node],
    step: int,
    counts: Counter[str],
) -> list[int | None]:
    """Mark the changes of one step, and return the origins of the new nodes."""
    pairs = _pairs(old, new)
    result: list[int | None] = [None] * len(new)
    for index, node in enumerate(new):
        if index not in pairs:
            node.fate, node.steps = "added", [step]
            counts["added"] += 1
            continue
        before = old[pairs[index]]
        node.fate, node.steps, node.replaced = before.fate, before.steps, before.replaced
        result[index] = origins[pairs[index]]
        if node.looks != before.looks:
            counts["changed"] += 1
            node.steps = [*before.steps, step]
            origin = result[index]
            if origin is not None:
                node.fate = first[origin].fate = "changed"
                first[origin].steps = node.steps
    removed = sorted(set(range(len(old))) - set(pairs.values()))
    for index in removed:
        counts["removed"] += 1
        origin = origins[index]
        if origin is not None:
            node = first[origin]
            node.fate, node.steps = "removed", [*node.steps, step]
    for index, successors in _successors(old, new, pairs, removed).items():
        before = old[index]
        origin = origins[index]
        stands_for = before.replaced if origin is None else [origin]
        for node in (new[successor] for successor in successors):
            node.replaced = sorted({*node.replaced, *stands_for})
            node.steps = sorted({*node.steps, *before.steps})
    return result


def _successors(
    old: list[Node], new: list[Node], pairs: dict[int, int], removed: list[int]
) -> dict[int, set[int]]:
    """For each removed node, the added nodes of its source location, else the new inputs of its users."""
    at: dict[str, set[int]] = defaultdict(set)
    for index, node in enumerate(new):
        if index not in pairs:
            for place in _places(node):
                at[place].add(index)
    still = {before: now for now, before in pairs.items()}
    users: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(old):
        for source, _ in node.inputs:
            users[source].append(index)

    def added_above(index: int) -> set[int]:
        """The added inputs of a node, each with all nodes that were added at its source location."""
        direct = [source for source, _ in new[index].inputs if source not in pairs]
        return set(direct).union(*(at[place] for source in direct for place in _places(new[source])))

    found: dict[int, set[int]] = {}
    for index in reversed(removed):  # users first
        here = set().union(*(at[place] for place in _places(old[index])))
        of_users = (added_above(still[user]) if user in still else found[user] for user in users[index])
        found[index] = here or set().union(*of_users)
    return found


def _places(node: Node) -> list[str]:
    return node.location.split(", ") if node.location else []


def _pairs(old: list[Node], new: list[Node]) -> dict[int, int]:
    """{index of a new node: index of the old node that it matches}"""
    pairs: dict[int, int] = {}
    left = set(range(len(old)))
    for looks in (
        lambda node: node.looks,
        lambda node: node.location and (node.op, node.location),
        lambda node: not node.location and (node.op, node.type),
    ):
        waiting: dict[Any, deque[int]] = defaultdict(deque)
        for index in sorted(left):
            waiting[looks(old[index])].append(index)
        for index, node in enumerate(new):
            if index not in pairs and looks(node) and waiting[looks(node)]:
                pairs[index] = waiting[looks(node)].popleft()
        left -= set(pairs.values())
    return pairs


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
            weights.append(_constant_text(expr))

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


def _constant_text(constant: relay.Constant) -> str:
    data = constant.data
    if data.shape in ((), (1,)):
        return f"{data.numpy().reshape(-1)[0]} {data.dtype}"
    return f"{data.dtype}[{', '.join(map(str, data.shape))}]"
