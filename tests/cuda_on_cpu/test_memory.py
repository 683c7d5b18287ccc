"""Accesses outside the memory of a kernel are reported, with the line and the buffer."""

import numpy as np
import pytest

import tvm
from tvm.script import tir as T


@pytest.fixture(params=["address", "thread"])
def cuda(emulated_cuda, request):
    emulated_cuda.sanitize = request.param
    return emulated_cuda


def run(cuda, body, *arrays, block=1):
    arrays = arrays or (np.zeros(8, "float32"),)
    parameters = ", ".join(f"float* a{i}" for i in range(len(arrays)))
    cuda.run_kernel(f"__global__ void kernel({parameters}) {{\n{body}\n}}", "kernel", 1, block, arrays)
    return arrays[0]


@pytest.mark.parametrize(
    "access, report",
    [
        (
            "a0[8] = 1;",
            r"line 2 `a0\[8\] = 1;`: out of bounds: writes 4 bytes 0 bytes past the end of argument 0",
        ),
        ("a0[0] += a0[10];", r"reads 4 bytes 8 bytes past the end of argument 0, which has 32 bytes"),
        ("a0[-2] = 1;", "writes 4 bytes 8 bytes before argument 0"),
        ("a0[1 << 22] = 1;", "writes 4 bytes far from all its buffers"),
        ("a0[0] = *(float*)(size_t)4;", "reads 4 bytes far from"),
        ("*(float4*)(a0 + 8) = make_float4(1, 2, 3, 4);", "out of bounds: writes"),
        ("atomicAdd(a0 + 8, 1.0f);", "out of bounds: writes 4 bytes 0 bytes past"),
        ("a0[0] = __ldg(a0 + 9);", r"`a0\[0\] = __ldg.*reads 4 bytes 4 bytes past"),
    ],
)
def test_global_memory(cuda, access, report):
    with pytest.raises(tvm.TVMError, match=report):
        run(cuda, access)


def test_the_thread_is_named(cuda):
    with pytest.raises(tvm.TVMError, match=r"kernel kernel, block \(0,0,0\), thread \(7,0,0\)"):
        run(cuda, "a0[threadIdx.x + 1] = 1;", block=8)


def test_access_to_a_buffer_of_others(cuda):
    """There is memory of the device, but not the kernel's."""
    arrays = [tvm.nd.empty((1024,), "float32", cuda.device) for _ in range(8)]
    addresses = sorted(a.handle.contents.data for a in arrays)
    distance = (addresses[-1] - addresses[0]) // 4
    with pytest.raises(tvm.TVMError, match="out of bounds: writes"):
        run(cuda, f"a0[{distance}] = 1;", np.zeros(1024, "float32"))


@pytest.mark.parametrize(
    "access",
    [
        "int i = 8; s[i] = 1;",
        "((float4*)s)[2].y = 1;",
        "a0[0] = ((volatile float*)s)[-1];",
    ],
)
def test_shared_memory(cuda, access):
    with pytest.raises(tvm.TVMError, match=r"out of bounds: .*(shared array \"s\"|float \[8\])"):
        run(cuda, f"__shared__ float s[8]; __shared__ float t[8];\n{access}\nt[0] = s[0];")


def test_dynamic_shared_memory(cuda):
    source = """
    __global__ void kernel(int* out) {
      extern __shared__ uchar4 buffer[];
      ((int*)buffer)[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = ((int*)buffer)[31 - threadIdx.x];
    }"""
    out = np.zeros(32, "int32")
    cuda.run_kernel(source, "kernel", 1, 32, [out], dynamic_shared=128)
    np.testing.assert_array_equal(out, np.arange(32)[::-1])
    with pytest.raises(tvm.TVMError, match="past the end of the dynamic shared memory, which has 124 bytes"):
        cuda.run_kernel(source, "kernel", 1, 32, [out], dynamic_shared=124)


def test_local_memory(cuda):
    body = "float local[4]; for (int i = 0; i < 8; ++i) local[i] = i;\na0[0] = local[threadIdx.x];"
    with pytest.raises(tvm.TVMError, match=r"index 4 of 'float \[4\]'"):
        run(cuda, body)


def test_misaligned_vector(emulated_cuda):
    with pytest.raises(tvm.TVMError, match="misaligned address: writes 8 bytes"):
        run(emulated_cuda, "*(long long*)(a0 + 1) = 1;")


def test_division_by_zero(emulated_cuda):
    with pytest.raises(tvm.TVMError, match="integer division by zero"):
        run(emulated_cuda, "a0[0] = 7 / int(threadIdx.x);")


def test_host_and_freed_memory(emulated_cuda):
    def touch(array):
        emulated_cuda.run_kernel("__global__ void kernel(float* a) { a[0] = 1; }", "kernel", 1, 1, [array])

    with pytest.raises(tvm.TVMError, match="argument 0 points to no memory of the device"):
        touch(tvm.nd.empty((4,), device=tvm.cpu()).handle.contents.data)
    address = tvm.nd.empty((4,), device=emulated_cuda.device).handle.contents.data
    with pytest.raises(tvm.TVMError, match="before it is freed"):
        touch(address)


def test_new_memory_is_junk(emulated_cuda):
    assert np.isnan(tvm.nd.empty((4,), device=emulated_cuda.device).numpy()).all()
    source = "__global__ void kernel(float* a) { __shared__ float s[1]; a[blockIdx.x] = s[0]; s[0] = 1; }"
    seen = np.zeros(3, "float32")
    emulated_cuda.run_kernel(source, "kernel", 3, 1, [seen])
    assert np.isnan(seen).all()


def workspace_kernel(reach):
    """Copies through a workspace of 100 floats, whose last read is at 99 + `reach`."""

    @T.prim_func
    def kernel(a: T.Buffer((100,), "float32"), b: T.Buffer((100,), "float32")):
        T.func_attr({"global_symbol": "main", "tir.noalias": True})
        workspace = T.decl_buffer((100,), "float32")
        for i in T.thread_binding(100, thread="threadIdx.x"):
            workspace[i] = a[i] * T.float32(2)
        for i in T.thread_binding(100, thread="threadIdx.x"):
            b[i] = workspace[i + reach]

    return kernel


@pytest.mark.parametrize("reach", [0, 1])
def test_workspace(emulated_cuda, reach):
    """TVM rounds workspaces to pages; here they have the size that the kernel asked for."""
    function = emulated_cuda.build(workspace_kernel(reach))
    a, b = (tvm.nd.array(np.arange(100, dtype="float32"), emulated_cuda.device) for _ in range(2))
    if reach:
        with pytest.raises(tvm.TVMError, match="reads 4 bytes 0 bytes past the end of argument"):
            function(a, b)
    else:
        function(a, b)
        np.testing.assert_array_equal(b.numpy(), np.arange(100) * 2)
