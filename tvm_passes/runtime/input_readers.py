"""Kernels of a CUDA graph that read an input wherever it is, so that callers need not copy it.

The node of a kernel has the values of the kernel's parameters, and an executable graph takes others. TVM's
kernels have one pointer for each array that they read. Others may have addresses inside of larger parameters,
so a kernel with such parameters is none of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from ctypes import Structure, addressof, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, cast

from .cuda_driver import HANDLE, CudaError, driver

KERNEL = 0  # a type of nodes
POINTER_BYTES = 8
NAMES = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes"]


class _Parameters(Structure):
    """CUDA_KERNEL_NODE_PARAMS of CUDA 12."""

    _fields_ = [
        ("function", c_void_p),
        *((name, c_uint) for name in NAMES),
        ("values", HANDLE),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    ]


class Reader:
    """A kernel's node, as it is launched with an input's address."""

    def __init__(self, node: int, parameters: _Parameters, values: Sequence[int], places: list[int]) -> None:
        self._node, self._parameters, self._address = node, parameters, c_uint64()
        self._values = (c_void_p * len(values))(*values)
        for place in places:
            self._values[place] = addressof(self._address)
        parameters.values = cast(self._values, HANDLE)

    def read(self, executable: int | None, address: int) -> None:
        """From its next launch on, the graph reads the input there."""
        self._address.value = address
        driver()("cuGraphExecKernelNodeSetParams_v2", executable, self._node, byref(self._parameters))


def reader_of(nodes: AbstractSet[int], waited: AbstractSet[int], address: int, size: int) -> Reader | None:
    """Of an input of this address and size: what a capture added behind other nodes, if that is a kernel.

    None if it is more than that, if a parameter may have the address in another way, or if the driver is too
    old to say.
    """
    if len(nodes) != 1 or not driver().has("cuFuncGetParamInfo"):
        return None
    (node,) = nodes
    kind, parameters = c_int(), _Parameters()
    try:
        driver()("cuGraphNodeGetType", node, byref(kind))
        if kind.value != KERNEL or _waits_of(node) != waited:
            return None
        driver()("cuGraphKernelNodeGetParams_v2", node, byref(parameters))
    except CudaError:  # as where a node waits for a part of another one
        return None
    if not parameters.function or parameters.extra:
        return None
    sizes = _sizes(parameters.function)
    values = [parameters.values[place] or 0 for place in range(len(sizes))]
    if max(sizes, default=0) > POINTER_BYTES:
        return None
    pointers = {
        place: c_uint64.from_address(value).value
        for place, (bytes_, value) in enumerate(zip(sizes, values))
        if bytes_ == POINTER_BYTES
    }
    inside = [place for place, pointer in pointers.items() if address <= pointer < address + size]
    if not inside or any(pointers[place] != address for place in inside):
        return None
    return Reader(node, parameters, values, inside)


def _waits_of(node: int) -> set[int]:
    count = c_size_t()
    driver()("cuGraphNodeGetDependencies", node, None, byref(count))
    nodes = (c_void_p * count.value)()
    if nodes:  # the driver refuses to write none
        driver()("cuGraphNodeGetDependencies", node, cast(nodes, HANDLE), byref(count))
    return {each for each in nodes if each}


def _sizes(function: int) -> list[int]:
    """The bytes of each parameter; the driver refuses the first place that has none."""
    found: list[int] = []
    offset, size = c_size_t(), c_size_t()
    while True:
        try:
            driver()("cuFuncGetParamInfo", function, len(found), byref(offset), byref(size))
        except CudaError:
            return found
        found.append(size.value)
