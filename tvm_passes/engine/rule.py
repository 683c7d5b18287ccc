"""The rule engine: a rule says what to look for, when it is legal, and what to put there instead.

    class DropDoubleRelu(Rule):
        inner = is_op("nn.relu")(wildcard())
        pattern = is_op("nn.relu")(inner)

        def rewrite(self, match, plan):
            return match.inner

    class SimplifyRelu(RulePass):
        rules = (DropDoubleRelu,)

    mod = tvm.transform.Sequential([SimplifyRelu()])(mod)

Rules are applied to every function of a module, inside branches and nested functions, until none applies.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm import relay

from .contract import (
    LEGAL,
    MIN_ROUNDS,
    NO_MATCH,  # noqa: F401  (passes import it from here, with the others)
    Answer,
    Match,
    Refusal,
    Rule,
    first_rewrite,
)
from .expressions import location
from .graph import Graph, relay_functions
from .match import match as match_pattern
from .match import root_ops
from .module_pass import Pass
from .report import PassReport
from .typed import typed

OfTarget = TypeVar("OfTarget", bound=Rule)


class RulePass(Pass):
    """A pass that applies rules until none applies; `report` says what it did the last time."""

    rules: tuple[type[Rule], ...] = ()

    def __init__(self) -> None:
        rules = [_with_plan(rule()) for rule in self.rules]
        super().__init__(partial(apply_rules, rules), [type(rule).__name__ for rule in rules])


def for_target(rule: type[OfTarget], target: tvm.target.Target | None) -> type[OfTarget]:
    """The rule, whose `target` is this one: a pass makes its rules without arguments."""
    return type(rule.__name__, (rule,), {"target": target})


def _with_plan(rule: Any) -> Rule:
    """The rule; one from before there were plans, with `check` and `rewrite(match)`, is adapted."""
    if not hasattr(rule, "check"):
        return rule
    old = type(rule)
    warnings.warn(
        f"{old.__name__}: a rule's `check` is now `plan`, which returns LEGAL, a plan or a Refusal, and "
        "`rewrite` takes the plan; this release still accepts the old form",
        DeprecationWarning,
        stacklevel=4,
    )

    def plan(self: Any, match: Match) -> Answer | Refusal:
        reason = self.check(match)
        return LEGAL if reason is None else Refusal(reason)

    def rewrite(self: Any, match: Match, _plan: Any) -> relay.Expr:
        return old.rewrite(self, match)

    return type(old.__name__, (old,), {"plan": plan, "rewrite": rewrite})()


def apply_rules(rules: Sequence[Rule], mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    """Apply rules to every function until none applies; the same module if none ever did."""
    before = mod
    for _ in _rounds(before):
        module, graphs = typed(mod)
        report.forget_refusals()
        changed = {}
        for name, graph in graphs.items():
            replacements = _replacements(rules, graph, report)
            if replacements:
                changed[name] = graph.rebuilt(replacements)
        if not changed and mod is before:
            return before
        if not changed:
            return module
        for name, function in changed.items():
            module.update_func(name, function)
        mod = module
    rounds = max(_rounds(before))
    raise RuntimeError(f"{report.name} still finds something to rewrite after {rounds} rounds")


def _rounds(mod: tvm.IRModule) -> Iterator[int]:
    """From 1 on: a chain in which each rewrite makes the next one match takes a round per link."""
    yield from range(1, 1 + MIN_ROUNDS)
    nodes = sum(len(Graph(function).nodes) for function in relay_functions(mod).values())
    yield from range(1 + MIN_ROUNDS, 1 + nodes)


def _replacements(rules: Sequence[Rule], graph: Graph, report: PassReport) -> dict[relay.Expr, relay.Expr]:
    """{node: its replacement} for every legal match in a typed graph."""
    replacements = {}
    roots = [(rule, root_ops(rule.pattern)) for rule in rules]
    fitting: dict[str | None, list[Rule]] = {}  # by the name of an operator
    for node, op in graph.named:
        if op not in fitting:
            fitting[op] = [rule for rule, ops in roots if ops is None or op in ops]
        if not fitting[op] or node in graph.foreign:
            continue
        replacement = first_rewrite(fitting[op], graph, node, match_pattern, location, report)
        if replacement is not None:
            replacements[node] = replacement
    return replacements
