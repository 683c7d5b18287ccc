"""Models on CUDA: streams, CUDA graphs, what waits for what; on the emulated device, and on a GPU."""

import ctypes
import gc
import itertools
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers import module, numbers
from tests.passes.images_of_masks import N, a_image, with_masks
from tests.profiled import profiled
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tvm_passes import Canonicalize, MakeDetectionStatic, runtime
from tvm_passes.runtime import cuda, cuda_driver
from tvm_passes.runtime.arrays import address_of

import tvm
from tvm import relay

SHAPE = (6, 64)


def sorted_rows(dynamic=False):
    """The rows of 2x in order, in a kernel that has workspaces, and x."""
    x = relay.var("x", shape=(relay.Any() if dynamic else SHAPE[0], SHAPE[1]))
    return module(x, relay.Tuple([relay.sort(x * relay.const(2.0)), x]))


WIDTH = 3


def branches():
    """A sort and an argsort of each multiple of x, which do not depend on each other."""
    x = relay.var("x", shape=SHAPE)
    found = [relay.sort(x * relay.const(float(factor))) for factor in range(1, 1 + WIDTH)]
    return module(x, relay.Tuple([relay.exp(relay.sort(relay.negative(each))) for each in found]))


def assert_branches(outputs, x):
    for factor, output in enumerate(outputs.values(), 1):
        found = output.cpu().numpy() if isinstance(output, torch.Tensor) else output
        np.testing.assert_allclose(found, np.exp(np.sort(-factor * x)), rtol=1e-5)


def assert_sorted(outputs, x):
    found = [output.cpu() if isinstance(output, torch.Tensor) else output for output in outputs.values()]
    found = [array if isinstance(array, np.ndarray) else array.numpy() for array in found]
    np.testing.assert_array_equal(found[0], np.sort(2 * x))
    np.testing.assert_array_equal(found[1], x)


# --- on the emulated device, with a fake driver


@pytest.fixture
def compiled(emulated_cuda, fake_cuda):  # noqa: F811
    """Compiles a module, for a device whose graphs run what the executor runs; and counts the runs."""

    def compile(mod, **options):
        model = runtime.compile(mod, emulated_cuda.target, device=emulated_cuda.device, **options)
        fake_cuda.replay, model.runs = model._executor.run, []
        before_each_run(model, lambda: model.runs.append(threading.current_thread()))
        fake_cuda.notes()
        return model

    return compile


def before_each_run(model, do):
    """Do this at the start of each run, whole or in parts."""
    executor = model._executor
    run, launches = executor.run, getattr(executor, "launches", None)

    def doing(what):
        def done_first():
            do()
            what()

        return done_first

    def parts():
        first, *others = launches()
        return [replace(first, run=doing(first.run)), *others] if others else [first]

    executor.run, executor.launches = doing(run), parts


def on_device(array):
    return tvm.nd.array(array, tvm.cuda(0))


@pytest.mark.parametrize("give", [on_device, np.copy])
def test_a_graph_is_captured_once(compiled, fake_cuda, give):  # noqa: F811
    model = compiled(sorted_rows())
    assert "CUDA graph" not in repr(model)
    for seed in range(3):
        x = numbers(*SHAPE, seed=seed)
        assert_sorted(model(give(x)), x)
        hold, *captured, launch, record = fake_cuda.notes()
        assert (hold, launch, record) == ("hold:0", "launch:0", "record:0")
        bounds = [note for note in captured if note in ("begin", "end")]
        assert bounds == (["begin", "end"] * 2 if seed == 0 else [])  # side by side, and in order
    assert "graph executor on cuda(0), as a CUDA graph" in repr(model)
    assert len(model.runs) == 4  # to warm up, again, and to capture twice
    assert len(set(model.runs)) == 1 and threading.current_thread() not in model.runs


def test_the_thread_of_a_graph_lives_as_long(compiled, fake_cuda):  # noqa: F811
    model = compiled(sorted_rows())
    model(numbers(*SHAPE))
    (thread, *_) = model.runs
    assert thread.is_alive()
    model = fake_cuda.replay = None
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive() and "destroy" in fake_cuda.notes()


def test_without_a_graph(compiled, fake_cuda):  # noqa: F811
    model = compiled(sorted_rows(), cuda_graph=False)
    for seed in range(2):
        assert_sorted(model(on_device(numbers(*SHAPE, seed=seed))), numbers(*SHAPE, seed=seed))
        assert fake_cuda.notes() == ["hold:0", "record:0"]
    assert model.runs == [threading.current_thread()] * 2 and "CUDA graph" not in repr(model)


def fails_while_captured(model, fake_cuda):  # noqa: F811
    failed = []

    def fails():
        if len(model.runs) == 2 and not failed:
            failed.append(True)
            raise tvm.TVMError("in a file\n  in a line\nCUDA: an allocation cannot be captured")

    before_each_run(model, fails)


def is_invalid_afterwards(_model, fake_cuda):  # noqa: F811
    fake_cuda.invalidate_next_capture()


REASONS = {
    fails_while_captured: r"without a CUDA graph: CUDA: an allocation cannot be captured; cuda_graph=False",
    is_invalid_afterwards: r"without a CUDA graph: cuStreamEndCapture: as the fake driver wants it \(901\)",
}


@pytest.mark.parametrize("fails", REASONS)
def test_what_cannot_be_captured_runs_without(compiled, fake_cuda, fails):  # noqa: F811
    model = compiled(sorted_rows())
    fails(model, fake_cuda)
    with pytest.warns(UserWarning, match=REASONS[fails]) as warned:
        assert_sorted(model(numbers(*SHAPE)), numbers(*SHAPE))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_sorted(model(numbers(*SHAPE, seed=1)), numbers(*SHAPE, seed=1))
    assert "CUDA graph" not in repr(model) and model.runs[-1] is threading.current_thread()


@pytest.mark.parametrize("fails", REASONS)
def test_a_graph_that_is_required(compiled, fake_cuda, fails):  # noqa: F811
    model = compiled(sorted_rows(), cuda_graph=True)
    fails(model, fake_cuda)
    with pytest.raises(cuda.CannotCapture):
        model(numbers(*SHAPE))


def test_the_virtual_machine_has_no_graph(compiled, fake_cuda):  # noqa: F811
    model = compiled(sorted_rows(dynamic=True))
    for rows in (3, 5):
        assert_sorted(model(numbers(rows, 64)), numbers(rows, 64))
        assert fake_cuda.notes() == ["hold:0", "record:0", "hold:0"]
    with pytest.raises(ValueError, match="the virtual machine decides in each call what to launch"):
        compiled(sorted_rows(dynamic=True), cuda_graph=True)


def test_an_error_of_the_network_is_none_of_the_graph(compiled):
    model = compiled(sorted_rows(), cuda_graph="auto")
    before_each_run(model, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(numbers(*SHAPE))


def test_streams_are_in_order(compiled, fake_cuda):  # noqa: F811
    """Of one model, and of all without workspaces of their own in this thread."""
    captured, plain = compiled(sorted_rows()), compiled(sorted_rows(), cuda_graph=False)
    machine = compiled(sorted_rows(dynamic=True))
    x = on_device(numbers(*SHAPE))

    def call(model, stream):
        fake_cuda.stream, fake_cuda.replay = stream, lambda: None
        fake_cuda.notes()
        model(x)
        assert fake_cuda.stream == stream  # left as it was
        return fake_cuda.notes()

    call(captured, 5)
    assert call(captured, 7) == ["hold:7", "launch:7", "record:7"]
    assert call(plain, 8) == ["hold:8", "hold:8", "record:8"]  # for the first call of the captured one
    assert call(plain, 9) == ["hold:9", "record:9"]
    default = ["record:6", "hold:0", "record:0", "hold:6"]
    assert call(machine, 6) == ["hold:6", "hold:6", *default, "record:6", "hold:0"]


def test_what_is_done_is_not_waited_for(compiled, fake_cuda):  # noqa: F811
    model, x = compiled(sorted_rows()), on_device(numbers(*SHAPE))
    model(x)
    fake_cuda.notes()
    fake_cuda.work_is_done()
    fake_cuda.stream = 7
    model(x)
    fake_cuda.work_is_done(False)
    assert fake_cuda.notes() == ["launch:7", "record:7"]


def test_branches_are_captured_side_by_side(compiled, fake_cuda):  # noqa: F811
    model = compiled(branches())
    x = numbers(*SHAPE)
    assert_branches(model(x), x)
    notes = fake_cuda.notes()
    captured, in_order = (part.split() for part in re.findall("begin (.*?) end", " ".join(notes)))
    assert in_order[:-1] == ["after", *(f"after:{place}" for place in range(1, len(in_order) - 1))]
    launched = [note for note in notes if note.startswith("launch:")]
    assert len(launched) == 2 * cuda.TIMED_LAUNCHES + 1 and "destroy" in notes  # the slower one
    first, *others, last = [note.split(":")[1:] for note in captured]
    assert first == [] and others.count([]) == WIDTH - 1  # a sort in each branch waits for nothing
    assert {node for nodes in [*others, last] for node in nodes} == {
        str(1 + place) for place in range(len(captured) - 1)
    }
    lanes = [launch.lane for launch in model._executor.launches()]
    assert len(set(lanes)) == WIDTH  # each sort has workspaces of its own


@pytest.mark.parametrize("give", [on_device, np.copy])
def test_cut_on_cuda(compiled, give):
    model = compiled(detector(), cut=True)
    on_cpu = runtime.compile(detector(), "llvm", cut=True)
    for scale in (1.0, 0.3, 0.01):
        inputs = a_image(0, scale)
        wanted, found = on_cpu(*inputs), model(*map(give, inputs))
        for name in wanted:
            array = found[name] if give is np.copy else found[name].numpy()
            np.testing.assert_allclose(array, wanted[name], atol=1e-6)


def test_kernels_read_inputs_elsewhere(compiled, fake_cuda):  # noqa: F811
    """Those of all branches, each once for each new place."""
    model, x = compiled(branches()), on_device(numbers(*SHAPE))
    model._buffers["x"] = x
    fake_cuda.kernel(ctypes.c_uint64(address_of(x)))
    model(x)
    assert model._captured.movable == {0}
    fake_cuda.notes()
    with cuda.on_device(model.device):
        for address, changed in ((0xD000, WIDTH), (0xD000, 0), (0xE000, WIDTH)):
            model._captured.launch(0, {0: address})
            *nodes, _launch = fake_cuda.notes()
            assert [node.split(":")[2] for node in nodes] == [f"{address:x}"] * changed
    outputs = model(x)  # from its own
    assert_branches({name: output.numpy() for name, output in outputs.items()}, numbers(*SHAPE))
    assert sum(note.startswith("node:") for note in fake_cuda.notes()) == WIDTH


def test_a_tensor_elsewhere(compiled):
    model = compiled(sorted_rows())
    with pytest.raises(ValueError, match=r'x is on cpu\(0\), and the model on cuda:0: give x.to\("cuda:0"\)'):
        model(torch.zeros(SHAPE))
    with pytest.raises(ValueError, match=r"x is on cpu\(0\), .* give x.copyto\(model.device\)"):
        model(tvm.nd.array(np.zeros(SHAPE, "float32")))


def test_without_a_driver():
    with pytest.raises(cuda_driver.CudaError, match="has no cuDeviceGet: there is no driver"):
        cuda_driver.Driver("libc.so.6")


# --- on a GPU


MODES = {"graph": {"cuda_graph": True}, "plain": {"cuda_graph": False}, "machine": {}}


def detector():
    mod = with_masks()
    mod["main"] = mod["main"].with_attr("output_names", ["boxes", "masks"])
    passes = tvm.transform.Sequential([MakeDetectionStatic("padded"), Canonicalize()])
    return passes(relay.transform.InferType()(mod))


def on_gpu(mode, mod=None, **options):
    mod = mod or sorted_rows(dynamic=mode == "machine")
    return runtime.compile(mod, "cuda", **MODES[mode], **options)


def at(seed):
    return torch.from_numpy(numbers(*SHAPE, seed=seed)).cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_followed_on_gpu(mode):
    model = on_gpu(mode)
    kept = []
    for seed in range(4):
        outputs = model(at(seed))
        assert all(output.is_cuda for output in outputs.values())
        kept.append(outputs)
    for seed, outputs in enumerate(kept):
        assert_sorted(outputs, numbers(*SHAPE, seed=seed))
    assert ("as a CUDA graph" in repr(model)) == (mode == "graph")
    x = numbers(*SHAPE, seed=9)
    for outputs in (model(x), model(on_device(x)), model(torch.from_numpy(x.T.copy()).cuda().T)):
        assert_sorted(outputs, x)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_streams_on_gpu(mode):
    """Inputs are made, the model called, and outputs used on streams in turn, all without waiting."""
    model = on_gpu(mode)
    streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
    inputs = [at(seed) for seed in range(24)]
    torch.cuda.synchronize()
    sums = []
    for step, x in enumerate(inputs):
        with torch.cuda.stream(streams[step % 4]):
            torch.cuda._sleep(2_000_000)  # so that whatever does not wait is too early
            outputs = model(x.clone())
            sums.append(outputs["output0"] - 2 * torch.sort(x).values + outputs["output1"] - x)
    torch.cuda.synchronize()
    assert not any(total.abs().max() for total in sums)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["graph", "plain"])
def test_other_models_between_on_gpu(mode):
    """Whose workspaces grow: a captured graph's are its own, the others' are used in turn."""
    models = [
        runtime.compile(module(x, relay.Tuple([relay.sort(x), x])), "cuda", **MODES[mode])
        for x in (relay.var("x", shape=(3, 10 ** (2 + power))) for power in range(4))
    ]
    streams = [torch.cuda.Stream() for _ in models]
    differences = []
    for seed in range(6):
        for power, (model, stream) in enumerate(zip(models, streams)):
            with torch.cuda.stream(stream):
                x = torch.from_numpy(numbers(3, 10 ** (2 + power), seed=seed)).cuda()
                differences.append(model(x)["output0"] - torch.sort(x).values)
    torch.cuda.synchronize()
    assert not any(difference.abs().max() for difference in differences)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["graph", "plain"])
def test_detections_on_gpu(mode):
    model, on_cpu = on_gpu(mode, detector(), cut=True), runtime.compile(detector(), "llvm", cut=True)
    for seed in range(3):
        for scale in (1.0, 0.3, 0.01):
            inputs = a_image(seed, scale)
            wanted = on_cpu(*inputs)
            found = model(*(torch.from_numpy(array).cuda() for array in inputs))
            assert len(wanted["boxes"]) < N
            for name in wanted:
                np.testing.assert_allclose(found[name].cpu(), wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["graph", "plain"])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("on_default", [False, True])
def test_one_read_and_one_wait_on_gpu(mode, cut, on_default, monkeypatch):
    """And none of either without a cut."""
    asked = []  # of the driver, whose waits torch's profiler leaves out
    call = cuda_driver.Driver.__call__
    monkeypatch.setattr(
        cuda_driver.Driver,
        "__call__",
        lambda self, name, *args: (asked.append(name), call(self, name, *args)),
    )
    model = on_gpu(mode, detector(), cut=cut)
    inputs = [torch.from_numpy(array).cuda() for array in a_image()]
    stream = torch.cuda.default_stream() if on_default else torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(*inputs)
        calls = profiled(lambda: (asked.clear(), model(*inputs)))
    assert any("Memcpy DtoD" in name for name in calls)  # it sees copies
    assert len([name for name in calls if "Memcpy DtoH" in name]) == cut
    waits = [name for name in calls if name.startswith("cuda") and "Synchronize" in name]
    waits += [name for name in asked if name == "cuStreamSynchronize"]
    assert len(waits) == cut, waits


@pytest.mark.gpu
def test_no_copy_at_all_on_gpu():
    model = on_gpu("plain", module(*line()), copy_outputs=False)
    x = at(0)
    model(x)
    assert not [name for name in profiled(lambda: model(x)) if "Memcpy" in name or "Memset" in name]
    np.testing.assert_allclose(model(x).cpu(), 2 * numbers(*SHAPE) + 1, rtol=1e-6)


def line():
    x = relay.var("x", shape=SHAPE)
    return x, x * relay.const(2.0) + relay.const(1.0)


def waves():
    """Two kernels of which the first reads x, and two results."""
    x = relay.var("x", shape=SHAPE)
    rows = relay.sort(x * relay.const(2.0))
    return module(x, relay.Tuple([rows, relay.exp(rows)]))


@pytest.mark.gpu
def test_inputs_are_read_where_they_are_on_gpu():
    model = on_gpu("graph", waves(), copy_outputs=False)

    def assert_waves(given, x):
        found = [output.cpu().numpy() for output in model(given).values()]
        np.testing.assert_allclose(found[0], np.sort(2 * x), rtol=1e-6)
        np.testing.assert_allclose(found[1], np.exp(np.sort(2 * x)), rtol=1e-5)

    kept = [at(seed) for seed in range(4)]
    for seed, x in enumerate([*kept, *kept]):
        assert_waves(x, numbers(*SHAPE, seed=seed % 4))
    assert not [name for name in profiled(lambda: model(kept[0])) if "Memcpy" in name]
    x = numbers(*SHAPE, seed=9)
    shifted = torch.zeros(1 + x.size, device="cuda")[1:].view(SHAPE)
    assert [name for name in profiled(lambda: model(shifted)) if "Memcpy" in name]
    for given in (shifted.copy_(at(9)), at(9).T.contiguous().T):  # copied
        assert_waves(given, x)
    on_host, of_tvm = model(x)["output0"], model(on_device(x))["output0"]
    np.testing.assert_allclose(on_host, np.sort(2 * x), rtol=1e-6)
    np.testing.assert_allclose(of_tvm.numpy(), np.sort(2 * x), rtol=1e-6)
    assert_waves(kept[1], numbers(*SHAPE, seed=1))
    assert_waves(model(kept[0])["output0"], np.sort(2 * numbers(*SHAPE)))  # where this call writes


@pytest.mark.gpu
def test_inputs_of_one_kernel_are_read_where_they_are_on_gpu():
    x, y = (relay.var(name, shape=SHAPE) for name in "xy")
    model = on_gpu("graph", module(x, y, relay.sort(x - y)))
    kept = [at(seed) for seed in range(4)]
    for first, second in itertools.permutations(range(4), 2):
        found = model(kept[first], kept[second]).cpu().numpy()
        expected = np.sort(numbers(*SHAPE, seed=first) - numbers(*SHAPE, seed=second))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_branches_side_by_side_on_gpu():
    model = on_gpu("graph", branches())
    for seed in range(20):
        x = numbers(*SHAPE, seed=seed)
        assert_branches(model(torch.from_numpy(x).cuda()), x)


@pytest.mark.gpu
def test_what_cannot_be_captured_on_gpu():
    model = runtime.compile(sorted_rows(), "cuda")
    before_each_run(model, lambda: tvm.nd.empty((1 << 20,), device=tvm.cuda(0)))
    with pytest.warns(UserWarning, match="without a CUDA graph: "):
        assert_sorted(model(at(0)), numbers(*SHAPE))
    torch.cuda.synchronize()
    assert_sorted(model(at(1)), numbers(*SHAPE, seed=1))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_threads_on_gpu(mode):
    """Each with its stream, a model of its own, and one that they share."""
    shared, own = on_gpu(mode), [on_gpu(mode) for _ in range(3)]

    def differences(model):
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(20):
                x = at(seed)
                for one in (model, shared):
                    yield (one(x)["output0"] - torch.sort(2 * x).values).abs().max().item()

    with ThreadPoolExecutor(3) as pool:
        assert not any(map(any, pool.map(lambda model: list(differences(model)), own)))


@pytest.mark.gpu
def test_the_current_device_stays_on_gpu():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.cuda.set_device(0)
    model = runtime.compile(sorted_rows(), "cuda", device="cuda:1")
    assert torch.cuda.current_device() == 0
    for seed in range(3):
        outputs = model(at(seed).to("cuda:1"))
        assert torch.cuda.current_device() == 0 and outputs["output0"].device.index == 1
        assert_sorted(outputs, numbers(*SHAPE, seed=seed))
    with pytest.raises(ValueError, match="and the model on cuda:1"):
        model(at(0))
