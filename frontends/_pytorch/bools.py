"""Numbers that are True or False, as in `mask == True`: torch traces them, but knows no such operator.

Its passes end on them with an internal assertion.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

UNKNOWN = "(no schema)"
MADE: tuple[Callable[[bool], Any], ...] = (torch.tensor, int)


def settle_bools(graph: Any) -> None:
    """Make them tensors without axes, which have the type of a bool; numbers where an operator takes none."""
    for node in list(_nodes(graph)):
        if node.kind().startswith("aten::") and node.schema() == UNKNOWN:
            with graph.insert_point_guard(node):
                _settle(graph, node)


def _settle(graph: Any, node: Any) -> None:
    places = [place for place, value in enumerate(node.inputs()) if _is_bool(value)]
    for made, place in itertools.product(MADE, places):  # of which all others are flags
        given = node.inputsAt(place)
        node.replaceInput(place, graph.insertConstant(made(given.toIValue())))
        if node.schema() != UNKNOWN:
            break
        node.replaceInput(place, given)
    if node.kind() == "aten::full" and node.inputsAt(2).type().kind() == "NoneType":
        node.replaceInput(2, graph.insertConstant(torch.bool))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _is_bool(value: Any) -> bool:
    return value.type().kind() == "BoolType" and value.node().kind() == "prim::Constant"
