"""Matching one expression against a pattern of `tvm.relay.dataflow_pattern`.

TVM's own `rewrite` drops a match silently where an inner node has another user, so a pass could never say
why it did nothing; and it calls back with one match at a time, on a graph already half rewritten. Here every
match in the typed graph is found, and its rule decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Optional

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay import dataflow_pattern as dfp
from tvm.relay.dataflow_pattern import DFPattern

Bound = dict[dfp.DFPattern, relay.Expr]  # what each pattern stands for
Matcher = Callable[[dfp.DFPattern, relay.Expr, Bound], Optional[Bound]]

COMMUTATIVE = {"add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or"}


def match(pattern: DFPattern, expr: relay.Expr, bound: Bound | None = None) -> Bound | None:
    """The bindings {pattern: expression} under which `expr` matches `pattern`, or None."""
    bound = {} if bound is None else bound
    if pattern in bound:
        return bound if _same(bound[pattern], expr) else None
    for pattern_type, matcher in _MATCHERS.items():
        if isinstance(pattern, pattern_type):
            inner = matcher(pattern, expr, bound)
            return None if inner is None else {**inner, pattern: expr}
    raise TypeError(f"a rule's pattern cannot contain a {type(pattern).__name__}")


def root_ops(pattern: DFPattern) -> set[str] | None:
    """The names of the operators that a match's root can call, or None if it can be anything."""
    if isinstance(pattern, dfp.AltPattern):
        left, right = root_ops(pattern.left), root_ops(pattern.right)
        return None if left is None or right is None else left | right
    if isinstance(pattern, (dfp.AttrPattern, dfp.TypePattern, dfp.DataTypePattern, dfp.ShapePattern)):
        return root_ops(pattern.pattern)
    if isinstance(pattern, dfp.CallPattern):
        return root_ops(pattern.op)
    if isinstance(pattern, dfp.ExprPattern) and hasattr(pattern.expr, "name"):
        return {pattern.expr.name}
    return None


def any_op(names: Iterable[str], *args: DFPattern) -> DFPattern:
    """A pattern for calls of any of these operators with arguments that match."""
    return reduce(or_, (dfp.is_op(name)(*args) for name in names))


def _same(left: relay.Expr, right: relay.Expr) -> bool:
    if left.same_as(right):
        return True
    both_constant = isinstance(left, relay.Constant) and isinstance(right, relay.Constant)
    return both_constant and structural_equal(left, right)


def _match_all(patterns: Sequence[DFPattern], exprs: Sequence[relay.Expr], bound: Bound) -> Bound | None:
    if len(patterns) != len(exprs):
        return None
    found: Bound | None = bound
    for pattern, expr in zip(patterns, exprs):
        found = match(pattern, expr, found)
        if found is None:
            return None
    return found


def _match_call(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
    if not isinstance(expr, relay.Call):
        return None
    called = match(pattern.op, expr.op, bound)
    if called is None or pattern.args is None:
        return called
    patterns, args = list(pattern.args), list(expr.args)
    found = _match_all(patterns, args, called)
    if found is None and getattr(expr.op, "name", None) in COMMUTATIVE:
        found = _match_all(patterns, args[::-1], called)
    return found


def _match_tuple(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
    if not isinstance(expr, relay.Tuple):
        return None
    return bound if pattern.fields is None else _match_all(pattern.fields, expr.fields, bound)


def _match_tuple_get_item(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
    if not isinstance(expr, relay.TupleGetItem) or pattern.index not in (-1, None, expr.index):
        return None
    return match(pattern.tuple, expr.tuple_value, bound)


def _match_alternatives(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
    found = match(pattern.left, expr, bound)
    return match(pattern.right, expr, bound) if found is None else found


def _match_attributes(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
    attrs: Any = getattr(expr, "attrs", None)
    names = set() if attrs is None else set(attrs.keys())
    wanted = {name: pattern.attrs[name] for name in list(pattern.attrs.keys())}
    if not all(name in names and structural_equal(attrs[name], value) for name, value in wanted.items()):
        return None
    return match(pattern.pattern, expr, bound)


def _match_type(holds: Callable[[DFPattern, relay.Type], bool]) -> Matcher:
    def matcher(pattern: DFPattern, expr: relay.Expr, bound: Bound) -> Bound | None:
        return match(pattern.pattern, expr, bound) if holds(pattern, expr.checked_type) else None

    return matcher


_MATCHERS: dict[type, Matcher] = {
    dfp.WildcardPattern: lambda pattern, expr, bound: bound,
    dfp.ConstantPattern: lambda pattern, expr, bound: bound if isinstance(expr, relay.Constant) else None,
    dfp.VarPattern: lambda pattern, expr, bound: (
        bound if isinstance(expr, relay.Var) and pattern.name in ("", expr.name_hint) else None
    ),
    dfp.ExprPattern: lambda pattern, expr, bound: bound if structural_equal(pattern.expr, expr) else None,
    dfp.CallPattern: _match_call,
    dfp.TuplePattern: _match_tuple,
    dfp.TupleGetItemPattern: _match_tuple_get_item,
    dfp.AltPattern: _match_alternatives,
    dfp.AttrPattern: _match_attributes,
    dfp.TypePattern: _match_type(lambda pattern, found: structural_equal(found, pattern.type)),
    dfp.DataTypePattern: _match_type(lambda pattern, found: getattr(found, "dtype", None) == pattern.dtype),
    dfp.ShapePattern: _match_type(
        lambda pattern, found: hasattr(found, "shape") and structural_equal(found.shape, pattern.shape)
    ),
    dfp.IfPattern: lambda pattern, expr, bound: (
        _match_all(
            [pattern.cond, pattern.true_branch, pattern.false_branch],
            [expr.cond, expr.true_branch, expr.false_branch],
            bound,
        )
        if isinstance(expr, relay.If)
        else None
    ),
}
