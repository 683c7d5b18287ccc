"""A Loop with no more than it needs: only values that change and are read.

Converters from other frameworks carry every variable of a function through a loop, weights among them, and
variables that have no value before the first round. Relay's loops need one type for each that they carry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from .load import graphs_in, graphs_of, names_read


@dataclass
class Pruned:
    """`kept` are the places of the carried values that are left; the body has only those."""

    body: onnx.GraphProto
    kept: list[int]


def pruned(graph: onnx.GraphProto, node: onnx.NodeProto) -> Pruned:
    """The body of a Loop in `graph` without values that never change or are never read."""
    (attribute,) = (each for each in node.attribute if each.name == "body")
    body = onnx.GraphProto()
    body.CopyFrom(attribute.g)
    names, outputs = [each.name for each in body.input], [each.name for each in body.output]
    kept = []
    for place in range(len(node.input) - 2):
        before, after = names[2 + place], outputs[1 + place]
        outside, result = node.input[2 + place], node.output[place]
        others = outputs[: 1 + place] + outputs[2 + place :]  # which may hand it on, as a delay does
        is_shadowed = outside != before and outside in {*names, *_makes(body)}
        if before == after and before not in others and not is_shadowed:
            _rename(body, before, outside)
        elif before in {*_reads(body), *others} or result in {*_reads(graph), *_gives(graph)}:
            kept.append(place)
    for place in reversed(range(len(node.input) - 2)):
        if place not in kept:
            del body.input[2 + place]
            del body.output[1 + place]
    return Pruned(body, kept)


def captured(body: onnx.GraphProto) -> list[str]:
    """The names that a body reads and neither takes nor makes."""
    own = {each.name for each in (*body.input, *body.initializer)} | _makes(body)
    return [name for name in dict.fromkeys((*_reads(body), *_gives(body))) if name and name not in own]


def carry(body: onnx.GraphProto, place: int, name: str) -> None:
    """Make a name from outside the carried value at a place, which is the same after each iteration."""
    inside = f"{name}:carried"
    _rename(body, name, inside)
    for output in body.output:
        output.name = inside if output.name == name else output.name
    for values, at in ((body.input, 2 + place), (body.output, 1 + place)):
        others = list(values)
        del values[:]
        values.extend([*others[:at], onnx.ValueInfoProto(name=inside), *others[at:]])


def node_count(graph: onnx.GraphProto) -> int:
    """With those of graphs inside nodes."""
    return sum(len(each.node) for each in graphs_of(graph))


def without_inputs_and_initializers(body: onnx.GraphProto) -> onnx.GraphProto:
    """A copy which takes both as names from outside."""
    copy = onnx.GraphProto()
    copy.CopyFrom(body)
    del copy.input[:], copy.initializer[:]
    return copy


def is_read(body: onnx.GraphProto, place: int) -> bool:
    """Whether a round reads what the one before it has left in a carried value."""
    name = body.input[2 + place].name
    return name in {*_reads(body), *_gives(body)}


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes read, in bodies and branches too."""
    return itertools.chain.from_iterable(map(names_read, graph.node))


def _gives(graph: onnx.GraphProto) -> Iterator[str]:
    return (each.name for each in graph.output)


def _makes(graph: onnx.GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.output}


def _rename(graph: onnx.GraphProto, before: str, after: str) -> None:
    """Read another name in place of one."""
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == before:
                node.input[place] = after
        for inner in graphs_in(node):
            _rename(inner, before, after)
            for output in inner.output:
                output.name = after if output.name == before else output.name
