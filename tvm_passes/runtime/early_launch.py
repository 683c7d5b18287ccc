"""Kernels of a CUDA graph that are launched before those that they depend on have ended.

In a graph, a kernel is launched when the kernels before it are done, which takes about a microsecond, in
which the GPU waits. Kernels that wait by themselves (`topi_ext.early_launch`) can be launched earlier, into
that time: as soon as all blocks of the kernels before them run.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_void_p

from topi_ext.early_launch import MARK, SINCE  # topi_ext comes before tvm

import tvm

from .cuda_driver import CudaError, driver
from .input_readers import KERNEL, parameters_of


class _Edge(Structure):
    """CUgraphEdgeData; the fields are 0 for an edge as a capture makes it."""

    _fields_ = [("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5)]


EARLY = _Edge(from_port=1, type=1)  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, and the type of the same name
NEEDED = (
    "cuGraphGetEdges_v2",
    "cuGraphRemoveDependencies_v2",
    "cuGraphAddDependencies_v2",
    "cuFuncGetModule",
)


def is_possible(device: tvm.runtime.Device) -> bool:
    """Whether the driver and the GPU know early launches."""
    version = device.compute_version or "0"
    return 10 * float(version) >= SINCE and all(driver().has(name) for name in NEEDED)


def launch_early(graph: int | None) -> None:
    """Change a graph so that each kernel that waits by itself is launched early.

    An edge between other nodes stays: what begins there finds all work before it done, since a kernel that
    waits ends after what it waits for.
    """
    edges = _edges(graph)
    kernels = {node: _function_of(node) for node in {node for edge in edges for node in edge}}
    waiting = {node for node, function in kernels.items() if function and _waits(function)}
    found = [(before, node) for before, node in edges if node in waiting and kernels[before] is not None]
    if found:
        before, nodes = ((c_void_p * len(found))(*column) for column in zip(*found))
        usual, early = ((_Edge * len(found))(*[kind] * len(found)) for kind in (_Edge(), EARLY))
        driver()("cuGraphRemoveDependencies_v2", graph, before, nodes, usual, len(found))
        driver()("cuGraphAddDependencies_v2", graph, before, nodes, early, len(found))


def _edges(graph: int | None) -> list[tuple[int, int]]:
    """Those as a capture makes them, between whole nodes: (the first, the one that waits for it)."""
    count = c_size_t()
    driver()("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
    before, nodes, kinds = ((kind * count.value)() for kind in (c_void_p, c_void_p, _Edge))
    if count.value:
        driver()("cuGraphGetEdges_v2", graph, before, nodes, kinds, byref(count))
    usual = bytes(_Edge())
    return [(first, node) for first, node, kind in zip(before, nodes, kinds) if bytes(kind) == usual]


def _function_of(node: int) -> int | None:
    """The function of a kernel's node, 0 if it has none in a module, None for another node."""
    kind = c_int()
    driver()("cuGraphNodeGetType", node, byref(kind))
    return parameters_of(node).function or 0 if kind.value == KERNEL else None


def _waits(function: int) -> bool:
    """Whether its module says that its kernels wait."""
    size = c_size_t()
    try:
        module = driver().made("cuFuncGetModule", function)
    except CudaError:
        return False
    address = c_void_p()
    return driver().holds("cuModuleGetGlobal_v2", byref(address), byref(size), module, MARK.encode())
