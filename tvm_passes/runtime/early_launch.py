"""In a CUDA graph, start kernels while those in front of them end, where they wait by themselves.

`topi_ext.corrections.early_launch` says which kernels do, and why that is right.
"""

from __future__ import annotations

from collections import Counter
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from typing import Any

from topi_ext.corrections.early_launch import MARK

Driver = Any  # of `cuda`, which imports this module

KERNEL = 0  # a type of node
ON_COMPLETION, PROGRAMMATIC = 0, 1  # types of edges, and for the latter, the port that it leaves from
SIZE_OF_PARAMETERS = 256  # more than a node's parameters have; the function comes first
OF_TVM = b"tvmgen_"  # the names of its kernels
HANDLES, COUNT = POINTER(c_void_p), POINTER(c_size_t)


class Edge(Structure):
    _fields_ = [("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5)]


FUNCTIONS: dict[str, tuple[Any, ...]] = {  # of CUDA 12.3 and newer
    "cuGraphGetEdges_v2": (c_void_p, HANDLES, HANDLES, POINTER(Edge), COUNT),
    "cuGraphAddDependencies_v2": (c_void_p, HANDLES, HANDLES, POINTER(Edge), c_size_t),
    "cuGraphRemoveDependencies_v2": (c_void_p, HANDLES, HANDLES, POINTER(Edge), c_size_t),
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
    "cuFuncGetName": (POINTER(c_char_p), c_void_p),
    "cuFuncGetModule": (HANDLES, c_void_p),
    "cuModuleGetGlobal_v2": (HANDLES, COUNT, c_void_p, c_char_p),
}


def let_kernels_start_early(driver: Driver, graph: int | None) -> bool:
    """Change edges of a captured graph: a kernel whose one predecessor is a kernel starts early.

    Returns whether there are any, and the driver can.
    """
    if not driver.has(FUNCTIONS):
        return False
    found = False
    edges = _edges(driver, graph)
    predecessors = Counter(sink for _, sink, _ in edges)
    for source, sink, edge in edges:
        is_usual = predecessors[sink] == 1 and edge.type == ON_COMPLETION
        if is_usual and _is_kernel(driver, source) and _waits(driver, sink):
            nodes = (c_void_p * 1)(source), (c_void_p * 1)(sink)
            driver("cuGraphRemoveDependencies_v2", graph, *nodes, byref(edge), 1)
            early = Edge(from_port=PROGRAMMATIC, type=PROGRAMMATIC)
            driver("cuGraphAddDependencies_v2", graph, *nodes, byref(early), 1)
            found = True
    return found


def _edges(driver: Driver, graph: int | None) -> list[tuple[int, int, Edge]]:
    """(from, to, data) of each."""
    count = c_size_t()
    driver("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
    sources, sinks = (c_void_p * count.value)(), (c_void_p * count.value)()
    edges = (Edge * count.value)()
    if count.value:
        driver("cuGraphGetEdges_v2", graph, sources, sinks, edges, byref(count))
    return list(zip(sources, sinks, edges))


def _is_kernel(driver: Driver, node: int) -> bool:
    kind = c_int()
    driver("cuGraphNodeGetType", node, byref(kind))
    return kind.value == KERNEL


def _waits(driver: Driver, node: int) -> bool:
    """Whether a node is a kernel of a module that has the mark."""
    if not _is_kernel(driver, node):
        return False
    parameters, name = (c_char * SIZE_OF_PARAMETERS)(), c_char_p()
    try:
        driver("cuGraphKernelNodeGetParams_v2", node, byref(parameters))
        function = c_void_p.from_buffer(parameters).value
        driver("cuFuncGetName", byref(name), function)
        if not (name.value or b"").startswith(OF_TVM):
            return False
        module = driver.made("cuFuncGetModule", function)
        driver.made("cuModuleGetGlobal_v2", byref(c_size_t()), module, MARK.encode())
    except RuntimeError:  # a kernel of a library, which is none of a module, or a module without the mark
        return False
    return True
