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
from .memory import Place

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


class _Kernel:
    """A node with the values of its parameters, some of which may be set."""

    def __init__(self, node: int, parameters: _Parameters, values: Sequence[int]) -> None:
        self._node, self._parameters = node, parameters
        self._values = (c_void_p * len(values))(*values)
        self._addresses: list[c_uint64] = []  # which values point to, whoever else has forgotten them
        parameters.values = cast(self._values, HANDLE)

    def variable(self, places: Sequence[int], address: int) -> c_uint64:
        """What these parameters are from now on: first this address, then whatever is written there."""
        variable = c_uint64(address)
        self._addresses.append(variable)
        for place in places:
            self._values[place] = addressof(variable)
        return variable

    def set_in(self, executable: int | None) -> None:
        driver()("cuGraphExecKernelNodeSetParams_v2", executable, self._node, byref(self._parameters))


class Reader:
    """A kernel that reads an input; kernels that read several have a reader for each, with common values."""

    def __init__(self, kernel: _Kernel, places: Sequence[int], address: int) -> None:
        self._kernel, self._address = kernel, kernel.variable(places, address)

    def read(self, executable: int | None, address: int) -> None:
        """From its next launch on, the graph reads the input there."""
        self._address.value = address
        self._kernel.set_in(executable)


def readers_of(
    nodes: AbstractSet[int], waited: AbstractSet[int], inputs: Sequence[Place]
) -> list[Reader | None]:
    """Of each input, by its place in memory: what a capture added behind other nodes, if that is a kernel.

    None if it is more than that, if a parameter may have the address in another way, or if the driver is too
    old to say.
    """
    found = _kernel_of(nodes, waited)
    if found is None:
        return [None] * len(inputs)
    kernel, pointers = found
    readers: list[Reader | None] = []
    for address, size in inputs:
        inside = [place for place, pointer in pointers.items() if address <= pointer < address + size]
        is_as_it_is = inside and all(pointers[place] == address for place in inside)
        readers.append(Reader(kernel, inside, address) if is_as_it_is else None)
    return readers


def _kernel_of(nodes: AbstractSet[int], waited: AbstractSet[int]) -> tuple[_Kernel, dict[int, int]] | None:
    """The only node, with its pointers by their places among the parameters."""
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
    return _Kernel(node, parameters, values), pointers


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
