"""Which kernels of a CUDA graph start early, and what TVM's source says for that."""

import shutil

import pytest

from topi_ext.corrections import early_launch as source
from topi_ext.corrections.compile_cuda import Source
from tvm_passes.runtime import early_launch
from tvm_passes.runtime.cuda import CudaError

CODE = """
extern "C" __global__ void __launch_bounds__(32) a_kernel(float* __restrict__ x, int n);
__device__ float twice(float x) {
  return 2 * x;
}
extern "C" __global__ void __launch_bounds__(32) a_kernel(float* __restrict__ x, int n) {
  if (threadIdx.x < n) { x[threadIdx.x] = twice(x[threadIdx.x]); }
}
extern "C" __global__ void b_kernel(float* __restrict__ x, const float* __restrict__ y) {
  x[threadIdx.x] = y[threadIdx.x];
}
"""


def test_each_kernel_waits_first():
    code = source.with_waits(CODE, 90)
    definitions = [part.splitlines()[1] for part in code.split('extern "C" __global__ ') if ") {\n" in part]
    assert sum(source.WAIT in line for line in code.splitlines()) == 2
    assert sum(source.WAIT in line for line in definitions) == 2
    assert "__restrict__" not in code and source.MARK in code


def test_other_gpus_get_the_source_as_it_is():
    assert source.with_waits(CODE, 89) == CODE


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_it_compiles_with_the_mark():
    binary = Source(source.with_waits(CODE, 90), ("-gencode", "arch=compute_90,code=sm_90")).compile()
    assert source.MARK.encode() in binary


# --- the edges

MARKED, PLAIN, OF_A_LIBRARY, COPY = b"tvmgen_marked", b"tvmgen_plain", b"cudnn_kernel", None


class Graph:
    """A graph, and the driver that is asked about it. Nodes count from 1, and functions are their numbers."""

    def __init__(self, nodes, edges):
        self.nodes, self.edges = dict(enumerate(nodes, 1)), dict.fromkeys(edges, early_launch.ON_COMPLETION)

    def has(self, _functions):
        return True

    def early(self):
        return {edge for edge, kind in self.edges.items() if kind == early_launch.PROGRAMMATIC}

    def __call__(self, name, *args):
        getattr(self, name)(*args)

    def made(self, name, *args):
        return getattr(self, name)(*args)

    def cuGraphGetEdges_v2(self, _graph, sources, sinks, _data, count):
        count._obj.value = len(self.edges)
        for at, (source_, sink) in enumerate(self.edges if sources else ()):
            sources[at], sinks[at] = source_, sink

    def cuGraphRemoveDependencies_v2(self, _graph, sources, sinks, _data, _count):
        del self.edges[sources[0], sinks[0]]

    def cuGraphAddDependencies_v2(self, _graph, sources, sinks, data, _count):
        assert data._obj.from_port == data._obj.type
        self.edges[sources[0], sinks[0]] = data._obj.type

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.nodes[node] is COPY

    def cuGraphKernelNodeGetParams_v2(self, node, parameters):
        parameters._obj.raw = node.to_bytes(8, "little") + bytes(len(parameters._obj) - 8)

    def cuFuncGetName(self, name, function):
        name._obj.value = self.nodes[function]

    def cuFuncGetModule(self, function):
        assert self.nodes[function] != OF_A_LIBRARY
        return function

    def cuModuleGetGlobal_v2(self, _size, module, name):
        if self.nodes[module] != MARKED or name != source.MARK.encode():
            raise CudaError("cuModuleGetGlobal_v2: not found (500)")
        return 1


@pytest.mark.parametrize(
    "nodes, edges, early",
    [
        ([MARKED] * 3, [(1, 2), (2, 3)], {(1, 2), (2, 3)}),
        ([PLAIN, MARKED, PLAIN], [(1, 2), (2, 3)], {(1, 2)}),
        ([OF_A_LIBRARY, MARKED, OF_A_LIBRARY], [(1, 2), (2, 3)], {(1, 2)}),
        ([MARKED, COPY, MARKED], [(1, 2), (2, 3)], set()),
        ([MARKED] * 4, [(1, 2), (1, 3), (2, 4), (3, 4)], {(1, 2), (1, 3)}),
        ([MARKED], [], set()),
    ],
)
def test_kernels_that_start_early(nodes, edges, early):
    graph = Graph(nodes, edges)
    assert early_launch.let_kernels_start_early(graph, 1) == bool(early)
    assert graph.early() == early and set(graph.edges) == set(edges)


def test_an_old_driver():
    graph = Graph([MARKED] * 2, [(1, 2)])
    graph.has = lambda _functions: False
    assert not early_launch.let_kernels_start_early(graph, 1) and not graph.early()
