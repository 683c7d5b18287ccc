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
from collections.abc import Sequence
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
    """What a rule's `plan` answers where there is nothing to hand on."""

    LEGAL = "the rewrite is right, and needs to know no more than the match"
    NO_MATCH = "the pattern means something else here, of which nobody wants to hear"


LEGAL, NO_MATCH = Answer.LEGAL, Answer.NO_MATCH


class Rule:
    """What to look for, when it is legal, and what to put there instead.

    Patterns that are attributes of the class give names to what they match: an attribute `data` is found
    again as `match.data`.
    """

    pattern: DFPattern

    def where(self, match: Match) -> bool:
        """What the pattern means but cannot say, such as a rank: where False, there is no match at all."""
        return True

    def plan(self, match: Match) -> Any:
        """What the rewrite needs to know, or a `Refusal` where it would be wrong.

        LEGAL, where the match is all that is needed; NO_MATCH, if only the way to a plan shows that there is
        nothing to rewrite. It changes nothing. One that answers None has forgotten to answer: a refusal.
        """
        return LEGAL

    def rewrite(self, match: Match, plan: Any) -> relay.Expr:
        """An expression that has the value of `match.root`, over other expressions of the graph."""
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
    """The rule; one of before there were plans, of `check` and `rewrite(match)`, as one that has them."""
    if not hasattr(rule, "check"):
        return rule
    old = type(rule)
    warnings.warn(
        f"{old.__name__}: a rule's `check` is now `plan`, which answers LEGAL, a plan or a Refusal, and "
        "`rewrite` takes the plan; this release still understands the old ones",
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
    """Apply rules to every function until none applies; the same module where none ever did."""
    before = mod
    # A chain in which each link makes the next one match takes a round a link.
    rounds = max(MIN_ROUNDS, sum(len(Graph(function).nodes) for function in relay_functions(mod).values()))
    for _ in range(rounds):
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
            typed.update_func(name, function)  # InferType gave a module of its own
        mod = typed
    raise RuntimeError(f"{report.name} still finds something to rewrite after {rounds} rounds")


def _replacements(rules: Sequence[Rule], graph: Graph, report: PassReport) -> dict[relay.Expr, relay.Expr]:
    """{node: its replacement} for all that matches and is legal in a typed graph."""
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
    """What a rule puts in the place of a match, why it does not, or NO_MATCH."""
    if not rule.where(match):
        return NO_MATCH
    plan = rule.plan(match)
    if plan is None:
        return Refusal(f"{type(rule).__name__}.plan answers neither with a plan nor with a refusal")
    if plan is NO_MATCH or isinstance(plan, Refusal):
        return plan
    replacement = rule.rewrite(match, plan)
    if not isinstance(replacement, relay.Expr):
        raise TypeError(f"{type(rule).__name__}.rewrite gives {replacement!r}, which is no expression")
    return replacement


def _named_patterns(rule_type: type[Rule]) -> dict[str, DFPattern]:
    return {
        name: value
        for base in reversed(rule_type.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, DFPattern)
    }
