"""The functions of torch tensors as operators of torch: in its compilers and graphs, and their cost."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

import topi_ext.torch as ops
from tests.ops.torch_calls import torch_calls
from topi_ext.torch import _call
from topi_ext.torch._kernels import Arguments

import tvm

CALLS = torch_calls()
OPERATORS = {name: call for name, call in CALLS.items() if call.name != "nms"}  # which is a batched_nms
each_call = pytest.mark.parametrize("name", CALLS)


class Module(torch.nn.Module):
    """A call of given tensors and options."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *arguments):
        return self.call.function(*arguments, **self.call.options)


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def assert_same(found, expected):
    """Identical: the same kernel made both."""
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    for one, other in zip(as_tuple(found), as_tuple(expected)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def calls_of(graph):
    return [str(node.target) for node in graph.nodes if str(node.target).startswith("topi_ext.")]


def operator_of(call):
    return "topi_ext.batched_nms" if call.name == "nms" else f"topi_ext.{call.name}"


def test_each_function_has_a_call():
    functions = {name for name in ops.__all__ if name[0].islower()}
    assert {call.name for call in CALLS.values()} == functions


# --- compilers, exporters, tracers


@pytest.mark.parametrize("dynamic", [False, True])
@each_call
def test_compiled_as_a_whole(name, dynamic):
    call, graphs = CALLS[name], []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(Module(call), fullgraph=True, dynamic=dynamic, backend=backend)
    assert_same(compiled(*call.arguments), call())
    assert len(calls_of(graphs[-1].graph)) == 1  # newer torch tries first with floats that may be any


def test_augmentation_is_compiled():
    warp = ops.AffineWarp((9, 11), border_value=114)
    images, matrices = CALLS["warp_affine"].arguments[:2]
    boxes, masks = torch.tensor([[[1.0, 2, 5, 7]]] * 2), images[:, 0].contiguous()
    expected = warp(images, matrices, boxes, masks)
    torch._dynamo.reset()
    found = torch.compile(warp, fullgraph=True, backend="aot_eager")(images, matrices, boxes, masks)
    assert_same(found, expected)


@each_call
def test_exported_as_one_operator(name):
    call = CALLS[name]
    program = torch.export.export(Module(call), call.arguments)
    (target,) = calls_of(program.graph)
    assert target.rpartition(".")[0] == operator_of(call)
    assert_same(program.module()(*call.arguments), call())


def test_exported_for_any_number_of_boxes():
    call, n = CALLS["batched_nms, tensors"], torch.export.Dim("n", min=2, max=5000)
    boxes, scores, class_ids, threshold = call.arguments
    program = torch.export.export(
        Module(call), call.arguments, dynamic_shapes={"arguments": ({0: n}, {0: n}, {0: n}, {})}
    )
    fewer = boxes[:31].clone(), scores[:31].clone(), class_ids[:31].clone(), threshold
    assert_same(program.module()(*fewer), ops.batched_nms(*fewer))


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_checks_the_operator(name):
    call = OPERATORS[name]
    packet = getattr(torch.ops.topi_ext, call.name)
    overloads = {"batched_nms, tensors": "tensor", "batched_nms, a number and a tensor": "score"}
    overloads["batched_nms, a tensor and a number"] = "iou"
    operator = getattr(packet, overloads.get(name, "default"))
    torch.library.opcheck(operator, call.arguments, call.options)


@each_call
def test_results_without_data(name):
    """Fake tensors give fake results, and what a call leaves behind is not fake."""
    call = CALLS[name]
    with FakeTensorMode() as mode:
        found = call.map(mode.from_tensor)()
    for one, other in zip(as_tuple(found), as_tuple(call())):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def test_tensors_of_other_classes():
    """Those that have memory give it; those that have none are refused."""
    data = torch.rand(4, 12)
    assert_same(ops.layer_norm(data.as_subclass(Named)), ops.layer_norm(data))
    with pytest.raises(TypeError, match="layer_norm: a FakeTensor has no memory"):
        ops.layer_norm(FakeTensorMode().from_tensor(data))


class Named(torch.Tensor):
    """A tensor with another name."""


def test_traced_as_one_operator():
    call = CALLS["layer_norm"]
    traced = torch.jit.trace(call.function, call.arguments)
    assert [node.kind() for node in traced.graph.nodes()].count("topi_ext::layer_norm") == 1
    data, *affine = call.arguments
    assert_same(traced(data.flip(0), *affine), ops.layer_norm(data.flip(0), *affine))


def test_no_gradient_is_said_by_the_operator_too():
    call = CALLS["layer_norm"]
    data, *affine = call.arguments
    data = data.clone().requires_grad_()
    for run in (
        torch.ops.topi_ext.layer_norm,
        torch.compile(ops.layer_norm, fullgraph=True, backend="aot_eager"),
    ):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=r"layer_norm has no gradient: give data.detach\(\)"):
            run(data, *affine)
        with torch.no_grad():
            assert_same(run(data, *affine), call())


def test_parameters_without_gradients():
    data, *affine = CALLS["layer_norm"].arguments
    with torch.no_grad():
        assert_same(ops.layer_norm(data, *map(torch.nn.Parameter, affine)), ops.layer_norm(data, *affine))


def test_each_item_of_a_vmap():
    """A tensor there has an axis more than it shows, which a kernel must not ignore."""
    data = torch.rand(3, 4, 12)
    expected = torch.stack([ops.layer_norm(item) for item in data])
    assert_same(torch.vmap(ops.layer_norm)(data), expected)


# --- what a call costs

MOST_CALLS = 100  # of functions, Python's and C's, for one of ours


class Counted:
    """The names of the functions that run while it is entered, Python's and C's."""

    def __init__(self):
        self.names = []

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, argument):
        if event in ("call", "c_call"):
            self.names.append(frame.f_code.co_name if event == "call" else argument.__name__)


@each_call
def test_a_second_call_decides_nothing(name):
    call = CALLS[name]
    results = as_tuple(call())
    with Counted() as counted:
        call()
    assert "_plain" in counted.names
    assert not {"_checked", "_new_path", "_new", "types", "clone"} & {*counted.names}
    assert counted.names.count("empty") <= len(results) + 1  # all workspaces are one tensor
    assert not [name for name in counted.names if "dlpack" in name]
    assert len(counted.names) <= MOST_CALLS


@pytest.fixture
def on_cuda(monkeypatch):
    """A path of a CUDA device, and the streams that TVM had whenever its kernel was called."""
    seen = []
    arguments = SimpleNamespace(call=lambda _addresses: seen.append(_call._stream_of_tvm().value or 0))
    path = object.__new__(_call._Path)
    path._device, path._on_tvm, path._arguments = torch.device("cuda", 0), tvm.cuda(0), arguments
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return path, seen


@pytest.mark.parametrize("before", [0, 0x7F00_1234_5678])
@pytest.mark.parametrize("stream", [0, 0x7F00_8765_4321])
def test_tvm_gets_the_current_stream_and_its_own_back(on_cuda, monkeypatch, stream, before):
    path, seen = on_cuda
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: stream, raising=False)
    tvm.cuda(0).set_raw_stream(ctypes.c_void_p(before))
    try:
        set_to = _note_streams(path, monkeypatch)
        path._call_on_current_stream([])
        assert seen == [stream]
        assert (_call._stream_of_tvm().value or 0) == before
        assert set_to == ([] if stream == before else [stream, before])
    finally:
        tvm.cuda(0).set_raw_stream(ctypes.c_void_p(0))


def _note_streams(path, monkeypatch):
    set_to, on_tvm = [], path._on_tvm

    def set_raw_stream(stream):
        set_to.append(stream.value or 0)
        on_tvm.set_raw_stream(stream)

    path._on_tvm = SimpleNamespace(set_raw_stream=set_raw_stream)
    return set_to


def test_tvm_gets_its_stream_back_after_an_error(on_cuda, monkeypatch):
    path, _ = on_cuda
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0x7F00_8765_4321, raising=False)

    def fail(_addresses):
        raise tvm.TVMError("a kernel failed")

    path._arguments = SimpleNamespace(call=fail)
    with pytest.raises(tvm.TVMError):
        path._call_on_current_stream([])
    assert not _call._stream_of_tvm().value


def test_an_error_of_a_kernel_is_raised(monkeypatch):
    monkeypatch.setattr(_call, "_paths", {})
    ops.layer_norm(torch.rand(3, 12))
    (path,) = _call._paths.values()
    with pytest.raises(tvm.TVMError, match="ndim is expected to equal 2"):
        Arguments(path._arguments._function, [((3, 12, 1), "float32")] * 2, tvm.cpu()).call([0, 0])


def test_calls_at_once_have_arguments_of_their_own():
    """In threads, each with its tensors; the arguments of calls that ended are used again."""
    call = CALLS["layer_norm"]
    data = [torch.rand(4, 5, 12) for _ in range(8)]
    expected = [ops.layer_norm(each, *call.arguments[1:]) for each in data]

    def many(number):
        return [ops.layer_norm(data[number], *call.arguments[1:]) for _ in range(200)]

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(many, range(8))):
            assert all(torch.equal(each, expected[number]) for each in found)


def test_paths_are_forgotten(monkeypatch):
    monkeypatch.setattr(_call, "_paths", {})
    monkeypatch.setattr(_call, "MAX_PATHS", 3)
    for rows in (1, 2, 3, 4, 5, 1):
        data = torch.rand(rows, 12)
        torch.testing.assert_close(
            ops.layer_norm(data), torch.nn.functional.layer_norm(data, (12,)), rtol=1e-5, atol=1e-5
        )
    assert len(_call._paths) <= 3


# --- on a GPU


@pytest.mark.gpu
@each_call
def test_in_a_cuda_graph(name):
    """It replays on new data, on the stream of the capture, without the host."""
    call = CALLS[name].map(torch.Tensor.cuda)
    call()  # which compiles and loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    call.map(lambda tensor: tensor.copy_(tensor.flip(0)) if tensor.dim() else tensor)
    for result in as_tuple(found):
        result.fill_(1)
    graph.replay()
    assert_same(found, call())


@pytest.mark.gpu
def test_a_threshold_that_only_a_graph_has():
    boxes, scores, class_ids, _ = CALLS["batched_nms"].map(torch.Tensor.cuda).arguments
    ops.batched_nms(boxes, scores, class_ids, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ops.batched_nms(boxes, scores, class_ids, 0.4375)
    graph.replay()
    assert_same(found, ops.batched_nms(boxes, scores, class_ids, 0.4375))


@pytest.mark.gpu
@each_call
def test_compiled_on_a_gpu(name):
    call = CALLS[name].map(torch.Tensor.cuda)
    torch._dynamo.reset()
    compiled = torch.compile(Module(call), fullgraph=True)  # by inductor, which plans the memory
    assert_same(compiled(*call.arguments), call())
