"""Recognize an activation by what it computes: importers spell it in many ways.

The operators between a tensor and an activation of it are evaluated, and compared with those that are known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tvm import relay

from ..engine.expressions import constant, op_name
from ..engine.graph import Graph
from .known_activations import MAX_OPERATORS, erf, known_activation, sigmoid

# What a spelling consists of; a clip is computed by its attributes.
COMPUTED: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs,
    "add": np.add,
    "cast": lambda x: x,  # from one floating-point type to another: it rounds, at most
    "clip": np.clip,
    "divide": np.divide,
    "erf": erf,
    "exp": np.exp,
    "greater": np.greater,
    "log": np.log,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negative": np.negative,
    "nn.relu": lambda x: np.maximum(x, 0),
    "power": np.power,
    "sigmoid": sigmoid,
    "subtract": np.subtract,
    "tanh": np.tanh,
    "where": np.where,
}


def activation_of(root: relay.Expr, source: relay.Expr, graph: Graph) -> str | None:
    """Which known activation of `source` the root is, where nothing else uses what is computed in between."""
    between = _between(root, source)
    if between is None or any(
        user not in between for node in (source, *between[:-1]) for user in graph.users(node)
    ):
        return None
    constants = [_scalar(arg) for node in between for arg in node.args]
    around = [bound for node in between if op_name(node) == "clip" for bound in _bounds(node)]
    around += [float(each) for each in constants if each is not None and abs(each) < 1e6]
    return known_activation(partial(_evaluated, between, source), around)


def computed_of(other: relay.Expr, root: relay.Expr, source: relay.Expr) -> relay.Expr:
    """What the root computes of `source`, of another tensor instead."""
    new = {source: other}
    for node in _between(root, source) or ():
        new[node] = relay.Call(node.op, [new.get(argument, argument) for argument in node.args], node.attrs)
    return new[root]


def call_below(root: relay.Expr, name: str) -> relay.Call | None:
    """The call of an operator whose result is read by what computes the root, if there is one."""
    waiting, seen = list(root.args), 0
    while waiting and seen < MAX_OPERATORS:
        node, seen = waiting.pop(), seen + 1
        if op_name(node) == name:
            return node
        if isinstance(node, relay.Call) and op_name(node) in COMPUTED:
            waiting += node.args
    return None


def _between(root: relay.Expr, source: relay.Expr) -> list[relay.Call] | None:
    """The calls from the source, which is left out, to the root, in order; None if something else is read."""
    order: list[relay.Call] = []

    def visit(node: relay.Expr) -> bool:
        if node.same_as(source) or node in order or _scalar(node) is not None:
            return True
        if op_name(node) not in COMPUTED or len(order) >= MAX_OPERATORS or not _is_float(node):
            return False
        if not all(visit(argument) for argument in node.args):
            return False
        order.append(node)
        return True

    return order if visit(root) and order and order[-1].same_as(root) else None


def _is_float(node: relay.Expr) -> bool:
    """Whether a call gives floating-point numbers, or the truth of a comparison of them."""
    return op_name(node) == "greater" or "float" in node.checked_type.dtype


def _scalar(node: relay.Expr) -> float | None:
    """The value of a constant that is the same everywhere."""
    value = constant(node)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _bounds(clip: relay.Call) -> tuple[float, float]:
    return float(clip.attrs.a_min), float(clip.attrs.a_max)


def _evaluated(order: list[relay.Call], source: relay.Expr, points: np.ndarray) -> np.ndarray:
    known: dict[relay.Expr, np.ndarray] = {source: points}

    def value(argument: relay.Expr) -> np.ndarray:
        found = known.get(argument)
        return np.asarray(_scalar(argument)) if found is None else found

    for node in order:
        bounds = _bounds(node) if op_name(node) == "clip" else ()
        known[node] = COMPUTED[op_name(node) or ""](*map(value, node.args), *bounds)
    return known[order[-1]]
