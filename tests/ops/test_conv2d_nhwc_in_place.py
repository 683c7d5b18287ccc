"""The convolution that reads and writes some channels: every kernel computes the reference, and refusals."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tests.helpers import module, numbers, ops, run
from tests.ops.convolutions import LEAKY
from tests.ops.cudnn_oracle import TYPES, oracle, prefer_cudnn  # noqa: F401  (a fixture)
from tests.ops.test_conv2d_nhwc import assert_close
from tests.ops.test_conv2d_nhwc_cudnn import GPU_TARGET, GraphInNumpy, cudnn_alone, target  # noqa: F401
from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.problem import Part, Problem
from topi_ext.conv2d_nhwc_in_place import conv2d_nhwc_in_place, reference
from topi_ext.conv2d_nhwc_in_place.op import NAME, access_of, problem_of

import tvm
from tvm import relay
from tvm.contrib import graph_executor

SIZE = 9, 18


@dataclass(frozen=True)
class Example:
    """A convolution of some channels: which ones, and how many more each tensor has behind them."""

    channels: int
    filters: int
    data_from: int = 0
    residual_from: int = 0
    result_from: int = 0
    behind: int = 8
    batch: int = 1
    inputs: tuple = ("destination",)  # those of bias, residual, slope and destination that are given
    options: dict = field(default_factory=dict)

    def __str__(self):
        froms = f"{self.data_from}+{self.residual_from}+{self.result_from}"
        return f"{self.channels}to{self.filters},{froms},{'+'.join(self.inputs)}"

    def arrays(self):
        kernel = self.options.get("kernel", 3)
        result = self.batch, *SIZE, self.result_from + self.filters + self.behind
        shapes = {
            "data": (self.batch, *SIZE, self.data_from + self.channels + self.behind),
            "weight": (self.filters, kernel, kernel, self.channels),
            "bias": (self.filters,),
            "residual": (*result[:3], self.residual_from + self.filters + self.behind),
            "slope": (self.filters,),
            "destination": result,
        }
        names = [name for name in shapes if name in ("data", "weight", *self.inputs)]
        arrays = {name: numbers(*shapes[name], seed=len(name)) for name in names}
        arrays["weight"] /= (self.channels * kernel**2) ** 0.5
        return {name: array.astype("float16") for name, array in arrays.items()}

    def given(self):
        """What is given beside the tensors."""
        return {
            "data_from": self.data_from,
            "residual_from": self.residual_from,
            "result_from": self.result_from,
            "result_channels": self.result_from + self.filters + self.behind,
            "padding": 1,
            **self.options,
        }

    def module(self):
        arrays = self.arrays()
        variables = {
            name: relay.var(name, shape=array.shape, dtype="float16") for name, array in arrays.items()
        }
        return module(*variables.values(), conv2d_nhwc_in_place(**variables, **self.given()))

    def check(self, result):
        """Against the reference, but for channels that are not specified."""
        exact = reference.conv2d_nhwc_in_place(**self.arrays(), **self.given(), rounded=False)
        if "destination" not in self.inputs:
            written = slice(self.result_from, self.result_from + self.filters)
            result, exact = result[..., written], exact[..., written]
        assert_close(result, exact, "float16")


EXAMPLES = [
    Example(16, 8, data_from=8),
    Example(24, 16, result_from=24),
    Example(16, 16, data_from=16, residual_from=8, result_from=40, inputs=("residual", "destination")),
    Example(16, 16, result_from=8, inputs=("residual",)),
    Example(64, 32, inputs=("bias", "residual", "destination"), options={"final_activation": "relu"}),
    Example(32, 64, 8, 16, 24, batch=2, inputs=("bias", "slope"), options={"activation": "prelu"}),
    Example(16, 64, data_from=32, inputs=("bias", "destination"), options={"activation": LEAKY}),
    Example(16, 8, behind=0, data_from=8, result_from=16),
    Example(256, 128, 64, 8, 128, inputs=("residual", "destination")),
]
UNALIGNED = [
    Example(16, 8, data_from=4),
    Example(16, 8, result_from=3, behind=1, inputs=()),
    Example(5, 6, 1, 2, 3, inputs=("residual", "destination")),
]
by_name = {"ids": str}


@pytest.mark.parametrize("example", [*EXAMPLES, *UNALIGNED], **by_name)
def test_on_a_cpu(example):
    (result,) = run(example.module(), *example.arrays().values())
    example.check(result)


@pytest.mark.parametrize("example", [*EXAMPLES[:-1], UNALIGNED[0]], **by_name)
def test_by_the_own_kernel(emulated_cuda, example):
    (result,) = emulated_cuda.run_relay(example.module(), *example.arrays().values())
    example.check(result)


@pytest.mark.parametrize("arch", [80, 90])
def test_steps_of_the_own_kernel(emulated_cuda, arch):
    """Where weights do not stay in shared memory."""
    emulated_cuda.set_arch(arch)
    (result,) = emulated_cuda.run_relay(EXAMPLES[-1].module(), *EXAMPLES[-1].arrays().values())
    EXAMPLES[-1].check(result)


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize("example", EXAMPLES, **by_name)
def test_by_cudnn(emulated_cuda, oracle, monkeypatch, example, executor):  # noqa: F811
    prefer_cudnn(monkeypatch)
    emulated_cuda.target = target()
    (result,) = emulated_cuda.run_relay(example.module(), *example.arrays().values(), executor=executor)
    example.check(result)
    (asked,) = oracle
    assert asked == problem(example).from_channel_0()


@pytest.mark.parametrize("example", EXAMPLES, **by_name)
def test_the_graph_of_cudnn(example):
    arrays, of = example.arrays(), problem(example)
    arrays.pop("destination", None)
    froms = {"data": example.data_from, "residual": example.residual_from}
    begun = {name: array.reshape(-1)[froms.get(name, 0) :] for name, array in arrays.items()}
    library = SimpleNamespace(data_type=TYPES, pygraph=lambda **_given: GraphInNumpy(begun))
    tensors = cudnn.build_graph(library, of.from_channel_0(), None).tensors
    (y,) = [tensor for tensor in tensors if tensor.told.get("output")]
    exact = reference.conv2d_nhwc_in_place(**arrays, **example.given(), rounded=False)
    written = slice(example.result_from, example.result_from + example.filters)
    assert_close(y.value.transpose(0, 2, 3, 1), exact[..., written], "float16")
    (height, width), whole = SIZE, exact.shape[3]
    assert y.told["stride"] == [height * width * whole, 1, width * whole, whole]


def test_one_tensor_as_data_residual_and_destination(emulated_cuda):
    x, array = relay.var("x", shape=(1, *SIZE, 40), dtype="float16"), numbers(1, *SIZE, 40).astype("float16")
    weight = (numbers(16, 3, 3, 8) / 8).astype("float16")
    given = {"data_from": 32, "residual_from": 16, "result_from": 8, "result_channels": 40, "padding": 1}
    mod = module(x, conv2d_nhwc_in_place(x, relay.const(weight), None, x, x, **given))
    exact = reference.conv2d_nhwc_in_place(array, weight, None, array, array, **given, rounded=False)
    for (result,) in (run(mod, array), emulated_cuda.run_relay(mod, array)):
        assert_close(result, exact, "float16")


def test_the_other_channels_may_be_zeros():
    (result,) = run(EXAMPLES[3].module(), *EXAMPLES[3].arrays().values())
    assert not result[..., :8].any() and not result[..., 24:].any()


# --- the problem


def problem(example):
    call = relay.transform.InferType()(example.module())["main"].body
    return problem_of([argument.checked_type for argument in call.args], call.attrs)


@pytest.mark.parametrize("example", [*EXAMPLES, *UNALIGNED], **by_name)
def test_the_problem_as_text(example):
    assert Problem.from_json(problem(example).to_json()) == problem(example)


def test_parts():
    found = problem(EXAMPLES[2])
    assert (found.data_part, found.residual_part, found.result_part) == (
        Part(16, 40),
        Part(8, 32),
        Part(40, 64),
    )
    assert found.shape == (1, *SIZE, 64)


def test_all_channels_are_no_part():
    """So that plans of cuDNN, which are kept by the text, are those of conv2d_nhwc."""
    found = problem(Example(16, 8, behind=0, inputs=("residual", "destination")))
    assert found.data_part is found.residual_part is found.result_part is None
    assert "part" not in found.to_json()


def test_what_a_call_does_to_memory():
    call = relay.transform.InferType()(EXAMPLES[2].module())["main"].body
    assert access_of(call) == (range(40, 56), {0: range(16, 32), 3: range(8, 24)}, 6)


# --- what is refused


def types(
    data=(1, 6, 7, 16), residual=None, destination=None, weight=(8, 3, 3, 16), dtype="float16", **given
):
    shapes = {"data": data, "weight": weight, "residual": residual, "destination": destination}
    variables = {
        name: relay.var(name, shape=shape, dtype="float32" if name == given.get("odd") else dtype)
        for name, shape in shapes.items()
        if shape
    }
    given.pop("odd", None)
    return conv2d_nhwc_in_place(**variables, **{"padding": 1, "result_channels": 24, **given})


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"data_from": 8}, "data has 16 channels: 16 from 8 on are not in it"),
        ({"weight": (8, 3, 3, 24)}, "data has 16 channels: 24 from 0 on are not in it"),
        ({"residual": (1, 6, 7, 8), "residual_from": 1}, "residual has 8 channels: 8 from 1 on"),
        ({"residual": (1, 6, 5, 8)}, "residual must have the shape"),
        ({"result_from": 17}, "8 filters from channel 17 on do not fit into 24 result_channels"),
        ({"destination": (1, 6, 7, 16)}, r"destination must have the shape \(1, 6, 7, 24\) and type float16"),
        ({"destination": (1, 6, 7, 24), "odd": "destination"}, "not .* of float32"),
        ({"block_size": 2}, "block_size must be 1, not 2"),
        ({"groups": 2, "weight": (8, 3, 3, 8)}, "groups must be 1, not 2|as many channels as data"),
        ({"data": (relay.Any(), 6, 7, 16)}, "the batch and the size of images must be known"),
        ({"data": (1, 6, relay.Any(), 16)}, "the batch and the size of images must be known"),
        ({"data": (1, 6, 7)}, "data must have the shape"),
        ({"weight": (8, 3, 16)}, "weight must have the shape"),
        ({"data": (1, 2**14, 2**14, 16), "result_from": 16}, "too many"),
    ],
)
def test_refuses_types(given, reason):
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(types(**given)))


@pytest.mark.parametrize("name", ["data_from", "residual_from", "result_from", "result_channels"])
def test_refuses_negative_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must not be negative, but is -8"):
        types(**{name: -8})


def test_refuses_to_compile_without_legalize():
    with tvm.transform.PassContext(opt_level=0), pytest.raises(tvm.TVMError, match="at least opt_level 1"):
        relay.build(EXAMPLES[0].module(), "llvm")


def test_legalized_only_where_there_is_no_kernel():
    for mod, on_cuda in ((EXAMPLES[0].module(), True), (UNALIGNED[0].module(), False)):
        for machine, stays in (("cuda -arch=sm_80", on_cuda), ("llvm", False)):
            with tvm.target.Target(machine):
                legal = relay.transform.Legalize()(relay.transform.InferType()(mod))
            assert (NAME in ops(legal)) == stays


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("example", EXAMPLES, **by_name)
def test_gpu_by_cudnn(cudnn_alone, example):  # noqa: F811
    check_on_gpu(example, GPU_TARGET)


@pytest.mark.gpu
@pytest.mark.parametrize("example", [*EXAMPLES, *UNALIGNED], **by_name)
def test_gpu_by_the_own_kernel(example):
    check_on_gpu(example, "cuda")


def check_on_gpu(example, machine):
    arrays = example.arrays()
    graph = graph_executor.GraphModule(relay.build(example.module(), machine)["default"](tvm.cuda()))
    for name, array in arrays.items():
        graph.set_input(name, tvm.nd.array(array, tvm.cuda()))
    for _ in range(2):
        graph.run()
        example.check(graph.get_output(0).numpy())
