"""Applies rules to graphs of Relax, as `tvm_passes.engine.rule` does to those of Relay."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir import Expr

from ..engine.contract import MIN_ROUNDS, Rule, first_rewrite
from ..engine.report import PassReport, publish
from .graph import Graph


def rule_pass(name: str, *rules: Rule) -> tvm.transform.Pass:
    """A pass that applies rules until none applies; `recording` tells what it did."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def run(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        report = PassReport(name, [type(rule).__name__ for rule in rules])
        mod = apply_rules(rules, mod, report)
        publish(report)
        return mod

    return run


def apply_rules(rules: Sequence[Rule], mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    """Apply rules to every function until none applies."""
    functions = {name: f for name, f in mod.functions.items() if isinstance(f, relax.Function)}
    rounds = MIN_ROUNDS + sum(len(Graph(function).bindings) for function in functions.values())
    for _ in range(rounds):
        mod = tidied(mod)
        report.forget_refusals()
        changed = {}
        for name, function in mod.functions.items():
            if isinstance(function, relax.Function):
                replacements = _replacements(rules, Graph(function), report)
                if replacements:
                    changed[name] = _rebuilt(function, replacements)
        if not changed:
            return mod
        mod = mod.clone()
        for name, function in changed.items():
            mod[name] = function
    raise RuntimeError(f"{report.name} still finds something to rewrite after {rounds} rounds")


def tidied(mod: tvm.IRModule) -> tvm.IRModule:
    """The same with a variable for each value, and without what is not used."""
    for tidy in (
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ):
        mod = tidy(mod)
    return mod


def _replacements(rules: Sequence[Rule], graph: Graph, report: PassReport) -> dict[relax.Var, Expr]:
    """{variable: what it is bound to instead} for every legal match."""
    replacements = {}
    for variable, value in graph.bindings:
        replacement = first_rewrite(rules, graph, value, graph.matched, graph.location, report)
        if replacement is not None:
            replacements[variable] = replacement
    return replacements


def _rebuilt(function: relax.Function, replacements: dict[relax.Var, Expr]) -> relax.Function:
    """The function with other values; what they leave unused stays."""
    blocks = []
    for block in function.body.blocks:
        bindings = [
            relax.VarBinding(binding.var, replacements[binding.var])
            if binding.var in replacements
            else binding
            for binding in block.bindings
        ]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
