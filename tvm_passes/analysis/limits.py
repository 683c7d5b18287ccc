"""The limits of the elements of tensors, and which conditions therefore never hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ..engine.expressions import constant, op_name, operands
from ..engine.graph import Graph
from .operators import NMS, Elements, keeps_column, known_of, reduced_axes
from .ranges import ALL, PLACES, Limits, any_of

Known = dict[relay.Expr, Limits]
FILLED = "zeros", "zeros_like", "ones", "ones_like"  # whose limits hold for floats too
ALONG_AXES = "argmax", "argmin", "argsort"  # their results are positions along the axes of the operand


def never_negative(integers: relay.Expr) -> bool:
    """Whether the operators that compute these integers never give negative ones.

    It needs no types, and so ignores overflow.
    """
    return _computed(integers, {}, wraps=False).least >= 0


def never_holds(graph: Graph, condition: relay.Expr) -> bool:
    """Whether a condition is false for every element."""
    name = op_name(condition)
    value = constant(condition)
    if value is not None:
        return not value.any()
    if name in ("less", "less_equal", "greater", "greater_equal"):
        low, high = condition.args if name.startswith("less") else reversed(condition.args)
        least, greatest = limits(graph, low).least, limits(graph, high).greatest
        return least > greatest or (least == greatest and not name.endswith("equal"))
    if name == "logical_and":
        return any(never_holds(graph, arg) for arg in condition.args)
    if name in ("logical_or", "logical_xor"):
        return all(never_holds(graph, arg) for arg in condition.args)
    return False


def limits(graph: Graph, expr: relay.Expr) -> Limits:
    """The limits of the integers of a tensor, by what computes it, or else by its type."""
    return _computed(expr, graph.notes.setdefault(limits, {}), wraps=True)


def _computed(expr: relay.Expr, known: Known, wraps: bool) -> Limits:
    stack = [expr]
    while stack:  # no recursion: integers can be computed in chains as deep as the network
        node = stack[-1]
        if node in known:
            stack.pop()
            continue
        if wraps and "int" not in _dtype(node):
            filled = op_name(node) in FILLED
            known[stack.pop()] = _of(node, []) if filled else ALL
            continue
        below = _operands(node)
        waiting = [each for each in below if each not in known]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        found = _of(node, [known[each] for each in below])
        known[node] = _within_type(node, _within_axes(node, found)) if wraps else found
    return known[expr]


def _operands(node: relay.Expr) -> list[relay.Expr]:
    """The expressions whose limits determine those of a node."""
    if isinstance(node, relay.If):
        return [node.true_branch, node.false_branch]
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    if isinstance(node, relay.TupleGetItem):
        if node.index in known_of(node.tuple_value).places:
            return []
        is_tuple = isinstance(node.tuple_value, relay.Tuple)
        return [node.tuple_value.fields[node.index] if is_tuple else node.tuple_value]
    if not isinstance(node, relay.Call):
        return []
    operator = known_of(node)
    if operator.limits is None:
        return [node.args[0]] if operator.elements in _MOVES and node.args else []
    return operands(node)


_MOVES = (Elements.SAME, Elements.MOVED, Elements.TAKEN)


def _of(node: relay.Expr, below: list[Limits]) -> Limits:
    values = constant(node)
    if values is not None:
        number = int if values.dtype.kind in "iub" else float
        return Limits(number(values.min()), number(values.max())) if values.size else PLACES
    if (isinstance(node, relay.TupleGetItem) and not below) or _are_kept(node):
        return PLACES
    operator = known_of(node)
    if operator.limits is not None:
        return operator.limits(*below) or ALL
    is_taken = operator.elements in _MOVES or not isinstance(node, relay.Call)
    return any_of(*below) if below and is_taken else ALL


def _are_kept(node: relay.Expr) -> bool:
    """Whether a slice takes as many of the indices that an NMS returns as it keeps: those behind are -1."""
    if op_name(node) != "dyn.strided_slice":
        return False
    data, begin, end, _ = node.args
    indices, count = _moved_from(data), _moved_from(end)
    return (
        (str(node.attrs.slice_mode) == "end" or _is_first(begin))
        and (isinstance(indices, relay.TupleGetItem) and isinstance(count, relay.TupleGetItem))
        and indices.tuple_value.same_as(count.tuple_value)
        and (op_name(count.tuple_value) in NMS and (indices.index, count.index) == (0, 1))
    )


def _moved_from(expr: relay.Expr) -> relay.Expr:
    """Whose elements these are, in the same order."""
    while keeps_column(expr):
        expr = expr.args[0]
    return expr


def _is_first(begin: relay.Expr) -> bool:
    """Whether a slice begins at 0, which TVM keeps in bounds."""
    while op_name(begin) == "where" and op_name(begin.args[0]) in ("less", "greater_equal"):
        if not begin.args[0].args[0].same_as(begin.args[2]):
            return False
        begin = begin.args[2]
    value = constant(begin)
    return value is not None and not value.any()


def _within_axes(node: relay.Expr, found: Limits) -> Limits:
    """Positions along axes of known lengths end there."""
    if op_name(node) not in ALONG_AXES:
        return found
    shape = node.args[0].checked_type.shape
    lengths = [shape[axis] for axis in reduced_axes(node)]
    if not all(isinstance(length, tvm.tir.IntImm) for length in lengths):
        return found
    return Limits(0, max(0, math.prod(map(int, lengths)) - 1))


def _dtype(node: relay.Expr) -> str:
    type_: Any = node.checked_type
    if isinstance(type_, relay.TupleType):  # of which each field has limits of its own
        return "int" if any("int" in getattr(field, "dtype", "") for field in type_.fields) else ""
    return getattr(type_, "dtype", "")


def _within_type(node: relay.Expr, found: Limits) -> Limits:
    """The limits, or those of the type if values might wrap around."""
    dtype = getattr(node.checked_type, "dtype", "")
    if "int" not in dtype:
        return found if isinstance(node.checked_type, relay.TupleType) else ALL
    of_type = np.iinfo(dtype)
    if found == PLACES:
        return Limits(0, min(PLACES.greatest, int(of_type.max)))
    if of_type.min <= found.least and found.greatest <= of_type.max:
        return found
    return Limits(int(of_type.min), int(of_type.max))
