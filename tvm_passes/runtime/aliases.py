"""In whose memory the entries of a graph executor's graph are: its own, or another entry's.

The result of a reshape is in the memory of its input. The result of an operator that writes some channels or
some pixels, `topi_ext.conv2d_nhwc_in_place` or `paste_masks_over`, is in the memory of its destination,
unless that would overwrite what is read afterwards, returned, or not the graph's own: then the operator
copies the destination.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topi_ext.conv2d_nhwc_in_place import op as conv2d_nhwc_in_place  # topi_ext comes before tvm
from topi_ext.paste_masks_over import op as paste_masks_over

from tvm import relay
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule

from ..engine.expressions import op_name

Graph = dict[str, Any]
NO_STEP = "__nop"  # a reshape, whose result is in the memory of its input
EVERYTHING = range(sys.maxsize)  # channels


@dataclass
class Partial:
    """A function that reads and writes some channels of its inputs and its result, or some pixels of all."""

    read: list[tuple[int, range]]  # of the input at a place
    written: range
    destination: int | None  # the place of the input that has the other channels of the result


def partials_of(lib: GraphExecutorFactoryModule) -> dict[str, Partial]:
    """The functions of a compiled library that read and write some channels or pixels, by name."""
    return {
        name: OPERATORS[operator](function)
        for name, info in lib.function_metadata.items()
        for function in info.relay_primfuncs.values()
        if (operator := op_name(function.body)) in OPERATORS
    }


def _of_channels(function: relay.Function) -> Partial:
    access, places = conv2d_nhwc_in_place.access_of(function.body), _places(function)
    destination = None if access.destination is None else places.pop(access.destination)
    read = [(place, access.read.get(at, EVERYTHING)) for at, place in places.items()]
    return Partial(read, access.written, destination)


def _of_pixels(function: relay.Function) -> Partial:
    places = _places(function)
    destination = places.pop(list(paste_masks_over.ARGUMENTS).index("images"), None)
    return Partial([(place, EVERYTHING) for place in places.values()], EVERYTHING, destination)


def _places(function: relay.Function) -> dict[int, int]:
    """Of each argument of the operator that is one of the function, its place there."""
    params = list(function.params)
    return {at: params.index(arg) for at, arg in enumerate(function.body.args) if arg in params}


OPERATORS: dict[str | None, Callable[[relay.Function], Partial]] = {
    conv2d_nhwc_in_place.NAME: _of_channels,
    paste_masks_over.NAME: _of_pixels,
}


def aliases(graph: Graph, partials: Mapping[str, Partial]) -> list[int]:
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
        partial = partials.get(_function(node))
        if partial is None or partial.destination is None:
            continue
        source, output, *_ = node["inputs"][partial.destination]
        memory = alias[rows[source] + output]
        sharing = {entry for entry, of in enumerate(alias) if of == memory}
        if not sharing & taken and not _are_read_later(graph, partials, index, partial.written, sharing):
            alias = [memory if of == rows[index] else of for of in alias]
    return alias


def _are_read_later(
    graph: Graph, partials: Mapping[str, Partial], writing: int, written: range, sharing: set[int]
) -> bool:
    """Whether a node, while or after it writes channels, or one behind it reads them in the same memory."""
    extents = graph["attrs"]["shape"][1]
    channels = extents[graph["node_row_ptr"][writing]][-1]
    for index, node in enumerate(graph["nodes"][writing:], writing):
        for entry, read in _reads(graph, node, partials.get(_function(node)), index == writing):
            is_reshaped = extents[entry][-1:] != [channels]
            if entry in sharing and (is_reshaped or _overlap(read, written)):
                return True
    return False


def _reads(graph: Graph, node: Graph, partial: Partial | None, is_writing: bool) -> list[tuple[int, range]]:
    """The entries that a node reads, and which channels; of a destination all, unless it `is_writing` it."""
    if _function(node) == NO_STEP:
        return []  # what reads the result does
    rows = graph["node_row_ptr"]
    entries = [rows[source] + output for source, output, *_ in node["inputs"]]
    if partial is None:
        return [(entry, EVERYTHING) for entry in entries]
    read = [(entries[place], channels) for place, channels in partial.read]
    if partial.destination is not None and not is_writing:
        read.append((entries[partial.destination], EVERYTHING))
    return read


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _function(node: Graph) -> str:
    """The name of the function that a node calls; empty for inputs and weights."""
    return str(node.get("attrs", {}).get("func_name", ""))
