"""Kernels that are launched before those ahead of them have ended: their code, and the graphs they are in."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers import module, numbers
from topi_ext import early_launch as waits
from tvm_passes import runtime
from tvm_passes.runtime import cuda, early_launch, input_readers
from tvm_passes.runtime.cuda_driver import CudaError

import tvm
from tvm import relay

DECLARED = 'extern "C" __global__ void __launch_bounds__(32) first(float* __restrict__ x);\n'
DEFINED = DECLARED.replace(";\n", " {\n  x[threadIdx.x] = 1.0f;\n}\n")


# --- their code


def test_each_kernel_waits_before_it_does_anything():
    code = waits.waiting(DECLARED + DEFINED + DEFINED.replace("first", "second"))
    assert code.count("griddepcontrol.wait") == code.count("griddepcontrol.launch_dependents") == 2
    for body in code.split(") {")[1:]:
        first = (
            body.index("griddepcontrol.wait"),
            body.index("launch_dependents"),
            body.index("x[threadIdx.x]"),
        )
        assert sorted(first) == [*first]
    assert f'extern "C" __device__ int {waits.MARK}' in code


def test_code_without_kernels_stays():
    code = "__device__ int f() { return 1; }\n" + DECLARED
    assert waits.waiting(code) == code


@pytest.mark.parametrize(
    "arch, expected", [("sm_80", False), ("sm_90", True), ("sm_90a", True), ("sm_120", True)]
)
def test_only_gpus_that_know_it_get_it(arch, expected):
    target = tvm.target.Target(f"cuda -arch={arch}")
    code = tvm.get_global_func("tvm_callback_cuda_postproc")(DEFINED, target)
    assert ("griddepcontrol" in code) == (arch not in ("sm_80", "sm_89"))


# --- graphs, by a driver that knows the nodes 1 to 5, of which 3 copies, 2 and 4 wait, and 5 has no module


class Driver:
    EDGES = ((1, 2), (2, 3), (3, 4), (2, 4), (4, 5))

    def __init__(self):
        self.modules = {101: 201, 102: 202, 104: 202}
        self.removed, self.added = [], []

    def has(self, _name):
        return True

    def __call__(self, name, *args):
        getattr(self, name)(*args)

    def made(self, _name, function):
        if function not in self.modules:
            raise CudaError("of no module")
        return self.modules[function]

    def holds(self, name, _address, _size, module, variable):
        return name == "cuModuleGetGlobal_v2" and variable == waits.MARK.encode() and module == 202

    def cuGraphGetEdges_v2(self, _graph, before, nodes, _kinds, count):
        count._obj.value = len(self.EDGES)
        for place, edge in enumerate(self.EDGES if before else ()):
            before[place], nodes[place] = edge

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = 1 if node == 3 else input_readers.KERNEL

    def cuGraphKernelNodeGetParams_v2(self, node, parameters):
        parameters._obj.function = 100 + node

    def cuGraphRemoveDependencies_v2(self, _graph, before, nodes, kinds, count):
        self.removed += zip(before, nodes, map(bytes, kinds))
        assert len(self.removed) == count

    def cuGraphAddDependencies_v2(self, _graph, before, nodes, kinds, count):
        self.added += zip(before, nodes, map(bytes, kinds))
        assert len(self.added) == count


@pytest.fixture
def driver(monkeypatch):
    fake = Driver()
    for module_ in (early_launch, input_readers):
        monkeypatch.setattr(module_, "driver", lambda: fake)
    return fake


def test_edges_between_kernels_to_those_that_wait_become_early(driver):
    early_launch.launch_early(7)
    assert driver.removed == [(1, 2, bytes(8)), (2, 4, bytes(8))]  # as a copy is done, 4 may rely on it
    assert driver.added == [(1, 2, bytes(early_launch.EARLY)), (2, 4, bytes(early_launch.EARLY))]


def test_a_graph_without_kernels_that_wait_stays(driver):
    driver.modules = {}
    early_launch.launch_early(7)
    assert driver.added == driver.removed == []


@pytest.mark.parametrize("version, expected", [("8.9", False), ("9.0", True), ("12.0", True), (None, False)])
def test_the_gpu_decides(driver, version, expected):
    assert early_launch.is_possible(SimpleNamespace(compute_version=version)) == expected


# --- on a GPU

STEPS = 40


def a_chain():
    """Each kernel reads, at other places, what the one before it wrote, so it would show if it were early."""
    y = x = relay.var("x", shape=(64, 64))
    for step in range(STEPS):
        y = relay.annotation.stop_fusion(relay.transpose(y) * relay.const(1.0 + step % 3))
        y = relay.annotation.stop_fusion(relay.reverse(y, axis=1) - relay.const(0.5))
    return module(x, y)


@pytest.mark.gpu
def test_early_kernels_compute_the_same(monkeypatch):
    device = tvm.cuda(0)
    if not early_launch.is_possible(device):
        pytest.skip(f"a GPU of compute capability {device.compute_version}, or an old driver")
    edges, launch = [], early_launch.launch_early

    def noted(graph):
        edges.append(len(early_launch._edges(graph)))
        launch(graph)
        edges.append(len(early_launch._edges(graph)))

    monkeypatch.setattr(early_launch, "launch_early", noted)
    x = torch.from_numpy(numbers(64, 64)).cuda()
    found = []
    for step in (1, -1):  # the graph timed first, or the one timed last, is the fastest: a usual, or an early
        times = iter(range(0, 10**9 * step, step))
        monkeypatch.setattr(cuda, "_seconds_of", lambda *_, times=times: next(times))
        target = f"cuda -arch=sm_{device.compute_version.replace('.', '')}"
        model = runtime.compile(a_chain(), target, cuda_graph=True)
        found += [model(x).cpu().numpy() for _ in range(20)]
    for output in found:
        np.testing.assert_array_equal(output, found[0])
    assert min(edges[::2]) > STEPS and max(edges[1::2]) == 0  # before, and after
