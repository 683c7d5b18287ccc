"""In whose memory the entries of a graph executor's graph are: its own, or another entry's.

The result of a reshape is in the memory of its input. The result of an operator that writes some channels,
such as `topi_ext.conv2d_nhwc_in_place`, is in the memory of its destination, unless that would overwrite what
is read afterwards, returned, or not the graph's own: then the operator copies the destination.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topi_ext.conv2d_nhwc_in_place.op import NAME, access_of  # topi_ext comes before tvm

from tvm import relay
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule

from ..engine.expressions import op_name

Graph = dict[str, Any]
NO_STEP = "__nop"  # a reshape, whose result is in the memory of its input
EVERYTHING = range(sys.maxsize)  # channels


@dataclass
class Writer:
    """A function that writes some channels of a destination, and which channels it reads of its inputs."""

    destination: int  # the place among its inputs
    written: range
    read: list[tuple[int, range]]  # of the place of an input


def writers_of(lib: GraphExecutorFactoryModule) -> dict[str, Writer]:
    """The functions of a compiled library that can write into the memory of an input, by name."""
    functions = (
        (name, function)
        for name, info in lib.function_metadata.items()
        for function in info.relay_primfuncs.values()
    )
    found = ((name, _writer(function)) for name, function in functions)
    return {name: writer for name, writer in found if writer}


def _writer(function: relay.Function) -> Writer | None:
    call = function.body
    if op_name(call) != NAME:
        return None
    access = access_of(call)
    if access.destination is None:
        return None
    params = list(function.params)
    places = {at: params.index(argument) for at, argument in enumerate(call.args) if argument in params}
    destination = places.pop(access.destination)
    read = [(place, access.read.get(at, EVERYTHING)) for at, place in places.items()]
    return Writer(destination, access.written, read)


def aliases(graph: Graph, writers: Mapping[str, Writer]) -> list[int]:
    """Of each entry, the entry in whose memory it is."""
    rows, nodes = graph["node_row_ptr"], graph["nodes"]
    alias = list(range(rows[-1]))
    for index, node in enumerate(nodes):
        if _function(node) == NO_STEP:
            ((source, output, *_),) = node["inputs"]
            alias[rows[index]] = alias[rows[source] + output]
    taken = {rows[index] for index, node in enumerate(nodes) if node["op"] == "null"}
    taken |= {rows[node] + index for node, index, *_ in graph["heads"]}
    for index, node in enumerate(nodes):
        writer = writers.get(_function(node))
        if writer is None:
            continue
        source, output, *_ = node["inputs"][writer.destination]
        memory = alias[rows[source] + output]
        sharing = {entry for entry, of in enumerate(alias) if of == memory}
        if not sharing & taken and not _is_read_later(graph, index, writer, sharing, writers):
            alias = [memory if of == rows[index] else of for of in alias]
    return alias


def _is_read_later(
    graph: Graph, writing: int, writer: Writer, sharing: set[int], writers: Mapping[str, Writer]
) -> bool:
    """Whether this node or a later one reads channels that it overwrites, of entries in the same memory."""
    extents = graph["attrs"]["shape"][1]
    channels = extents[graph["node_row_ptr"][writing]][-1]
    for index, node in enumerate(graph["nodes"][writing:], writing):
        if _function(node) in ("", NO_STEP):
            continue
        for entry, read in _reads(graph, node, writers, index == writing):
            if extents[entry][-1:] != [channels]:  # reshaped
                read = EVERYTHING
            if entry in sharing and range(*_common(read, writer.written)):
                return True
    return False


def _reads(
    graph: Graph, node: Graph, writers: Mapping[str, Writer], is_writing: bool
) -> Iterator[tuple[int, range]]:
    """The entries that a node reads, and which channels; of a destination all, unless it `is_writing` it."""
    rows, writer = graph["node_row_ptr"], writers.get(_function(node))
    entries = [rows[source] + output for source, output, *_ in node["inputs"]]
    if writer is None:
        read: Sequence[tuple[int, range]] = [(place, EVERYTHING) for place in range(len(entries))]
    else:
        read = writer.read if is_writing else [*writer.read, (writer.destination, EVERYTHING)]
    return ((entries[place], channels) for place, channels in read)


def _common(one: range, other: range) -> tuple[int, int]:
    return max(one.start, other.start), min(one.stop, other.stop)


def _function(node: Graph) -> str:
    """The name of the function that a node calls; empty for inputs and weights."""
    return node.get("attrs", {}).get("func_name", "")
