"""The NHWC convolution by cuDNN: when it is chosen, what compiled code asks of it, its results on a GPU."""

import ctypes
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.ops.convolutions import ACTIVATED, BIG, CASES, CLIP, LEAKY, Case, QuantizedCase, options
from tests.ops.cudnn_oracle import TYPES, oracle, prefer_cudnn  # noqa: F401  (a fixture)
from tests.ops.test_conv2d_nhwc import assert_close, check_on_gpu, function_module
from topi_ext.conv2d_nhwc import cudnn, op, reference
from topi_ext.conv2d_nhwc.problem import Problem
from topi_ext.cudnn import session as cudnn_session
from tvm_passes import runtime

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TARGET = "cuda -arch=sm_{arch} -libs=" + cudnn_session.LIBRARY
GPU_TARGET = f"cuda -libs={cudnn_session.LIBRARY}"
# Of each kind one, where cuDNN is the better one.
WIDE = [
    Case((9, 18), 256, 256, bias=None, **options()),
    Case((9, 18), 160, 136, batch=2, bias="float16", **options(activation=LEAKY)),
    Case((9, 18), 256, 256, dtype="bfloat16", residual=True, **options(final_activation="relu")),
    Case((9, 7), 320, 512, kernel=(1, 1), residual=True, **options(padding=0, activation="relu")),
    Case((12, 12), 512, 512, kernel=(2, 3), **options(padding=(1, 2), strides=(1, 2), activation=CLIP)),
    Case((15, 14), 256, 264, **options(padding=2, dilation=2, activation="prelu")),
    Case((16, 18), 256, 256, **options(padding=(0, 0, 1, 1), strides=2)),
    Case((16, 18), 128, 128, **options(strides=2)),
    Case((16, 18), 512, 64, kernel=(1, 1), **options(padding=0)),
]
WIDE_INT8 = [
    QuantizedCase((9, 18), 256, 256, **options(activation="relu")),
    QuantizedCase((9, 18), 64, 48, bias=None, out_dtype="float16", **options(activation=LEAKY, strides=2)),
    QuantizedCase(
        (9, 7), 320, 512, kernel=(1, 1), residual=True, **options(padding=0, final_activation="relu")
    ),
    QuantizedCase(
        (9, 7), 16, 16, residual=True, added="float16", out_dtype="float32", **options(activation="silu")
    ),
    QuantizedCase((16, 18), 32, 64, **options(padding=(0, 0, 1, 1), strides=2, activation="prelu")),
]
WIDE_GROUPED = [
    Case((9, 18), 128, 128, **options(groups=2, activation="relu")),
    Case((9, 18), 64, 128, residual=True, **options(groups=4, strides=2, final_activation="relu")),
    QuantizedCase((9, 18), 64, 64, **options(groups=2, activation="relu")),
]
by_name = {"ids": str}


def target(arch=90, libs=True):
    text = TARGET if libs else TARGET.split(" -libs")[0]
    return tvm.target.Target(text.format(arch=arch), host="llvm")


# --- which one is chosen


@pytest.mark.parametrize("case", [replace(case, size=(200, 336)) for case in WIDE], **by_name)
def test_wide_convolutions_go_to_cudnn(case):
    assert chosen(case) == "cudnn"
    assert chosen(case, libs=False) == "cuda"


@pytest.mark.parametrize(
    "case",
    [
        Case((720, 1280), 64, 64, **options(activation=LEAKY)),  # few channels
        Case((720, 1280), 3, 64, **options(activation="prelu")),
        Case((80, 80), 64, 64, **options()),
        Case((160, 160), 96, 192, **options()),
        Case((399, 667), 64, 64, **options(strides=2)),
        Case((160, 160), 128, 128, kernel=(1, 1), **options(padding=0)),
        # few filters
        Case((80, 80), 128, 64, **options()),
        Case((180, 320), 160, 32, **options(activation=LEAKY)),
        Case((180, 320), 192, 64, **options()),
        Case((200, 336), 256, 16, **options()),
        # SiLU, which takes cuDNN long
        Case((40, 40), 384, 256, kernel=(1, 1), **options(padding=0, activation="silu")),
        Case((200, 336), 64, 256, kernel=(1, 1), residual=True, **options(padding=0)),
        # many results, and several teams that write them
        Case((200, 336), 64, 64, **options()),
        Case((200, 336), 256, 64, kernel=(1, 1), **options(padding=0)),
        Case((100, 168), 128, 512, kernel=(1, 1), residual=True, **options(padding=0)),
        Case((50, 84), 256, 1024, kernel=(1, 1), batch=8, residual=True, **options(padding=0)),
        Case((200, 336), 256, 256, **options(block_size=2)),  # shuffled
        Case((200, 336), 250, 256, **options()),  # channels that cuDNN does not take
        Case((200, 336), 256, 250, **options()),
        Case((20, 20), 256, 64, **options()),  # small images
        Case((25, 42), 256, 40, **options()),
        Case((80, 80), 64, 64, **options(strides=2)),
        Case((20, 20), 64, 64, kernel=(1, 1), **options(padding=0)),
        *WIDE_GROUPED,
    ],
    **by_name,
)
def test_others_have_our_kernel(case):
    assert chosen(case) == "cuda"


@pytest.mark.parametrize(
    "case",
    [
        Case((40, 40), 256, 256, **options()),
        Case((80, 80), 192, 64, **options()),  # too few results
        Case((28, 28), 128, 128, batch=32, **options()),  # one team, whose many results nothing hides
        Case((40, 40), 384, 256, kernel=(1, 1), **options(padding=0)),
        Case((160, 160), 128, 128, **options(strides=2)),
        Case((200, 336), 256, 512, kernel=(1, 1), **options(padding=0, strides=2)),
        Case(
            (15, 20), 256, 256, kernel=(1, 1), **options(padding=0)
        ),  # one tap loads more than it multiplies
        Case((50, 84), 256, 1024, kernel=(1, 1), residual=True, **options(padding=0)),  # one team
    ],
    **by_name,
)
def test_cudnn_keeps(case):
    assert chosen(case) == "cudnn"


def test_teams_are_many_enough_where_wgmma_is():
    case = Case((100, 168), 128, 512, kernel=(1, 1), residual=True, **options(padding=0))
    assert chosen(case) == "cuda" and chosen(case, arch=80) == "cudnn"


def test_other_targets_have_their_kernel(small_by_cudnn):
    problem = WIDE[0].problem()
    assert op.kernels_for(problem, tvm.target.Target("llvm")).__name__.endswith(".cpu")
    assert chosen(WIDE[0], arch=70) == "cuda"  # which says what is missing
    assert chosen(WIDE[2], arch=75) == "cuda"
    assert chosen(WIDE[2], arch=80) == "cudnn"


def chosen(case, **of_target):
    return op.kernels_for(case.problem(), target(**of_target)).__name__.split(".")[-1]


def test_a_missing_package_is_named(monkeypatch, small_by_cudnn):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(tvm.TVMError, match=r'missing: pip install "tvm-vision-passes\[cudnn\]"'):
        build(WIDE[0])


# --- what compiled code asks for


@pytest.mark.parametrize("case", CASES, **by_name)
def test_the_problem_as_text(case):
    problem = case.problem()
    assert Problem.from_json(problem.to_json()) == problem


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize("case", [case for case in WIDE if case.dtype == "float16"], **by_name)
def test_compiled_code_asks_for_it(emulated_cuda, oracle, small_by_cudnn, case, executor):  # noqa: F811
    emulated_cuda.target = target()
    arrays = case.arrays()
    (output,) = emulated_cuda.run_relay(case.function(arrays), *arrays.values(), executor=executor)
    assert oracle == [case.problem()]
    assert_close(output, case.expected(arrays), case.dtype)


def test_compiled_code_sets_the_device_first(oracle, small_by_cudnn):  # noqa: F811
    (case,) = [case for case in WIDE if case.dtype == "bfloat16"]
    source = build(case).lib.get_source("ll")
    assert "__tvm_set_device" in source and cudnn.OPERATOR.packed_function in source


# --- the graph


class GraphInNumpy:
    """Computes what is added to it, with tensors in the layout that they are said to have."""

    def __init__(self, arrays, numbers=()):
        self.arrays, self.numbers, self.tensors = arrays, list(numbers), []

    def tensor(self, dim, stride, data_type, name=None, is_pass_by_value=False):
        if is_pass_by_value:
            value = np.full(dim, np.float32(self.numbers.pop(0)), "float64")
            return self._new(value).set_data_type(data_type)
        flat = np.ascontiguousarray(self.arrays[name], "float64").reshape(-1)
        value = np.lib.stride_tricks.as_strided(flat, dim, [8 * step for step in stride])
        return self._new(value).set_data_type(data_type)

    def conv_fprop(
        self, image, weight, pre_padding, post_padding, stride, dilation, compute_data_type="float32"
    ):
        assert (image.told["data_type"] == "int8") == (compute_data_type == "int32")
        data, weight = (tensor.value.transpose(0, 2, 3, 1) for tensor in (image, weight))
        geometry = {"padding": [*pre_padding, *post_padding], "strides": stride, "dilation": dilation}
        groups = data.shape[3] // weight.shape[3]
        result = reference.conv2d_nhwc(data, weight, **geometry, groups=groups, rounded=False)
        return self._new(result.transpose(0, 3, 1, 2))

    def relu(self, x, lower_clip=0.0, upper_clip=np.inf):
        return self._new(np.clip(x.value, lower_clip, upper_clip))

    def leaky_relu(self, x, negative_slope):
        return self._new(np.where(x.value > 0, x.value, x.value * negative_slope))

    def sigmoid(self, x):
        return self._new(1 / (1 + np.exp(-x.value)))

    def neg(self, x):
        return self._new(-x.value)

    def add(self, a, b):
        return self._new(a.value + b.value)

    def sub(self, a, b):
        return self._new(a.value - b.value)

    def mul(self, a, b):
        return self._new(a.value * b.value)

    def _new(self, value):
        self.tensors.append(TensorInNumpy(value))
        return self.tensors[-1]


class TensorInNumpy:
    """Keeps what it is told: `set_dim(x)` makes `told["dim"]`."""

    def __init__(self, value):
        self.value, self.told = value, {}

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda given: self.told.update({name[len("set_") :]: given}) or self


@pytest.mark.parametrize(
    "case",
    [case for case in [*WIDE, *CASES, *WIDE_INT8, *WIDE_GROUPED] if "block_size" not in case.options],
    **by_name,
)
def test_the_graph_is_the_operator(case):
    arrays, numbers = case.arrays(), cudnn.numbers(case.problem()).values()
    count = len(numbers)
    library = SimpleNamespace(data_type=TYPES, pygraph=lambda **_given: GraphInNumpy(arrays, numbers))
    tensors = cudnn.build_graph(library, case.problem(), None).tensors
    (y,) = [tensor for tensor in tensors if tensor.told.get("output")]
    expected, out_dtype = case.expected(arrays), case.problem().out_dtype
    np.testing.assert_allclose(y.value.transpose(0, 2, 3, 1), expected, rtol=1e-6, atol=1e-6)
    batch, height, width, filters = expected.shape
    assert y.told["dim"] == [batch, filters, height, width]
    assert y.told["stride"] == [height * width * filters, 1, width * filters, filters]
    numbered = sorted((tensor for tensor in tensors if "uid" in tensor.told), key=lambda t: t.told["uid"])
    names = [name for name in op.ARGUMENTS if name in arrays]
    assert [tensor.told["uid"] for tensor in numbered] == list(range(1, len(names) + 2 + count))
    assert [tensor.told["data_type"] for tensor in numbered] == [
        *(case.types()[name] for name in names),
        out_dtype,
        *["float32"] * count,
    ]


# --- on a GPU


@pytest.mark.gpu
def test_tuned_on_gpu(cudnn_alone, own_cache):
    """The fastest plan is kept, and computes the same."""
    torch = pytest.importorskip("torch")
    case = WIDE[0]
    model = runtime.Model(build(case, GPU_TARGET), "cuda")
    tensors = list(case.tensors(torch).values())
    before = model(*tensors).clone()
    with cudnn_session.recorded() as calls:
        runtime.Model(model.lib, "cuda", cuda_graph=False)(*tensors)
    assert [call.has_timed_plan(model.device) for call in calls] == [False]
    runtime.tune(model, *tensors)
    assert calls[0].has_timed_plan(model.device)
    after = runtime.Model(build(case, GPU_TARGET), "cuda")(*tensors)
    assert_close(after.float().cpu().numpy(), before.float().cpu().numpy(), case.dtype)


@pytest.fixture
def cudnn_alone(monkeypatch):
    """cuDNN for all that it can do at all."""
    try:
        cudnn_session.import_cudnn()
    except ImportError as reason:
        pytest.skip(str(reason))
    prefer_cudnn(monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [case for case in [*WIDE, *CASES, *ACTIVATED, *BIG] if cudnn.is_capable(case.problem())],
    **by_name,
)
def test_gpu(cudnn_alone, case):
    check_on_gpu(case, GPU_TARGET)


@pytest.mark.gpu
def test_gpu_in_a_cuda_graph(cudnn_alone):
    """On a stream of its own: a call after the first neither allocates nor waits, which capturing forbids."""
    torch = pytest.importorskip("torch")
    case = WIDE[1]
    tensors = case.tensors(torch)
    module = graph_executor.GraphModule(build(case, GPU_TARGET)["default"](tvm.cuda()))
    for name, tensor in tensors.items():
        module.set_input(name, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)))
    module.run()
    tvm.cuda().sync()
    output = torch.utils.dlpack.from_dlpack(module.get_output(0).to_dlpack())
    expected = output.clone()
    output.zero_()
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured, stream=stream):
            tvm.cuda().set_raw_stream(ctypes.c_void_p(stream.cuda_stream))
            module.run()
    finally:
        tvm.cuda().set_raw_stream(ctypes.c_void_p(None))
    torch.cuda.synchronize()
    assert not output.any()  # captured, not run
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, expected)


# --- helpers


def build(case, for_target=None):
    function = relay.Function(*case.call(case.shapes()))
    return relay.build(function_module(function), for_target or target())
