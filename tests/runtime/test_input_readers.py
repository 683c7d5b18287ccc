"""Kernels of CUDA graphs that read inputs where they are, by a fake driver: which, and at which address."""

import gc
from ctypes import Structure, c_int32, c_uint64

import pytest

from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tvm_passes.runtime import cuda
from tvm_passes.runtime.input_readers import readers_of

ADDRESS, SIZE = 0xA000, 64


class Descriptor(Structure):
    _fields_ = [("address", c_uint64), ("extents", c_uint64)]


PARAMETERS = {
    "one pointer": ([c_uint64(0xB000), c_int32(5), c_uint64(ADDRESS)], "b000:5:{}"),
    "the same pointer twice": ([c_uint64(ADDRESS), c_uint64(ADDRESS)], "{0}:{0}"),
    "none": ([], None),
    "another pointer": ([c_uint64(ADDRESS + SIZE)], None),
    "a pointer to a part, too": ([c_uint64(ADDRESS), c_uint64(ADDRESS + 4)], None),
    "a structure": ([c_uint64(ADDRESS), Descriptor(ADDRESS, 3)], None),
    "a number that is equal": ([c_int32(ADDRESS)], None),
}


@pytest.fixture
def in_context(fake_cuda):  # noqa: F811
    fake_cuda.driver("cuCtxPushCurrent_v2", 0xC0)
    yield fake_cuda
    fake_cuda.driver.made("cuCtxPopCurrent_v2")


def reader_of(nodes, waited, *input_):
    (reader,) = readers_of(nodes, waited, [input_])
    return reader


@pytest.mark.parametrize("what", PARAMETERS)
def test_which_parameters_are_the_input(in_context, what):
    parameters, set_to = PARAMETERS[what]
    in_context.kernel(*parameters)
    reader = reader_of({3}, set(), ADDRESS, SIZE)
    assert (reader is None) == (set_to is None)
    if reader is not None:
        for address in (0xD000, ADDRESS):
            with pytest.raises(cuda.CudaError, match="cuGraphExecKernelNodeSetParams"):
                reader.read(None, address)
            reader.read(1, address)
            assert in_context.notes()[-1] == "node:3:" + set_to.format(f"{address:x}")


def test_a_kernel_of_several_inputs(in_context):
    """Each stays where it was set when another one is set, also one that was never set."""
    addresses = [0xA000, 0xB000, 0xC000]
    in_context.kernel(*map(c_uint64, addresses), c_uint64(0xE000))
    first, second = readers_of({3}, set(), [(address, SIZE) for address in addresses])[:2]
    gc.collect()  # the third reader
    first.read(1, 0xA100)
    second.read(1, 0xB100)
    assert in_context.notes()[-2:] == ["node:3:a100:b000:c000:e000", "node:3:a100:b100:c000:e000"]


def test_which_nodes_read(in_context):
    in_context.kernel(c_uint64(ADDRESS))
    assert reader_of({3}, set(), ADDRESS, SIZE)
    assert reader_of({3, 4}, set(), ADDRESS, SIZE) is None
    assert reader_of({3}, {2}, ADDRESS, SIZE) is None  # another kernel is between them
    in_context.kernel(c_uint64(ADDRESS), type=1)
    assert reader_of({3}, set(), ADDRESS, SIZE) is None


def test_an_older_driver(in_context, monkeypatch):
    in_context.kernel(c_uint64(ADDRESS))
    monkeypatch.setattr(type(in_context.driver), "has", lambda *_: False)
    assert reader_of({3}, set(), ADDRESS, SIZE) is None
