"""The fastest of cuDNN's plans: what is timed, by which processes, and what they say when they fail."""

import fcntl
import importlib.util
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

import topi_ext
from tests.helpers import module
from tests.ops.test_conv2d_nhwc_cudnn import TARGET
from tests.ops.test_cudnn import LIBRARY, PLANS, FakeGraph
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from topi_ext.bootstrap import user_cache
from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.problem import Problem
from topi_ext.cudnn import session
from topi_ext.cudnn.session import Call
from tvm_passes import runtime
from tvm_passes.runtime import cuda, tuning, tuning_worker

import tvm
from tvm import relay

SHAPE = (1, 4, 4, 256)
FASTEST = "second"  # of PLANS


class Graph(FakeGraph):
    """One that can be called; `last` is the plan that was called last."""

    last = None

    def __init__(self):
        super().__init__(PLANS)

    def validate(self):
        pass

    def build_operation_graph(self):
        pass

    def execute(self, _addresses, _workspace, _handle):
        Graph.last = self.selected


@pytest.fixture
def model(emulated_cuda, fake_cuda, small_by_cudnn, kernel_cache, monkeypatch):  # noqa: F811
    """Two different convolutions, one of them twice, by a cuDNN whose plans take the time that PLANS says."""
    library = SimpleNamespace(
        **LIBRARY, pygraph=lambda **_: Graph(), create_handle=object, set_stream=lambda *_: None
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(session, "import_cudnn", lambda: library)
    monkeypatch.setattr(cudnn.OPERATOR, "build_graph", lambda *_: Graph())
    fake_cuda.replay = lambda: time.sleep(PLANS[Graph.last][1] / 1e3)
    weights = [relay.const(np.ones((256, size, size, 256), "float16")) for size in (3, 1)]
    x = y = relay.var("x", shape=SHAPE, dtype="float16")
    for weight, padding in (weights[0], 1), (weights[1], 0), (weights[0], 1):
        y = topi_ext.conv2d_nhwc(y, weight, padding=padding)
    model = runtime.compile(module(x, y), TARGET.format(arch=80), device=emulated_cuda.device)
    model.mod = module(x, y)
    session.forget_plans()
    yield model
    session.forget_plans()


@pytest.fixture
def image(model):
    return tvm.nd.array(np.ones(SHAPE, "float16"), model.device)


@pytest.fixture
def said(monkeypatch, tmp_path):
    """Processes answer at once, without finding a plan; gives a list of what each of them was asked."""
    files = []

    def command(_device):
        files.append(tmp_path / f"{len(files)}.calls")
        files[-1].touch()
        return ["sh", "-c", f"while read -r call; do printf '%s\\n' \"$call\" >> {files[-1]}; echo; done"]

    monkeypatch.setattr(tuning, "_command", command)
    return lambda: [[*map(Call.from_json, file.read_text().splitlines())] for file in files]


def kernels(calls):
    return [Problem.from_json(call.text).kernel for call in calls]


# --- what is timed


def test_each_distinct_call_is_recorded_once(model, image):
    calls = tuning._calls_of(model, [image])
    assert kernels(calls) == [(3, 3), (1, 1)]
    assert calls[0].packed_function == cudnn.OPERATOR.packed_function
    assert calls[0].tensors == ((SHAPE, "float16"), ((256, 3, 3, 256), "float16"), (SHAPE, "float16"))
    assert [Call.from_json(call.to_json()) for call in calls] == calls
    with session.recorded() as none:
        pass
    model(image)
    assert none == []


def test_what_a_process_finds_is_what_models_use(model, image, tmp_path):
    calls = tuning._calls_of(model, [image])
    assert Graph.last == "first"
    session.forget_plans()  # the process has none
    for call in calls:
        assert not call.has_timed_plan(model.device)
        tuning_worker.find_plan(call, model.device)
        assert call.has_timed_plan(model.device)
    session.forget_plans()
    model(image)
    assert Graph.last == FASTEST
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".kernels", ".kernels", ".lock"]


def test_processes_take_turns_at_timing(model, image, fake_cuda, tmp_path):  # noqa: F811
    refused = []

    def replay():
        with (tmp_path / "timing.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(Graph.last)

    call, _ = tuning._calls_of(model, [image])
    session.forget_plans()
    fake_cuda.replay = replay
    tuning_worker.find_plan(call, model.device)
    assert set(refused) == {"first", "second", "last", "large"}
    assert len(refused) == 4 * (1 + cuda.TIMED_LAUNCHES)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_like_those_of_a_network(dtype):
    array = tuning_worker._random((3, 5), dtype, tvm.cpu())
    assert (array.shape, array.dtype) == ((3, 5), dtype)
    values = runtime.model.NUMPY.result(array, True, 0).astype("float32")
    assert 0.01 < values.std() < 0.3 and (values > 0).any() and (values < 0).any()


def test_the_virtual_machine_is_recorded_too(model, image):
    executable = relay.vm.compile(model.mod, TARGET.format(arch=80))
    machine = runtime.Model(executable, model.device, input_types=dict(x=relay.TensorType(SHAPE, "float16")))
    assert kernels(tuning._calls_of(machine, [image])) == [(3, 3), (1, 1)]


# --- by which processes


@pytest.mark.parametrize("processes, shares", [(1, [2]), (2, [1, 1]), (5, [1, 1])])
def test_processes_share_the_calls(model, image, said, processes, shares):
    with pytest.warns(UserWarning, match="2 of 2 plans are not in .*: its disk may be full"):
        runtime.tune(model, image, processes=processes)
    assert list(map(len, said())) == shares
    assert sorted(kernel for share in said() for kernel in kernels(share)) == [(1, 1), (3, 3)]


def test_what_is_kept_is_not_timed_again(model, image, said):
    first, second = tuning._calls_of(model, [image])
    session.forget_plans()
    tuning_worker.find_plan(first, model.device)
    with pytest.warns(UserWarning, match="1 of 1 plans"):
        runtime.tune(model, image)
    assert said() == [[second]]
    session.forget_plans()
    tuning_worker.find_plan(second, model.device)
    runtime.tune(model, image)
    assert said() == [[second]]  # no other process
    model(image)
    assert Graph.last == FASTEST


def test_as_many_as_there_are_cores_and_memory(model, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: range(64))
    assert tuning._processes(model.device) == 3  # of the fake driver's GiB
    monkeypatch.setattr(cuda, "free_bytes", lambda _device: 80 << 30)
    assert tuning._processes(model.device) == tuning.MAX_PROCESSES
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: range(2))
    assert tuning._processes(model.device) == 2
    monkeypatch.setattr(cuda, "free_bytes", lambda _device: 0)
    assert tuning._processes(model.device) == 1


def test_no_process_outlasts_an_interruption(model, image, said, monkeypatch):
    started = []

    class Popen(tuning.subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(tuning.subprocess, "Popen", Popen)
    monkeypatch.setattr(tuning._Worker, "finish", lambda _worker: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runtime.tune(model, image, processes=2)
    assert len(started) == 2 and all(process.returncode for process in started)


# --- errors


@pytest.mark.parametrize(
    "script, message",
    [
        ("read call; seq 20 >&2; echo no memory >&2; exit 3", r"status 3 .*lines:\n(\d+\n){9}no memory$"),
        ("exit 4", r"status 4 .*It said nothing\.$"),
        ("kill -9 $$", "status -9 "),
    ],
    ids=["with an error", "in silence", "killed"],
)
def test_a_process_that_fails(model, image, monkeypatch, script, message):
    monkeypatch.setattr(tuning, "_command", lambda _device: ["sh", "-c", script])
    with pytest.raises(RuntimeError, match=rf"(?s)^tune: a process ended with {message}"):
        runtime.tune(model, image, processes=1)


def test_a_process_imports_what_this_one_does():
    """It answers what it can compute, and says what it cannot."""
    known, unknown = (Call(name, "a text", ()) for name in ("runtime.String", "tests.unknown"))
    with tuning._worker(tvm.cuda(0)) as worker:
        worker.begin(known)
        worker.finish()
        worker.begin(unknown)
        with pytest.raises(RuntimeError, match=r"at tests\.unknown(?s:.*)Cannot find global function"):
            worker.finish()


def test_what_is_refused(model, image, monkeypatch):
    with pytest.raises(ValueError, match="processes must be at least 1, not 0"):
        runtime.tune(model, image, processes=0)
    monkeypatch.setenv(user_cache.SWITCH, "0")
    with pytest.raises(ValueError, match="no cache to keep plans in, by TVM_PASSES_CACHE"):
        runtime.tune(model, image)


def test_models_on_a_cpu_have_nothing_to_tune():
    x = relay.var("x", shape=(2,))
    with pytest.raises(ValueError, match=r"the model is on cpu\(0\)"):
        runtime.tune(runtime.compile(module(x, relay.exp(x)), "llvm"), np.ones(2, "float32"))
