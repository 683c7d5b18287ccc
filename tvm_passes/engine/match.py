"""Matching one expression against a pattern of `tvm.relay.dataflow_pattern`.

TVM's own `rewrite` drops a match silently where an inner node has another user, so a pass could never say
why it did nothing; and it calls back with one match at a time, on a graph already half rewritten. Here every
match in the typed graph is found, and its rule decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Optional

import tvm
from tvm import relay
from tvm.ir import structural_equal
from tvm.relay import dataflow_pattern as dfp
from tvm.relay.dataflow_pattern import DFPattern

Bound = dict[dfp.DFPattern, relay.Expr]  # what each pattern stands for
Matcher = Callable[[relay.Expr, Bound], Optional[Bound]]

COMMUTATIVE = {"add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or"}
PATTERNS = 2**14  # whose matchers are kept


def match(pattern: DFPattern, expr: relay.Expr, bound: Bound | None = None) -> Bound | None:
    """The bindings {pattern: expression} under which `expr` matches `pattern`, or None."""
    return _matcher(pattern)(expr, {} if bound is None else bound)


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


# --- what matches a pattern, which is made once: to ask a pattern for its parts takes longer than to match


@lru_cache(PATTERNS)
def _matcher(pattern: DFPattern) -> Matcher:
    make = next((make for kind, make in _MATCHERS.items() if isinstance(pattern, kind)), None)
    if make is None:
        raise TypeError(f"a rule's pattern cannot contain a {type(pattern).__name__}")
    inner = make(pattern)

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        if pattern in bound:
            return bound if _same(bound[pattern], expr) else None
        found = inner(expr, bound)
        return None if found is None else {**found, pattern: expr}

    return matcher


def _all(patterns: Sequence[DFPattern]) -> Callable[[Sequence[relay.Expr], Bound], Bound | None]:
    matchers = [*map(_matcher, patterns)]

    def matcher(exprs: Sequence[relay.Expr], bound: Bound) -> Bound | None:
        if len(matchers) != len(exprs):
            return None
        for each, expr in zip(matchers, exprs):
            found = each(expr, bound)
            if found is None:
                return None
            bound = found
        return bound

    return matcher


def _call(pattern: DFPattern) -> Matcher:
    of_op, of_args = _matcher(pattern.op), None if pattern.args is None else _all(pattern.args)

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        if not isinstance(expr, relay.Call):
            return None
        called = of_op(expr.op, bound)
        if called is None or of_args is None:
            return called
        args = list(expr.args)
        found = of_args(args, called)
        if found is None and getattr(expr.op, "name", None) in COMMUTATIVE:
            found = of_args(args[::-1], called)
        return found

    return matcher


def _tuple(pattern: DFPattern) -> Matcher:
    of_fields = None if pattern.fields is None else _all(pattern.fields)

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        if not isinstance(expr, relay.Tuple):
            return None
        return bound if of_fields is None else of_fields(expr.fields, bound)

    return matcher


def _tuple_get_item(pattern: DFPattern) -> Matcher:
    index, of_tuple = pattern.index, _matcher(pattern.tuple)

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        if not isinstance(expr, relay.TupleGetItem) or index not in (-1, None, expr.index):
            return None
        return of_tuple(expr.tuple_value, bound)

    return matcher


def _alternatives(pattern: DFPattern) -> Matcher:
    both = [(_matcher(each), root_ops(each)) for each in (pattern.left, pattern.right)]

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        name = getattr(expr.op, "name", None) if isinstance(expr, relay.Call) else None
        for each, ops in both:
            if ops is None or name in ops:
                found = each(expr, bound)
                if found is not None:
                    return found
        return None

    return matcher


def _attributes(pattern: DFPattern) -> Matcher:
    wanted = {name: pattern.attrs[name] for name in list(pattern.attrs.keys())}
    of_inner = _matcher(pattern.pattern)

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        attrs: Any = getattr(expr, "attrs", None)
        names = set() if attrs is None else set(attrs.keys())
        if not all(name in names and structural_equal(attrs[name], value) for name, value in wanted.items()):
            return None
        return of_inner(expr, bound)

    return matcher


def _expression(pattern: DFPattern) -> Matcher:
    wanted = pattern.expr
    if isinstance(wanted, tvm.ir.Op):  # of which there is one for each name
        name = wanted.name
        return lambda expr, bound: bound if isinstance(expr, tvm.ir.Op) and expr.name == name else None
    return lambda expr, bound: bound if structural_equal(wanted, expr) else None


def _variable(pattern: DFPattern) -> Matcher:
    name = pattern.name
    return lambda expr, bound: bound if isinstance(expr, relay.Var) and name in ("", expr.name_hint) else None


def _type(holds: Callable[[DFPattern, relay.Type], bool]) -> Callable[[DFPattern], Matcher]:
    def make(pattern: DFPattern) -> Matcher:
        of_inner = _matcher(pattern.pattern)
        return lambda expr, bound: of_inner(expr, bound) if holds(pattern, expr.checked_type) else None

    return make


def _branches(pattern: DFPattern) -> Matcher:
    of_all = _all([pattern.cond, pattern.true_branch, pattern.false_branch])

    def matcher(expr: relay.Expr, bound: Bound) -> Bound | None:
        if not isinstance(expr, relay.If):
            return None
        return of_all([expr.cond, expr.true_branch, expr.false_branch], bound)

    return matcher


_MATCHERS: dict[type, Callable[[DFPattern], Matcher]] = {
    dfp.WildcardPattern: lambda pattern: lambda expr, bound: bound,
    dfp.ConstantPattern: lambda pattern: (
        lambda expr, bound: bound if isinstance(expr, relay.Constant) else None
    ),
    dfp.VarPattern: _variable,
    dfp.ExprPattern: _expression,
    dfp.CallPattern: _call,
    dfp.TuplePattern: _tuple,
    dfp.TupleGetItemPattern: _tuple_get_item,
    dfp.AltPattern: _alternatives,
    dfp.AttrPattern: _attributes,
    dfp.TypePattern: _type(lambda pattern, found: structural_equal(found, pattern.type)),
    dfp.DataTypePattern: _type(lambda pattern, found: getattr(found, "dtype", None) == pattern.dtype),
    dfp.ShapePattern: _type(
        lambda pattern, found: hasattr(found, "shape") and structural_equal(found.shape, pattern.shape)
    ),
    dfp.IfPattern: _branches,
}
