"""Nodes in topological order, which ONNX asks for and ONNX Runtime does without.

onnxruntime's `convert_float_to_float16` with `keep_io_types` writes casts of inputs behind all other nodes.
"""

from __future__ import annotations

import heapq

import onnx

from .load import graphs_of, names_read


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy whose nodes come after those that they read, where they do not.

    Nodes that wait for nothing keep their order. A graph with a cycle stays as it is.
    """
    if all(map(_is_in_order, graphs_of(model.graph))):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in graphs_of(copy.graph):
        if not _is_in_order(graph):
            _sort(graph)
    return copy


def _is_in_order(graph: onnx.GraphProto) -> bool:
    return all(node < place for place, read in enumerate(_read_by_each(graph)) for node in read)


def _sort(graph: onnx.GraphProto) -> None:
    waiting = _read_by_each(graph)
    readers: list[list[int]] = [[] for _ in waiting]
    for place, read in enumerate(waiting):
        for node in read:
            readers[node].append(place)
    ready = [place for place, read in enumerate(waiting) if not read]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for reader in readers[node]:
            waiting[reader].discard(node)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) == len(waiting):
        unsorted = onnx.GraphProto()
        unsorted.node.MergeFrom(graph.node)
        del graph.node[:]
        graph.node.extend(unsorted.node[node] for node in order)


def _read_by_each(graph: onnx.GraphProto) -> list[set[int]]:
    """The places of the nodes that each node reads, or a graph inside it."""
    sources = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    return [{sources[name] for name in names_read(node) if name in sources} for node in graph.node]
