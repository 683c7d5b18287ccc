"""What a rule is, for graphs of Relay and of Relax alike."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from topi_ext.bootstrap import tvm_in_use

from .report import PassReport

if TYPE_CHECKING or tvm_in_use.has_relay:
    from tvm.relay import Expr
    from tvm.relay.dataflow_pattern import DFPattern
else:
    from tvm.ir import Expr
    from tvm.relax.dpl import DFPattern


@dataclass(frozen=True)
class Refusal:
    """Why a rewrite would be wrong here, in words for the user."""

    reason: str


class Answer(enum.Enum):
    """What a rule's `plan` returns when it has nothing to pass to `rewrite`."""

    LEGAL = "the rewrite is legal, and needs only the match"
    NO_MATCH = "the pattern means something else here, which is not worth reporting"


LEGAL, NO_MATCH = Answer.LEGAL, Answer.NO_MATCH
MIN_ROUNDS = 100  # of applying rules, plus one for each node: a chain of rewrites takes a round per link


class Rule:
    """What to look for, when it is legal, and what to put there instead.

    Patterns that are class attributes name what they match: what the attribute `data` matched is
    `match.data`.
    """

    pattern: DFPattern

    @cached_property
    def named_patterns(self) -> dict[str, DFPattern]:
        return _named_patterns(type(self))

    def where(self, match: Match) -> bool:
        """A condition that a pattern cannot express, such as a rank: if False, there is no match at all."""
        return True

    def plan(self, match: Match) -> Any:
        """What the rewrite needs to know, or a `Refusal` where it would be wrong.

        LEGAL, if it needs only the match; NO_MATCH, if making the plan shows that there is nothing to
        rewrite. It must not change anything. None, a forgotten `return`, counts as a refusal.
        """
        return LEGAL

    def rewrite(self, match: Match, plan: Any) -> Expr:
        """An expression equal in value to `match.root`, over other expressions of the graph."""
        raise NotImplementedError


class Match:
    """A place where a rule's pattern matches: what each named pattern stands for there.

    The graph of either dialect knows the `users` of an expression.
    """

    def __init__(self, rule: Rule, graph: Any, root: Expr, bound: Mapping[DFPattern, Expr]) -> None:
        self.graph = graph
        self.root = root
        self._bound = bound
        self._names = rule.named_patterns

    def __getattr__(self, name: str) -> Any:
        pattern = self.__dict__.get("_names", {}).get(name)
        if pattern is None:
            raise AttributeError(f"the rule has no pattern named {name!r}")
        return self._bound.get(pattern)

    def used_elsewhere(self, *nodes: Expr) -> bool:
        """Whether any of these nodes below the root has a user outside the match."""
        inside = list(self._bound.values())
        return any(user not in inside for node in nodes for user in self.graph.users(node))


def first_rewrite(
    rules: Iterable[Rule],
    graph: Any,
    root: Expr,
    match: Callable[[DFPattern, Expr], Mapping[DFPattern, Expr] | None],
    location: Callable[[Expr], str],
    report: PassReport,
) -> Expr | None:
    """What the first rule that applies to an expression replaces it with, if one does.

    Of the dialect are `match`, what the parts of a pattern stand for, and `location`, for the report.
    """
    for rule in rules:
        bound = match(rule.pattern, root)
        if bound is None:
            continue
        replacement, name = _rewritten(rule, Match(rule, graph, root, bound)), type(rule).__name__
        if isinstance(replacement, Refusal):
            report.refused(name, location(root), replacement.reason)
        elif not isinstance(replacement, Answer):
            report.rewrote(name, location(root))
            return replacement
    return None


def _rewritten(rule: Rule, match: Match) -> Expr | Refusal | Answer:
    """What a rule replaces a match with, why it refuses to, or NO_MATCH."""
    if not rule.where(match):
        return NO_MATCH
    plan = rule.plan(match)
    if plan is None:
        return Refusal(f"{type(rule).__name__}.plan returned neither a plan nor a refusal")
    if plan is NO_MATCH or isinstance(plan, Refusal):
        return plan
    replacement = rule.rewrite(match, plan)
    if not isinstance(replacement, Expr):
        raise TypeError(f"{type(rule).__name__}.rewrite returned {replacement!r}, which is not an expression")
    return replacement


def _named_patterns(rule_type: type[Rule]) -> dict[str, DFPattern]:
    return {
        name: value
        for base in reversed(rule_type.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, DFPattern)
    }
