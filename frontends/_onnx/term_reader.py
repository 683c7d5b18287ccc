"""Goes through the graph around a loop and through the loop's body, and gives the value of each name.

Two graphs are read, in this order:

1. The graph that has the loop. It is being imported, so all in front of the loop is in Relay or Relax
   already, with its type. A name is read when `value` asks for it, after all that it is computed from, down
   to the leaves: small constants, and a `Tensor` term for each name of which no more is known. `Terms` is
   told the lengths that the types have, and `name_of` keeps the name of each term, so that what it is there
   can be found.
2. The body of the loop, by `read_inside`, from its first node to its last. The caller gives the values of its
   inputs. The body may read names of the graph outside. It has no types, and a node that is not read ends the
   reading.
"""

from __future__ import annotations

import math

import onnx

from .imported import FindImported, Imported
from .term_nodes import has_rule, value_of_node, value_of_tensor
from .term_rewrites import MAX_ELEMENTS, Terms
from .terms import NotRead, Term, Value


class Reader:
    """Reads a graph that is being imported, and a graph inside one of its nodes.

    `imported` gives what a name is already, or None.
    """

    def __init__(self, graph: onnx.GraphProto, imported: FindImported) -> None:
        self.terms = Terms()
        self.name_of: dict[Term, str] = {}  # of terms of the outer graph; the first of several names
        self._imported = imported
        self._producers = {output: node for node in graph.node for output in node.output}
        self._outside: dict[str, Value] = {}
        self._inside: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        """That of the inner graph, if one is read and has the name, else that of the outer graph."""
        return self._inside[name] if name in self._inside else self._outer_value(name)

    def read_inside(self, graph: onnx.GraphProto, inputs: list[Value]) -> list[Value]:
        """The values of the outputs of an inner graph, whose inputs have the values given."""
        self._inside = dict(zip((value.name for value in graph.input), inputs))
        for tensor in graph.initializer:
            self._inside[tensor.name] = value_of_tensor(self.terms, tensor)
        for node in graph.node:
            self._inside[node.output[0]] = value_of_node(self.terms, node, self.value)
        return [self.value(output.name) for output in graph.output]

    # --- the outer graph

    def _outer_value(self, name: str) -> Value:
        """Read in post-order, without recursion: the graph may be deeper than Python's stack."""
        waiting = [name]
        while waiting:
            last = waiting[-1]
            unread = [] if last in self._outside else self._unread_inputs(last)
            if not unread:
                self._read_outside(waiting.pop())
            waiting.extend(unread)
        return self._outside[name]

    def _unread_inputs(self, name: str) -> list[str]:
        node = self._producers.get(name)
        if node is None or not has_rule(node):
            return []
        imported = self._imported(name)
        if imported is not None and imported.array is not None:
            return []
        return [other for other in node.input if other and other not in self._outside]

    def _read_outside(self, name: str) -> None:
        if name in self._outside:  # it may have waited more than once
            return
        imported = self._imported(name)
        if imported is None:
            raise NotRead
        value = self._small_constant(imported)
        if value is None:
            value = self._computed(name)
        if value is None:
            value = self.terms("Tensor", name, rank=len(imported.sizes), dtype=imported.dtype)
        if isinstance(value, Term):
            self.terms.know_sizes(value, imported.sizes)
            self.name_of.setdefault(value, name)
        self._outside[name] = value

    def _small_constant(self, imported: Imported) -> Value | None:
        if imported.array is None or math.prod(size or 0 for size in imported.sizes) > MAX_ELEMENTS:
            return None
        return self.terms.const(imported.array(), imported.dtype)

    def _computed(self, name: str) -> Value | None:
        """By its node, whose inputs have been read; None if the node is not read."""
        if name not in self._producers:
            return None
        try:
            return value_of_node(self.terms, self._producers[name], self._outer_value)
        except NotRead:
            return None
