"""What makes networks fast on GPUs: pooled regions in NHWC, filters that cuDNN takes, a selection, graphs."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import frontends.relax
import topi_ext
import tvm_passes
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, LLVM, compiled, module_of, run, types_of
from tests.relax.test_passes import CONVOLUTION, calls, converted, operators
from topi_ext.sort.op import topk
from topi_ext.sort.reference import topk as expected_topk
from tvm_passes import runtime
from tvm_passes.relax import AlignFilters, DenseAsConvolution, SelectTopK
from tvm_passes.relax.graph import shape_of
from tvm_passes.runtime import cuda_graphs
from tvm_passes.runtime.libraries import executor_of
from tvm_passes.runtime.profilers import profiler

import tvm
from tvm import relax

WITH_CUDNN = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "libs": ["cudnn-frontend"]}, host="llvm")
SEEDED = torch.Generator().manual_seed(7)
RNG = np.random.default_rng(7)


# --- pooled regions


class Pooled(nn.Module):
    """A convolution, whose regions are pooled, flattened and multiplied by weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 2 * 3, 5)

    def forward(self, image, rois):
        pooled = torchvision.ops.roi_align(self.conv(image), rois, (2, 3), 1.0, 2)
        return self.dense(pooled.flatten(1))


def test_regions_are_pooled_and_flattened_in_nhwc():
    network, image = Pooled().eval(), torch.rand(1, 3, 12, 10, generator=SEEDED)
    rois = torch.tensor([[0, 1, 1, 8, 9], [0, 0, 2, 5, 5.5]])
    with torch.no_grad():
        expected = network(image, rois).numpy()
    module, _ = converted(frontends.relax.from_pytorch(network, (image, rois)), LLVM)
    assert operators(module).count("relax.permute_dims") == 1  # of the image
    (found,) = run(compiled(module), [image.numpy(), rois.numpy()])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def flattened(used=False, shape=(4, 24)):
    weight = relax.const(RNG.random((shape[1], 5), "float32"))

    def build(variables):
        moved = relax.op.permute_dims(variables[0], [0, 3, 1, 2])
        product = relax.op.matmul(relax.op.reshape(moved, shape), weight)
        return relax.Tuple([product, moved]) if used else product

    data = RNG.random((4, 2, 3, 4), "float32")
    return module_of({"main": (build, types_of([data]))}), data


def test_images_are_flattened_as_they_are():
    module, data = flattened()
    result = DenseAsConvolution()(module)
    assert "relax.permute_dims" not in operators(result)
    np.testing.assert_allclose(run(compiled(result), [data]), run(compiled(module), [data]), rtol=1e-5)


@pytest.mark.parametrize("options", [{"used": True}, {"shape": (8, 12)}])
def test_other_uses_of_transposed_images_keep_them(options):
    module, _ = flattened(**options)
    assert "relax.permute_dims" in operators(DenseAsConvolution()(module))


# --- filters


def with_filters(count, size=100, block=1, residual=False, again=False):
    data = relax.TensorType((1, size, size, 256), "float16")
    weight = RNG.standard_normal((count, 3, 3, 256)).astype("float16")
    bias = relax.const(RNG.random(count, "float32"))

    def build(variables):
        added = relax.const(np.ones((1, size, size, count), "float16")) if residual else None
        options = {"padding": 1, "block_size": block}
        result = topi_ext.conv2d_nhwc(variables[0], relax.const(weight), bias, added, **options)
        if again:
            return topi_ext.conv2d_nhwc(result, relax.const(np.ones((8, 1, 1, count), "float16")))
        return result

    return module_of({"main": (build, [data])})


def test_filters_of_zeros_are_added_and_cut_off():
    result = AlignFilters(WITH_CUDNN)(with_filters(60))
    assert operators(result) == [CONVOLUTION, "relax.strided_slice"]
    (call,) = calls(result)
    weight, bias = (argument.value.numpy() for argument in call.args[1:3])
    assert len(weight) == len(bias) == 64 and not weight[60:].any() and not bias[60:].any()
    assert shape_of(call) == (1, 100, 100, 64) and list(result["main"].ret_ty.shape) == [1, 100, 100, 60]


REFUSED = {
    "the filters are shuffled into pixels": {"count": 60, "block": 2},
    "a residual with as many channels is added": {"count": 60, "residual": True},
    "another convolution reads the result, which would be copied for it": {"count": 60, "again": True},
    None: {"count": 3},  # too many would be zeros
}


@pytest.mark.parametrize("reason", REFUSED)
def test_filters_that_stay_as_they_are(reason):
    module = with_filters(**REFUSED[reason])
    with tvm_passes.recording() as report:
        result = AlignFilters(WITH_CUDNN)(module)
    assert {outcome.reason for each in report.passes for outcome in each.refusals} == {reason} - {None}
    assert "relax.strided_slice" not in operators(result)


def test_without_cudnn_filters_stay():
    assert operators(AlignFilters(CUDA)(with_filters(60))) == [CONVOLUTION]


# --- the first numbers of rows


def first(data, largest=True, k=5, ret_type="both"):
    def build(variables):
        return relax.op.topk(variables[0], k, -1, ret_type, largest, "int32")

    return module_of({"main": (build, types_of([data]))})


@pytest.mark.parametrize(("length", "largest"), [(40, True), (3000, False)])
def test_the_first_numbers_are_selected_on_cuda(length, largest):
    data = RNG.integers(-1000, 1000, (2, length)).astype("float32")
    result = SelectTopK(CUDA)(first(data, largest))
    assert operators(result)[0] == "topi_ext.topk"
    with emulate_cuda():
        found = run(compiled(result, CUDA), [data], device=tvm.cuda())
    for mine, theirs in zip(found, expected_topk(data, 5, ascending=not largest)):
        np.testing.assert_array_equal(mine, theirs)
    assert [str(each.dtype) for each in found] == ["float32", "int32"]


def test_other_selections_stay():
    data = np.zeros((2, 9), "float32")
    for module in (first(data, k=-1), first(data, ret_type="values")):
        assert "topi_ext.topk" not in operators(SelectTopK(CUDA)(module))
    assert "topi_ext.topk" not in operators(SelectTopK(LLVM)(first(data)))


def test_the_selection_has_no_kernel_for_llvm():
    build = lambda variables: topk(variables[0], 2, axis=1, largest=True, dtype="int64")  # noqa: E731
    with pytest.raises(Exception, match="there are kernels for CUDA only"):
        compiled(module_of({"main": (build, types_of([np.zeros((2, 9), "float32")]))}))


# --- graphs


class Chain(nn.Module):
    """Kernels in a row, of which TVM captures those in the middle."""

    def forward(self, x):
        for _ in range(3):
            x = torch.softmax(x, 1)
        return x, x.sum(1)


def chain():
    x = torch.rand(4, 30, generator=SEEDED)
    return Chain(), x, frontends.relax.from_pytorch(Chain(), x)


@contextlib.contextmanager
def library():
    """The network, its input, and what is compiled of it with graphs, which the emulated device lacks."""
    network, x, module = chain()
    with emulate_cuda(), tvm.transform.PassContext(config={cuda_graphs.OPTION: True}):
        yield network, x, runtime.build_library(module, CUDA).jit()


def test_static_networks_can_be_captured():
    """The kernels of graphs run one by one, into the same memory each time."""
    with library() as (network, x, lib):
        executor = executor_of(lib, tvm.cuda())
        assert executor.why_no_cuda_graph is None
        given = tvm.runtime.tensor(x.numpy(), tvm.cuda())
        executor.bind([given])
        (launch,) = executor.launches()
        launch.run()
        first_found = executor.results()
        assert [each.data_ptr() for each in executor.results()] == [each.data_ptr() for each in first_found]
        for mine, of_torch in zip(first_found, network(x)):
            np.testing.assert_allclose(mine.numpy(), of_torch.numpy(), rtol=1e-5)
        executor.bind([given])
        executor.run()
        assert len(executor.results()) == 2 and executor._outputs is None  # whose memory is the caller's


def test_each_kernel_of_a_graph_is_profiled():
    with library() as (_, x, lib):
        model = SimpleNamespace(lib=lib, device=tvm.cuda())
        with profiler(model, [tvm.runtime.tensor(x.numpy(), tvm.cuda())]) as run_once:
            names = [name for name, _, _ in run_once()]
    assert sum("softmax" in name for name in names) == 3 and cuda_graphs.RUN_OR_CAPTURE not in names


def test_what_decides_as_it_runs_cannot_be_captured():
    graph, heap, storage = (
        f"  call  vm.builtin.{name} in: %9 dst: %{at}\n"
        for at, name in enumerate(("cuda_graph.run_or_capture", "alloc_shape_heap", "alloc_storage"))
    )
    pair = "  call  vm.builtin.make_tuple in: %1, %2 dst: %0\n"
    for code, can_be in {
        graph: True,
        storage: False,
        heap + graph: False,
        storage + graph: True,
        storage + storage + graph: False,
        storage + storage + graph + pair: True,
    }.items():
        text = f"@main:\n{code}  ret   %0\n\n@softmax packed_func;\n"
        assert cuda_graphs.can_be_captured({"as_text": lambda text=text: text}) == can_be, code


def test_graphs_are_asked_for_on_cuda_unless_the_context_has_them():
    with cuda_graphs.asked_for(CUDA):
        assert tvm.transform.PassContext.current().config[cuda_graphs.OPTION]
    with tvm.transform.PassContext(config={cuda_graphs.OPTION: False}), cuda_graphs.asked_for(CUDA):
        assert not tvm.transform.PassContext.current().config[cuda_graphs.OPTION]
    with cuda_graphs.asked_for(LLVM):
        assert cuda_graphs.OPTION not in tvm.transform.PassContext.current().config


@pytest.mark.gpu
def test_a_captured_network_on_gpu():
    network, x, module = chain()
    arch = f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    model = runtime.compile(module, tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm"))
    for factor in (1, 2, 3):
        found = model((factor * x).cuda())
        for mine, of_torch in zip(found.values(), network(factor * x)):
            torch.testing.assert_close(mine.cpu(), of_torch)
    assert "as a CUDA graph" in repr(model)
