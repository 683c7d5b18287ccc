"""The rule engine: a rule says what to look for, when it is legal, and what to put there instead.

    class DropDoubleRelu(Rule):
        inner = is_op("nn.relu")(wildcard())
        pattern = is_op("nn.relu")(inner)

        def rewrite(self, match):
            return match.inner

    class SimplifyRelu(RulePass):
        rules = (DropDoubleRelu,)

    mod = tvm.transform.Sequential([SimplifyRelu()])(mod)

Rules are applied to every function of a module, inside branches and nested functions, until none applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relay
from tvm.ir.transform import ModulePass, PassInfo, _ffi_transform_api
from tvm.relay.dataflow_pattern import DFPattern

from . import _verify
from ._graph import Graph, relay_functions
from ._match import Bound, root_ops
from ._match import match as match_pattern
from ._matchers import location, op_name
from ._report import PassReport, publish


class Rule:
    """What to look for, when it is legal, and what to put there instead.

    Patterns that are attributes of the class give names to what they match: an attribute `data` is found
    again as `match.data`.
    """

    pattern: DFPattern

    def where(self, match: Match) -> bool:
        """What the pattern means but cannot say, such as a rank: where False, there is no match at all."""
        return True

    def check(self, match: Match) -> str | None:
        """Why the rewrite would be wrong here, in words for the user; None where it is right."""

    def rewrite(self, match: Match) -> relay.Expr:
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


class RulePass(ModulePass):
    """A TVM pass that applies rules; `report` says what it did the last time."""

    rules: tuple[type[Rule], ...] = ()
    keeps_types = True  # of all functions

    def __init__(self) -> None:
        rules = [rule() for rule in self.rules]
        name, keeps_types = type(self).__name__, self.keeps_types
        last: list[PassReport] = []

        def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
            report = PassReport(name, [type(rule).__name__ for rule in rules])
            result = apply_rules(rules, mod, report)
            if keeps_types:
                _verify.check(mod, result, name)
            last[:] = [report]
            publish(report)
            return result

        self.__init_handle_by_constructor__(
            _ffi_transform_api.MakeModulePass, transform, PassInfo(0, name, [], False)
        )
        self._last = last

    @property
    def report(self) -> PassReport | None:
        """What the pass did the last time it ran, or None before."""
        return self._last[0] if self._last else None


LEAST_ROUNDS = 100


def apply_rules(rules: Sequence[Rule], mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    """Apply rules to every function until none applies; the same module where none ever did."""
    before = mod
    # A chain in which each link makes the next one match takes a round a link.
    rounds = max(LEAST_ROUNDS, sum(len(Graph(function).nodes) for function in relay_functions(mod).values()))
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
            match = Match(rule, graph, node, bound)
            if not rule.where(match):
                continue
            reason = rule.check(match)
            if reason is not None:
                report.refused(rule, location(node), reason)
                continue
            replacements[node] = rule.rewrite(match)
            report.rewrote(rule, location(node))
            break
    return replacements


def _named_patterns(rule_type: type[Rule]) -> dict[str, DFPattern]:
    return {
        name: value
        for base in reversed(rule_type.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, DFPattern)
    }
