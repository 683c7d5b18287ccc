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

import enum
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import DFPattern

from .expressions import location, op_name
from .graph import Graph, relay_functions
from .match import Bound, root_ops
from .match import match as match_pattern
from .module_pass import Pass
from .report import PassReport


@dataclass(frozen=True)
class Refusal:
    """Why a rewrite would be wrong here, in words for the user."""

    reason: str


class Answer(enum.Enum):
    """What a rule's `plan` returns when it has nothing to pass to `rewrite`."""

    LEGAL = "the rewrite is legal, and needs only the match"
    NO_MATCH = "the pattern means something else here, which is not worth reporting"


LEGAL, NO_MATCH = Answer.LEGAL, Answer.NO_MATCH


class Rule:
    """What to look for, when it is legal, and what to put there instead.

    Patterns that are class attributes name what they match: what the attribute `data` matched is
    `match.data`.
    """

    pattern: DFPattern

    def where(self, match: Match) -> bool:
        """A condition that a pattern cannot express, such as a rank: if False, there is no match at all."""
        return True

    def plan(self, match: Match) -> Any:
        """What the rewrite needs to know, or a `Refusal` where it would be wrong.

        LEGAL, if it needs only the match; NO_MATCH, if making the plan shows that there is nothing to
        rewrite. It must not change anything. None, a forgotten `return`, counts as a refusal.
        """
        return LEGAL

    def rewrite(self, match: Match, plan: Any) -> relay.Expr:
        """An expression equal in value to `match.root`, over other expressions of the graph."""
        raise NotImplementedError


class Match:
    """A place where a rule's pattern matches: what each named pattern stands for there."""

    def __init__(self, rule: Rule, graph: Graph, root: relay.Expr, bound: Bound) -> None:
        self.graph = graph
        self.root = root
        self._bound = bound
        self._names = _named_patterns(type(rule))

    def __getattr__(self, name: str) -> Any:
        pattern = self.__dict__.get("_names", {}).get(name)
        if pattern is None:
            raise AttributeError(f"the rule has no pattern named {name!r}")
        return self._bound.get(pattern)

    def used_elsewhere(self, *nodes: relay.Expr) -> bool:
        """Whether any of these nodes below the root has a user outside the match."""
        inside = list(self._bound.values())
        return any(user not in inside for node in nodes for user in self.graph.users(node))


class RulePass(Pass):
    """A pass that applies rules until none applies; `report` says what it did the last time."""

    rules: tuple[type[Rule], ...] = ()

    def __init__(self) -> None:
        rules = [_with_plan(rule()) for rule in self.rules]
        super().__init__(partial(apply_rules, rules), [type(rule).__name__ for rule in rules])


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


MIN_ROUNDS = 100


def apply_rules(rules: Sequence[Rule], mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    """Apply rules to every function until none applies; the same module if none ever did."""
    before = mod
    for _ in _rounds(before):
        typed = relay.transform.InferType()(mod)
        report.forget_refusals()
        changed = {}
        functions = relay_functions(typed)
        for name, function in functions.items():
            graph = Graph(function, infer_result=len(functions) == 1)
            replacements = _replacements(rules, graph, report)
            if replacements:
                changed[name] = graph.rebuilt(replacements)
        if not changed and mod is before:
            return before
        if not changed:
            return typed
        for name, function in changed.items():
            typed.update_func(name, function)  # which InferType made anew
        mod = typed
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
    for node in graph.nodes:
        if node in graph.foreign:
            continue
        op = op_name(node)
        for rule, ops in roots:
            if ops is not None and op not in ops:
                continue
            bound = match_pattern(rule.pattern, node)
            if bound is None:
                continue
            replacement = _rewritten(rule, Match(rule, graph, node, bound))
            name = type(rule).__name__
            if isinstance(replacement, Refusal):
                report.refused(name, location(node), replacement.reason)
            elif replacement is not NO_MATCH:
                replacements[node] = replacement
                report.rewrote(name, location(node))
                break
    return replacements


def _rewritten(rule: Rule, match: Match) -> relay.Expr | Refusal | Answer:
    """What a rule replaces a match with, why it refuses to, or NO_MATCH."""
    if not rule.where(match):
        return NO_MATCH
    plan = rule.plan(match)
    if plan is None:
        return Refusal(f"{type(rule).__name__}.plan returned neither a plan nor a refusal")
    if plan is NO_MATCH or isinstance(plan, Refusal):
        return plan
    replacement = rule.rewrite(match, plan)
    if not isinstance(replacement, relay.Expr):
        raise TypeError(f"{type(rule).__name__}.rewrite returned {replacement!r}, which is not an expression")
    return replacement


def _named_patterns(rule_type: type[Rule]) -> dict[str, DFPattern]:
    return {
        name: value
        for base in reversed(rule_type.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, DFPattern)
    }
