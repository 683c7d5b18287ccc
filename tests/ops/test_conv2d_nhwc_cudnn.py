"""The NHWC convolution by cuDNN: when it is chosen, what compiled code asks of it, its results on a GPU."""

import ctypes
import importlib.util

import pytest

from tests.ops.convolutions import BIG, CASES, CLIP, LEAKY, Case, options
from tests.ops.test_conv2d_nhwc import assert_close, check_on_gpu, function_module
from topi_ext.conv2d_nhwc import cudnn, op, reference
from topi_ext.conv2d_nhwc.problem import ACTIVATIONS, Problem

import tvm
from tvm import relay

TARGET = "cuda -arch=sm_{arch} -libs=" + cudnn.LIBRARY
# Of each kind one, where cuDNN is the better one.
WIDE = [
    Case((9, 18), 256, 256, bias=None, **options()),
    Case((9, 18), 128, 136, batch=2, bias="float16", **options(activation=LEAKY)),
    Case((9, 18), 256, 256, dtype="bfloat16", residual=True, **options(final_activation="relu")),
    Case((9, 7), 320, 512, kernel=(1, 1), residual=True, **options(padding=0, activation="relu")),
    Case((12, 12), 512, 512, kernel=(2, 3), **options(padding=(1, 2), strides=(1, 2), activation=CLIP)),
    Case((15, 14), 256, 264, **options(padding=2, dilation=2, activation="prelu")),
    Case((16, 18), 256, 256, **options(padding=(0, 0, 1, 1), strides=2)),
]
by_name = {"ids": str}


def target(arch=90, libs=True):
    text = TARGET if libs else TARGET.split(" -libs")[0]
    return tvm.target.Target(text.format(arch=arch), host="llvm")


# --- which one is chosen


@pytest.mark.parametrize("case", WIDE, **by_name)
def test_wide_convolutions_go_to_cudnn(case):
    assert chosen(case) == "cudnn"
    assert chosen(case, libs=False) == "cuda"


@pytest.mark.parametrize(
    "case",
    [
        Case((720, 1280), 64, 64, **options(activation=LEAKY)),  # few channels
        Case((720, 1280), 3, 64, **options(activation="prelu")),
        Case((200, 336), 256, 64, kernel=(1, 1), **options(padding=0)),
        Case((200, 336), 256, 256, **options(block_size=2)),  # shuffled
        Case((200, 336), 250, 256, **options()),  # channels that cuDNN does not take
        Case((200, 336), 256, 250, **options()),
    ],
    **by_name,
)
def test_others_have_our_kernel(case):
    assert chosen(case) == "cuda"


def test_other_targets_have_their_kernel():
    problem = WIDE[0].problem()
    assert op.kernels_for(problem, tvm.target.Target("llvm")).__name__.endswith(".cpu")
    assert chosen(WIDE[0], arch=70) == "cuda"  # which says what it lacks


def chosen(case, **of_target):
    return op.kernels_for(case.problem(), target(**of_target)).__name__.split(".")[-1]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(tvm.TVMError, match=r'missing: pip install "tvm-vision-passes\[cudnn\]"'):
        build(WIDE[0])


# --- what compiled code asks for


@pytest.mark.parametrize("case", CASES, **by_name)
def test_the_problem_as_text(case):
    problem = case.problem()
    assert Problem.from_json(problem.to_json()) == problem


@pytest.fixture
def oracle(monkeypatch):
    """The packed function answers as the reference does; the problems that it was asked, in order."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    asked = []

    def answer(text, *tensors):
        problem = Problem.from_json(text)
        asked.append(problem)
        given = {"bias": problem.bias, "residual": problem.residual, "slope": problem.slope}
        names = [name for name in op.ARGUMENTS if given.get(name, True)]
        *inputs, result = tensors
        arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs)}
        result.copyfrom(reference.conv2d_nhwc(**arrays, **as_options(problem)))

    run = tvm.get_global_func(cudnn.PACKED_FUNCTION)
    tvm.register_func(cudnn.PACKED_FUNCTION, answer, override=True)
    yield asked
    tvm.register_func(cudnn.PACKED_FUNCTION, run, override=True)


def as_options(problem):
    """What the reference is to be told beside the arrays."""
    written = {}
    for name in ("activation", "final_activation"):
        activation = getattr(problem, name)
        constants = (activation.low, activation.high)[: ACTIVATIONS[activation.name]]
        written[name] = (activation.name, *constants)
    return {
        "strides": problem.strides,
        "padding": problem.padding,
        "dilation": problem.dilation,
        **written,
    }


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize("case", [case for case in WIDE if case.dtype == "float16"], **by_name)
def test_compiled_code_asks_for_it(emulated_cuda, oracle, case, executor):
    emulated_cuda.target = target()
    arrays = case.arrays()
    (output,) = emulated_cuda.run_relay(case.function(arrays), *arrays.values(), executor=executor)
    assert oracle == [case.problem()]
    assert_close(output, case.expected(arrays), case.dtype)


def test_compiled_code_sets_the_device_first(oracle):
    (case,) = [case for case in WIDE if case.dtype == "bfloat16"]
    source = build(case).lib.get_source("ll")
    assert "__tvm_set_device" in source and cudnn.PACKED_FUNCTION in source


# --- the call


class FakeCudnn:
    """Counts what a call asks of the library."""

    def __init__(self):
        self.calls = []

    def set_stream(self, _handle, stream):
        self.calls.append(("set_stream", stream))

    def execute(self, addresses, workspace, _handle):
        self.calls.append(("execute", addresses, workspace))


def test_a_call_does_no_more_than_it_must(monkeypatch):
    """One plan a problem, the stream told when it changes, pointers by number."""
    fake, built, streams = FakeCudnn(), [], map(ctypes.c_void_p, (None, 7, 7))
    workspace = tvm.nd.empty((1,), "uint8")
    session = cudnn._Session.__new__(cudnn._Session)
    vars(session).update(cudnn=fake, handle=None, stream=0, plans={}, current_stream=lambda: next(streams))
    monkeypatch.setattr(session, "_build", lambda problem: built.append(problem) or (fake, workspace))
    problem = WIDE[0].problem()
    for _ in range(3):
        session.run(problem.to_json(), [100, 200, 300])
    execute = ("execute", {1: 100, 2: 200, 3: 300}, cudnn._address(workspace))
    assert built == [problem]
    assert fake.calls == [execute, ("set_stream", 7), execute, execute]


# --- on a GPU


@pytest.fixture
def cudnn_alone(monkeypatch):
    """cuDNN for all that it can do at all."""
    pytest.importorskip("cudnn")
    monkeypatch.setattr(cudnn, "is_better", lambda problem, _target: cudnn.is_capable(problem))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [case for case in [*WIDE, *CASES, *BIG] if cudnn.is_capable(case.problem())], **by_name
)
def test_gpu(cudnn_alone, case):
    check_on_gpu(case, f"cuda -libs={cudnn.LIBRARY}")


# --- helpers


def build(case):
    function = relay.Function(*case.call(case.shapes()))
    return relay.build(function_module(function), target())
