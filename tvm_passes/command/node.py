"""A node of a graph, of either TVM, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def constant_text(array: Any) -> str:
    """A constant's array of either TVM: its number if it is one, else its type."""
    if array.shape in ((), (1,)):
        return f"{array.numpy().reshape(-1)[0]} {array.dtype}"
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


@dataclass
class Node:
    """A node as it is shown: weights, and tuples that only hold operands, are not nodes of their own."""

    op: str
    attrs: dict[str, str]
    type: str
    location: str
    weights: list[str]
    inputs: list[tuple[int, int | None]]  # (index of the node, index of its output or None)
    fate: str = "same"  # or "changed"; "removed" from the graph before; "added" to the graph after
    steps: list[int] = field(default_factory=list)  # the one that added, changed or removed it
    peer: int | None = None  # the same node in the other graph
    replaced: list[int] = field(
        default_factory=list
    )  # nodes of the other graph that this one replaces, or that replace it

    @property
    def looks(self) -> tuple[Any, ...]:
        return self.op, tuple(self.attrs.items()), self.type, tuple(self.weights), self.location
