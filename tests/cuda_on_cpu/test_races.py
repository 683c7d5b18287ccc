"""A race is found in two ways: by another order of threads, and by what no barrier orders."""

import numpy as np
import pytest

import tvm

REVERSE = """
__global__ void reverse(int* a) {
  __shared__ int s[256];
  s[threadIdx.x] = a[threadIdx.x];
  %s
  a[threadIdx.x] = s[(threadIdx.x + 1) %% 256];
}"""


def launch(cuda, source, name, grid=1, block=256):
    a = np.arange(512, dtype="int32")
    cuda.run_kernel(source, name, grid, block, [a])
    return a


def test_missing_barrier_shows_in_another_order(emulated_cuda):
    with pytest.raises(AssertionError, match="a race: another order of threads"):
        emulated_cuda.assert_same_in_any_order(lambda: launch(emulated_cuda, REVERSE % "", "reverse"))


def test_missing_barrier_is_named(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    expected = (
        r'thread \(1,0,0\), line 4 `s\[.*race: writes .* shared array "s", which thread \(0,0,0\) reads'
    )
    with pytest.raises(tvm.TVMError, match=expected):
        launch(emulated_cuda, REVERSE % "", "reverse")


def test_its_mended_twin_has_no_race(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    source = REVERSE % "__syncthreads();"
    emulated_cuda.assert_same_in_any_order(lambda: launch(emulated_cuda, source, "reverse"))


@pytest.mark.parametrize(
    "body, grid, races",
    [
        ("a[0] = threadIdx.x;", 1, True),
        ("a[0] += 1;", 1, True),
        ("atomicAdd(a, 1);", 4, False),
        ("if (threadIdx.x == 0) atomicAdd(a, 1);\nif (threadIdx.x == 1) a[0] = 0;", 1, True),
        ("a[threadIdx.x] = 1;", 2, True),  # the blocks write the same elements
        ("a[threadIdx.x + 256 * blockIdx.x] = a[threadIdx.x + 256 * blockIdx.x] + 1;", 2, False),
        ("if (blockIdx.x == 0) a[0] = 1;\n__syncthreads();\nif (blockIdx.x == 1) a[2] = a[0];", 2, True),
        ("a[256 + threadIdx.x] = a[0];\nif (blockIdx.x == 1) a[0] = 7;", 1, False),
        ("int x = a[threadIdx.x];\n__syncthreads();\na[255 - threadIdx.x] = x;", 1, False),
        ("int x = a[threadIdx.x];\na[255 - threadIdx.x] = x;", 1, True),
        ("int x = a[threadIdx.x];\n__syncwarp();\na[threadIdx.x ^ 1] = x;", 1, False),
        ("int x = a[threadIdx.x];\n__syncwarp();\na[255 - threadIdx.x] = x;", 1, True),
        ("((char*)a)[threadIdx.x] = 1;", 1, False),
    ],
)
def test_what_is_a_race(emulated_cuda, body, grid, races):
    emulated_cuda.sanitize = "thread"
    source = f"__global__ void kernel(int* a) {{\n{body}\n}}"
    if races:
        with pytest.raises(tvm.TVMError, match=r"race: .*argument 0"):
            launch(emulated_cuda, source, "kernel", grid)
    else:
        launch(emulated_cuda, source, "kernel", grid)


def test_order_of_blocks(emulated_cuda):
    source = "__global__ void kernel(int* a) { a[0] = blockIdx.x; }"
    with pytest.raises(AssertionError, match="a race"):
        emulated_cuda.assert_same_in_any_order(lambda: launch(emulated_cuda, source, "kernel", 16, 1))
