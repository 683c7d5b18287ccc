"""A branch within a branch: what is read after both was freed in the inner one.

TVM frees a tensor of its virtual machine after the last operator that reads it. Where the result of a branch
is that of another one, it forgets what follows the outer one: the tensor is gone when an operator asks for
it, or another one is there, so that a loop that counts with it never ends. Importing this module compiles
modules with such branches without that pass; their tensors live as long as the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tvm
from tvm import relay
from tvm.relay.backend.vm import VMCompiler

FREES = "ManifestLifetimes"


def has_nested_branches(mod: tvm.IRModule) -> bool:
    """Whether a branch that is not all that is left of its function has another one within."""
    functions = [function for function in mod.functions.values() if isinstance(function, relay.Function)]
    nodes = [node for function in functions for node in _nodes(function)]
    last = {branch for node in nodes if isinstance(node, relay.Function) for branch in _last(node)}
    outer = [node for node in nodes if isinstance(node, relay.If) and node not in last]
    return any(
        isinstance(node, relay.If) for branch in outer for part in _parts(branch) for node in _nodes(part)
    )


def _nodes(expr: relay.Expr) -> list[relay.Expr]:
    found: list[relay.Expr] = []
    relay.analysis.post_order_visit(expr, found.append)
    return found


def _last(expr: relay.Expr) -> Iterator[relay.Expr]:
    """The branches whose result is that of a function, at its end."""
    while isinstance(expr, (relay.Function, relay.Let)):
        expr = expr.body
    if isinstance(expr, relay.If):
        yield expr
        for part in _parts(expr):
            yield from _last(part)


def _parts(branch: relay.If) -> tuple[relay.Expr, relay.Expr]:
    return branch.true_branch, branch.false_branch


def _without_freeing() -> AbstractContextManager[Any]:
    """The current context without the pass. Instruments stay with the caller's: a copy would end them."""
    current = tvm.transform.PassContext.current()
    settings: tuple[Any, ...] = (current.required_pass, [*current.disabled_pass, FREES], [])
    return tvm.transform.PassContext(current.opt_level, *settings, dict(current.config.items()))


def _correct(lower: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(lower)
    def corrected(self: VMCompiler, mod: tvm.IRModule, *args: Any, **options: Any) -> Any:
        with _without_freeing() if has_nested_branches(mod) else nullcontext():
            return lower(self, mod, *args, **options)

    return corrected


VMCompiler.lower = _correct(VMCompiler.lower)
