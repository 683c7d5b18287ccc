"""Which steps of a graph executor may run at the same time, and memory that lets them.

The graph executor runs its functions, here the steps, one after the other. Its memory plan relies on that: a
buffer is used again as soon as the step that reads it has run, so that of two branches, such as the heads of
two levels, one would have to wait for the other's memory. In the plan made here, a step only takes a buffer
again if it depends on all steps that used it.

The graph is TVM's JSON. Its attribute `workspace` is added here: the bytes that each node takes from TVM's
pool of workspaces, which steps on one thread share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule

from .aliases import NO_STEP, Graph, aliases, partials_of
from .weights import put_graph

WORKSPACE = "workspace"
LANES = 8  # threads, each of which has a pool of workspaces


@dataclass
class Step:
    """A node that runs something: the entries that it reads and writes, by their index."""

    node: int
    reads: list[int]
    writes: list[int]
    workspace: int = 0


def plan_memory(lib: GraphExecutorFactoryModule) -> None:
    """Replace the memory plan of a compiled library for CUDA by one that lets its branches run at once."""
    graph = json.loads(lib.graph_json)
    sizes = {
        name: max((int(size) for size in info.workspace_sizes.values()), default=0)
        for name, info in lib.function_metadata.items()
    }
    functions = [node.get("attrs", {}).get("func_name", "") for node in graph["nodes"]]
    if any(name not in sizes for name in functions if name not in ("", NO_STEP)):
        return  # a function of another compiler, whose workspace is not known
    graph["attrs"][WORKSPACE] = ["list_int", [sizes.get(name, 0) for name in functions]]
    graph["attrs"]["storage_id"] = ["list_int", _storage(graph, aliases(graph, partials_of(lib)))]
    put_graph(lib, graph)


def is_planned(graph: Graph) -> bool:
    return WORKSPACE in graph["attrs"]


def steps_of(graph: Graph) -> list[Step]:
    """The steps, in the order in which the executor runs them."""
    rows = graph["node_row_ptr"]
    workspaces = graph["attrs"].get(WORKSPACE, ["list_int", []])[1]
    return [
        Step(
            index,
            [rows[source] + output for source, output, *_ in node["inputs"]],
            list(range(rows[index], rows[index + 1])),
            workspaces[index] if workspaces else 0,
        )
        for index, node in enumerate(graph["nodes"])
        if node["op"] == "tvm_op" and node["attrs"]["func_name"] != NO_STEP
    ]


def waits_of(graph: Graph) -> list[set[int]]:
    """For each step, the earlier ones that it must wait for, by their places in `steps_of`.

    They are those that wrote what it reads, and those that used the memory that it writes. One that another
    of them waits for is left out.
    """
    storage = graph["attrs"]["storage_id"][1]
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    before: list[int] = []  # of each step, all steps that end before it, as bits
    found = []
    for place, step in enumerate(steps_of(graph)):
        read, written = ({storage[entry] for entry in each} for each in (step.reads, step.writes))
        waits = {writer[memory] for memory in read | written if memory in writer}
        for memory in written:
            waits |= readers.pop(memory, set())
            writer[memory] = place
        for memory in read - written:
            readers.setdefault(memory, set()).add(place)
        waits.discard(place)
        found.append(_needed(waits, before))
        before.append(_together(waits, before))
    return found


def lanes_of(steps: list[Step], waits: list[set[int]], most: int = LANES) -> list[int]:
    """A lane for each step, and into `waits` what that adds: steps with a workspace run one by one in a lane.

    The others, which are all in lane 0, only wait for what they need. A lane is chosen whose last workspace
    is not in use any more; if there is none, another lane is opened, up to `most`.
    """
    last: dict[int, int] = {}  # of each lane, the last step with a workspace
    before: list[int] = []
    lanes = []
    for place, step in enumerate(steps):
        lane = 0
        if step.workspace:
            ended = _together(waits[place], before)
            free = [each for each, user in last.items() if ended >> user & 1]
            unused = [each for each in range(most) if each not in last]
            lane = (free + unused or sorted(last, key=last.__getitem__))[0]
            waits[place] = _needed(waits[place] | {last[lane]} if lane in last else waits[place], before)
            last[lane] = place
        lanes.append(lane)
        before.append(_together(waits[place], before))
    return lanes


def _together(waits: set[int], before: list[int]) -> int:
    """All steps that end before one that waits for these, as bits."""
    ended = 0
    for step in waits:
        ended |= before[step] | 1 << step
    return ended


def _needed(waits: set[int], before: list[int]) -> set[int]:
    """Without those that others of them wait for."""
    implied = 0
    for step in waits:
        implied |= before[step]
    return {step for step in waits if not implied >> step & 1}


# --- the memory plan


@dataclass
class _Buffer:
    size: int
    users: int = 0  # the steps that read or wrote it since it was taken, as bits
    unread: int = 0  # uses that are still to come
    is_kept: bool = field(default=False)  # an input, a weight or an output


def _storage(graph: Graph, alias: list[int]) -> list[int]:
    """The number of the buffer of each entry, of which `alias` names the entry in whose memory it is."""
    rows, steps = graph["node_row_ptr"], steps_of(graph)
    uses = [0] * rows[-1]
    for step in steps:
        for entry in step.reads:
            uses[alias[entry]] += 1
    kept = {alias[rows[node] + index] for node, index, *_ in graph["heads"]}
    number: dict[int, int] = {}
    buffers: list[_Buffer] = []
    for entry in _given(graph):
        number[entry] = len(buffers)
        buffers.append(_Buffer(_bytes(graph, entry), is_kept=True))
    writers: dict[int, int] = {}
    before: list[int] = []
    for place, step in enumerate(steps):
        ended = _together({writers[alias[entry]] for entry in step.reads if alias[entry] in writers}, before)
        before.append(ended)
        for entry in step.writes:
            if alias[entry] != entry:
                writers[alias[entry]] = place
                continue
            size, is_kept = _bytes(graph, entry), entry in kept
            at = None if is_kept else _free(buffers, size, ended)
            if at is None:
                at = len(buffers)
                buffers.append(_Buffer(size, is_kept=is_kept))
            buffer = buffers[at]
            buffer.size, buffer.users, buffer.unread = max(buffer.size, size), 1 << place, uses[entry]
            number[entry], writers[entry] = at, place
        for entry in step.reads:
            buffer = buffers[number[alias[entry]]]
            buffer.users |= 1 << place
            buffer.unread -= 1
    return [number[alias[entry]] for entry in range(rows[-1])]


def _free(buffers: list[_Buffer], size: int, ended: int) -> int | None:
    """The buffer to take for so many bytes: the smallest that is large enough, else the largest."""
    free = [
        at
        for at, buffer in enumerate(buffers)
        if not buffer.is_kept and not buffer.unread and not buffer.users & ~ended
    ]
    return min(
        free,
        key=lambda at: (buffers[at].size < size, abs(buffers[at].size - size)),
        default=None,
    )


def _given(graph: Graph) -> Iterator[int]:
    """The entries of inputs and weights."""
    for index, node in enumerate(graph["nodes"]):
        if node["op"] == "null":
            yield graph["node_row_ptr"][index]


def _bytes(graph: Graph, entry: int) -> int:
    attrs: Mapping[str, Any] = graph["attrs"]
    dtype = tvm.runtime.DataType(attrs["dltype"][1][entry])
    return math.prod(attrs["shape"][1][entry]) * -(-dtype.bits * dtype.lanes // 8)
