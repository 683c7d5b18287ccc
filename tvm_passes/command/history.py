"""Track each node of a graph through a sequence of passes.

Passes return new graphs of new objects. Nodes of two graphs are matched if they have the same operator,
attributes, type, weights and source location. Of the rest, nodes with the same operator and location count as
changed; all others were removed or added.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm

from ..engine.in_order import passes_in_order
from ..engine.report import Outcome, PassReport, Report, recording
from .node import Node

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .nodes_of_relay import nodes_of
else:
    from .nodes_of_relax import nodes_of


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
    for each in passes_in_order(passes):
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
    Report([report for step in steps for report in step.reports]).say_refusals_once()
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
