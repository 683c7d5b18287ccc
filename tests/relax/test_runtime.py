"""Compiled networks of Relax as functions of tensors, and in folders."""

import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import tvm_ffi

import frontends.relax
from tests.relax.detectors import NAMES, detector, found_by_torchvision, image
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, QUICK, Of
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline
from tvm_passes.runtime import FolderError, cuda, runs_here
from tvm_passes.runtime.arrays import relax as arrays
from tvm_passes.runtime.manifest import MANIFEST, PARAMETERS, digest_of, library_of
from tvm_passes.runtime.tensor_type import TensorType

import tvm
from tvm import relax

SHAPE = (6, 16)
LIBRARY = library_of(None)
AS = {"torch": torch.from_numpy, "numpy": lambda array: array, "tvm": lambda array: tvm.runtime.tensor(array)}
TYPES = {"torch": torch.Tensor, "numpy": np.ndarray, "tvm": tvm.runtime.Tensor}
WEIGHT = np.arange(16, dtype="float32")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, "float32")


def to_numpy(output):
    return output if isinstance(output, np.ndarray) else output.numpy()


def network(rows=SHAPE[0]):
    """2x + 1; x reshaped, which is no kernel of its own; and x and a weight as they are."""
    x = relax.Var("x", relax.TensorType((rows, SHAPE[1]), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"output_names": ["line", "flat", "same", "weight"]}):
        with builder.dataflow():
            line = builder.emit(relax.op.add(relax.op.add(x, x), relax.const(np.float32(1))))
            flat = builder.emit(relax.op.reshape(x, (rows * SHAPE[1],)))
            outputs = builder.emit_output(relax.Tuple([line, flat, x, relax.const(WEIGHT)]))
        builder.emit_func_output(outputs)
    return builder.get()


def test_parameters_that_main_does_not_take():
    with pytest.warns(UserWarning, match="compile: params has w, which main does not take: ignored"):
        model = runtime.compile(network(), QUICK, {"w": WEIGHT})
    assert_right(model(numbers(*SHAPE)), numbers(*SHAPE))
    with pytest.raises(ValueError, match=r"params\['x'\] must be float32 \(6, 16\), not float32 \(16\)"):
        runtime.compile(network(), QUICK, {"x": WEIGHT})


def test_weights_that_were_given_to_the_compiler_are_no_inputs(tmp_path):
    x, w = (relax.Var(name, relax.TensorType((3,), "float32")) for name in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.multiply(x, w)))
    mod = builder.get()
    lib = runtime.build_library(mod, QUICK, {"w": np.float32([1, 2, 3])})
    runtime.save(tmp_path, lib, mod, QUICK)
    assert [each["name"] for each in runtime.read_manifest(tmp_path)["inputs"]] == ["x"]
    np.testing.assert_array_equal(runtime.load(tmp_path)(np.ones(3, "float32")), [1, 2, 3])


def assert_right(outputs, x):
    wanted = {"line": 2 * x + 1, "flat": x.reshape(-1), "same": x, "weight": WEIGHT}
    assert list(outputs) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(to_numpy(outputs[name]), values, rtol=1e-6, err_msg=name)


def aligned(array, offset=0):
    """A copy that begins so many bytes behind a multiple of 64."""
    memory = np.empty(array.nbytes + 128, "uint8")
    begin = -memory.ctypes.data % 64 + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


@pytest.fixture(scope="module")
def model():
    return runtime.compile(network(), QUICK)


@pytest.mark.parametrize("kind", AS)
def test_outputs_are_what_inputs_are(model, kind):
    first = model(AS[kind](numbers(*SHAPE)))
    second = model(x=AS[kind](numbers(*SHAPE, seed=1)))
    assert {type(output) for output in first.values()} == {TYPES[kind]}
    assert_right(first, numbers(*SHAPE))
    assert_right(second, numbers(*SHAPE, seed=1))


def test_outputs_are_the_callers(model):
    x = torch.from_numpy(numbers(*SHAPE)).clone()
    for output in model(x).values():
        output.zero_()
    assert_right(model(x), numbers(*SHAPE))


def test_outputs_without_a_copy():
    model = runtime.compile(network(), QUICK, copy_outputs=False)
    x = torch.from_numpy(numbers(*SHAPE)).clone()
    found = model(x)
    assert found["same"].data_ptr() == found["flat"].data_ptr() == x.data_ptr()


READ_IN_PLACE = {
    "torch": lambda x: torch.from_numpy(x).clone(),
    "a parameter": lambda x: torch.nn.Parameter(torch.from_numpy(x).clone()),
    "numpy": aligned,
    "tvm": lambda x: tvm.runtime.tensor(x),
}
COPIED = {
    "misaligned torch": lambda x: torch.from_numpy(aligned(x, 4)),
    "transposed torch": lambda x: torch.from_numpy(x.T.copy()).T,
    "to be negated": lambda x: torch._neg_view(torch.from_numpy(-x)),
    "misaligned numpy": lambda x: aligned(x, 16),
    "transposed numpy": np.asfortranarray,
}


@pytest.mark.parametrize("how", [*READ_IN_PLACE, *COPIED])
def test_inputs_are_read_where_they_are_or_copied(model, how, monkeypatch):
    read = []
    bind = model._executor.bind
    monkeypatch.setattr(model._executor, "bind", lambda given: (read.extend(given), bind(given)))
    value = {**READ_IN_PLACE, **COPIED}[how](numbers(*SHAPE))
    assert_right(model(value), numbers(*SHAPE))
    address = value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr()
    assert (read[0].data_ptr() == address) == (how in READ_IN_PLACE) and read[0].data_ptr() % 64 == 0


def test_arrays_that_must_not_be_written(model):
    x = aligned(numbers(*SHAPE))
    x.flags.writeable = False
    assert_right(model(x), x)


def same(x):
    return torch.flip(x, [0]), x


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool", "bfloat16"])
def test_types_of_elements(dtype):
    tensor = torch.tensor([0, 1, 2, 1, 0]).to(getattr(torch, dtype))
    model = runtime.compile(frontends.relax.from_pytorch(Of(same), tensor), QUICK)
    for found, wanted in zip(model(tensor).values(), same(tensor), strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    if dtype != "bfloat16":  # which NumPy lacks
        for found, wanted in zip(model(tensor.numpy()).values(), same(tensor), strict=True):
            np.testing.assert_array_equal(found, wanted.numpy(), strict=True)
    else:
        found = model(tvm.runtime.from_dlpack(tensor))["output1"]
        np.testing.assert_array_equal(runtime.model.NUMPY.result(found, True, 0), tensor.float(), strict=True)


def test_lengths_that_are_known_at_run_time_only():
    model = runtime.compile(network(tvm.tirx.Var("n", "int64")), QUICK)
    assert "x: float32 (?, 16)" in repr(model)
    for rows in (3, 0, 7):
        assert_right(model(torch.from_numpy(numbers(rows, 16))), numbers(rows, 16))
        assert_right(model(numbers(rows, 16)), numbers(rows, 16))


def test_outputs_whose_length_only_the_run_tells():
    mod = elementwise("x", operator=relax.op.nonzero)
    assert arrays.type_of(mod["main"].ret_ty) == TensorType((None, None), "int64")
    model = runtime.compile(mod, QUICK)
    np.testing.assert_array_equal(model(np.array([0, 1, 2], "float32")), [[1, 2]])


def test_weights_that_are_given_apart():
    model = runtime.compile(elementwise("x", "w"), QUICK, {"w": tvm.runtime.tensor(WEIGHT[:3])})
    np.testing.assert_array_equal(model(np.ones(3, "float32")), WEIGHT[:3])


X = torch.zeros(SHAPE)
REFUSED = {
    "the inputs are x; x is missing": (TypeError, lambda model: model()),
    "the inputs are x; 2 were given": (TypeError, lambda model: model(X, X)),
    "the inputs are x; y is not one of them": (TypeError, lambda model: model(X, y=X)),
    "x is of type list; give one of torch.Tensor, tvm.runtime.Tensor, numpy.ndarray": (
        TypeError,
        lambda model: model([1.0]),
    ),
    "not float64 (6, 16): give x.to(torch.float32)": (TypeError, lambda model: model(X.double())),
    'not int8 (6, 16): give x.astype("float32")': (TypeError, lambda model: model(np.zeros(SHAPE, "int8"))),
    "x must be float32 (6, 16), not float32 (6, 15)": (ValueError, lambda model: model(X[:, 1:])),
    'x is on meta, and the model on cpu: give x.to("cpu")': (ValueError, lambda model: model(X.to("meta"))),
    "x is not contiguous: give torch.from_dlpack(x)": (TypeError, lambda model: model(transposed())),
    "'net.so' is not a module; of a file, give": (TypeError, lambda _: runtime.Model("net.so")),
    "is no result of tvm.compile": (TypeError, lambda _: runtime.Model(kernel())),
    "the device is not CUDA": (ValueError, lambda model: runtime.Model(model.lib, cuda_graph=True)),
    "4 outputs cannot have the names a": (
        ValueError,
        lambda model: runtime.Model(model.lib, output_names=["a"])(X),
    ),
    ": import the detector by frontends.relax": (  # the last output must be the number of detections
        ValueError,
        lambda model: runtime.Model(model.lib, cut=True)(X),
    ),
    "runtime.tune needs a TVM with Relay": (ImportError, lambda _: runtime.tune),
    "main has two parameters named x": (ValueError, lambda _: runtime.compile(elementwise("x", "x"), QUICK)),
    "pair must be a tensor, not of type": (TypeError, lambda _: runtime.compile(of_a_pair(), QUICK)),
    "result 0 must be a tensor, not of type": (TypeError, lambda _: runtime.compile(of_a_shape(), QUICK)),
    "cannot compile the model for llvm: ": (
        runtime.CompileFailure,
        lambda _: runtime.compile(of_rows(), QUICK),
    ),
}


def kernel():
    x = tvm.te.placeholder((3,), name="x")
    function = tvm.te.create_prim_func([x, tvm.te.compute((3,), lambda i: x[i] + 1)])
    return tvm.compile(function, QUICK)


def transposed():
    return tvm_ffi.from_dlpack(torch.from_numpy(numbers(*SHAPE[::-1])).T)


def elementwise(*names, operator=relax.op.multiply):
    variables = [relax.Var(name, relax.TensorType((3,), "float32")) for name in names]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(operator(*variables)))
    return builder.get()


def of_a_shape():
    return elementwise("x", operator=relax.op.shape_of)


def of_a_pair():
    type_ = relax.TensorType((3,), "float32")
    pair = relax.Var("pair", relax.TupleType([type_, type_]))
    builder = relax.BlockBuilder()
    with builder.function("main", [pair]):
        builder.emit_func_output(builder.emit(relax.TupleGetItem(pair, 0)))
    return builder.get()


def of_rows():
    """A convolution in a layout that TVM cannot compile."""
    x = relax.Var("x", relax.TensorType((1, 2, 2, 1), "float32"))
    weight = relax.const(np.ones((1, 1, 1, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        call = relax.op.nn.conv2d_transpose(x, weight, data_layout="NHWC", kernel_layout="IHWO")
        builder.emit_func_output(builder.emit(call))
    return builder.get()


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_cannot_take(model, reason):
    error, call = REFUSED[reason]
    with pytest.raises(error) as raised:
        call(model)
    assert reason in str(raised.value)


# --- names and numbers of the importer


class Named(torch.nn.Module):
    def forward(self, x):
        return {"scores": x + 1, "pair": (x, [x * 2]), "boxes": x.sum()}


def test_outputs_have_the_names_of_torch():
    x = torch.rand(3)
    model = runtime.compile(frontends.relax.from_pytorch(Named(), x), QUICK)
    found = model(x)
    wanted = {"scores": x + 1, "pair.0": x, "pair.1": x * 2, "boxes": x.sum()}
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


@pytest.fixture(scope="module")
def detecting(tmp_path_factory):
    """A detector that was saved, and what it is of."""
    folder, network = tmp_path_factory.mktemp("detector"), detector("fcos")
    mod = convolution_pipeline(QUICK)(frontends.relax.from_pytorch(network, image()))
    runtime.save(folder, runtime.build_library(mod, QUICK), mod, QUICK, {"by": "a test"})
    return folder, network


def test_detections_are_cut_to_their_number(detecting):
    folder, network = detecting
    expected = dict(zip(NAMES, found_by_torchvision(network)))
    found = runtime.load(folder, cut=True)(image())
    assert list(found) == list(expected) and 5 < len(found["boxes"]) < 20
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-3, rtol=1e-3)
    padded = runtime.load(folder)(image())
    assert list(padded)[-1] == "num_detections" and len(padded["boxes"]) == 20
    np.testing.assert_array_equal(padded["boxes"][: len(found["boxes"])], found["boxes"])


def test_the_manifest_describes_it(detecting):
    manifest = runtime.read_manifest(detecting[0])
    assert manifest["dialect"] == "relax" and manifest["executor"] == "vm"
    assert manifest["inputs"] == [{"name": "image", "shape": [3, 50, 70], "dtype": "float32"}]
    assert manifest["outputs"][-1] == {"name": "num_detections", "shape": [], "dtype": "int32"}
    assert manifest["padded_rows"] == [[0, 0]] * 3 and manifest["about"] == {"by": "a test"}


# --- folders


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    runtime.save(folder, model.lib, network(), QUICK)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(written, tmp_path / "copy")


def rewrite(folder, **changes):
    """As another installation would have written the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest.update(changes)
    del manifest["sha256"]
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


RUNTIME_ALONE = {"TVM_USE_RUNTIME_LIB": "1"}


@pytest.mark.parametrize("environment", [{}, RUNTIME_ALONE], ids=["with the compiler", "without"])
def test_in_a_new_process(written, environment):
    code = (
        "import sys, numpy, tvm_passes; model = tvm_passes.runtime.load(sys.argv[1]); "
        "assert (model(numpy.ones((6, 16), 'float32'))['line'] == 3).all(); "
        "assert tvm_passes.bootstrap.tvm_in_use.compiles == (sys.argv[2] == 'True'); "
        "import tvm; assert tvm.get_global_func('tvm.contrib.sort.topk')"  # which detectors call on CPUs
    )
    command = [sys.executable, "-c", code, written, str(not environment)]
    subprocess.run(command, env={**os.environ, **environment}, check=True)


@pytest.mark.parametrize("code", ["import tvm_passes.relax", "import tvm_passes; tvm_passes.recording"])
def test_what_the_runtime_alone_lacks_says_so(code):
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **RUNTIME_ALONE}, capture_output=True, text=True
    )
    assert "needs TVM's compiler, and this process has its runtime alone" in found.stderr


def test_the_runtime_alone_compares_processors(folder, monkeypatch):
    """What LLVM would tell of a target is in the manifest."""
    rewrite(folder, features=["avx512x"])
    monkeypatch.setattr(runs_here, "tvm_in_use", dataclasses.replace(runs_here.tvm_in_use, compiles=False))
    with pytest.raises(FolderError, match="and this machine lacks avx512x"):
        runtime.load(folder)


@pytest.mark.parametrize("name", [LIBRARY, PARAMETERS])
def test_files_that_were_changed(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(FolderError, match=f"{name} is not the file that was written there: compile again"):
        runtime.load(folder)


def test_a_manifest_that_was_changed(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"line"', '"lime"'))
    with pytest.raises(FolderError, match="was changed after it was written: compile again"):
        runtime.load(folder)


OTHERS = {
    "has one with Relax: set TVM_PASSES_IR=relay before it starts, or compile again": {"dialect": "relay"},
    "compiled with TVM 0.26.0, and this is 0.27": {"versions": {"TVM": "0.26.0"}},
    "and this machine is": {"machine": "sparc64"},
    "and this machine lacks avx512x": {"target": json.dumps({"kind": "llvm", "mattr": ["+avx512x"]})},
    "there is no such device here": {"target": json.dumps({"kind": "cuda", "arch": "sm_52"})},
}


@pytest.mark.parametrize("reason", OTHERS)
def test_what_was_compiled_for_another_process_or_machine(folder, reason, monkeypatch):
    monkeypatch.setattr(tvm.runtime.Device, "exist", False)
    rewrite(folder, **OTHERS[reason])
    with pytest.raises(FolderError, match=reason):
        runtime.load(folder)


def test_networks_of_several_sizes(tmp_path):
    networks = {rows: (runtime.build_library(network(rows), QUICK), network(rows)) for rows in (2, 4)}
    runtime.save_sizes(tmp_path, networks, QUICK)
    for rows, model in runtime.load_sizes(tmp_path).items():
        assert_right(model(numbers(rows, 16)), numbers(rows, 16))


# --- CUDA: on the emulated device with a driver that takes notes, and on a GPU


class NotingDriver:
    def __init__(self):
        self.notes = []

    def __call__(self, name, *args):
        if name == "cuMemcpyAsync":
            into, start, size, _ = args
            ctypes.memmove(into, start, size)
        if name in ("cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync"):
            stream = {"cuEventRecord": 1, "cuStreamWaitEvent": 0, "cuMemcpyAsync": 3}[name]
            self.notes.append((name, args[stream]))

    def made(self, _name, *_args):
        return 1

    def holds(self, _name, *_args):
        return False  # work is never done


@pytest.fixture
def noting(monkeypatch):
    noting = NotingDriver()
    monkeypatch.setattr(cuda, "driver", lambda: noting)
    monkeypatch.setattr(arrays, "driver", lambda: noting)
    with emulate_cuda():
        yield noting


def counted():
    """Rows of x, doubled, and the number of them that counts, which is given."""
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    number = relax.Var("number", relax.TensorType((), "int32"))
    builder = relax.BlockBuilder()
    attrs = {"output_names": ["rows", "number"], "padded_rows": [[0, 0]]}
    with builder.function("main", [x, number], attrs=attrs):
        rows = builder.emit(relax.op.add(x, x))
        builder.emit_func_output(relax.Tuple([rows, number]))
    return builder.get()


def test_all_is_in_the_order_of_the_stream(noting, monkeypatch):
    model = runtime.compile(counted(), CUDA, cut=True)
    monkeypatch.setattr(model, "_stream", lambda _kind: 7)
    used = []
    run = model._executor.run
    monkeypatch.setattr(
        model._executor, "run", lambda: (used.append(cuda.current_stream(model.device)), run())
    )
    for count in (3, 0):
        noting.notes.clear()
        x = numbers(4, 8, seed=count)
        np.testing.assert_array_equal(model(x, np.array(count, "int32")), 2 * x[:count])
        record, hold, copy = "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync"
        assert noting.notes == [
            *[(hold, 7), (copy, 7), (copy, 7)],  # after the call before: the inputs
            *[(record, 7), (hold, 0), (record, 0), (hold, 7)],  # the run on the default stream
            *[(copy, 7), (record, 7), (hold, 0)],  # the number
        ]
    assert used == [0, 0] and cuda.current_stream(model.device) == 0


@pytest.mark.gpu
def test_streams_on_gpu():
    """Inputs are made, the model called, and outputs used on streams in turn, all without waiting."""
    arch = f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    model = runtime.compile(network(), tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm"))
    streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
    inputs = [torch.from_numpy(numbers(*SHAPE, seed=seed)).cuda() for seed in range(24)]
    torch.cuda.synchronize()
    differences = []
    for step, x in enumerate(inputs):
        with torch.cuda.stream(streams[step % 4]):
            torch.cuda._sleep(2_000_000)  # so that whatever does not wait is too early
            outputs = model(x.clone())
            differences += [outputs["line"] - (x + x + 1), outputs["same"] - x]
    torch.cuda.synchronize()
    assert not any(difference.abs().max() for difference in differences)


@pytest.mark.gpu
def test_every_kind_and_a_cut_on_gpu():
    arch = f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm")
    model = runtime.compile(counted(), target, cut=True)
    x, count = numbers(4, 8), np.array(3, "int32")
    on_gpu = torch.from_numpy(x).cuda()
    for given in (
        (on_gpu, torch.tensor(3, dtype=torch.int32).cuda()),
        (on_gpu.T.contiguous().T, count),
        (x, count),
        (tvm.runtime.tensor(x, tvm.cuda(0)), count),
    ):
        found = model(*given)
        found = found.cpu().numpy() if isinstance(found, torch.Tensor) else to_numpy(found)
        np.testing.assert_array_equal(found, 2 * x[:3])
    with pytest.raises(ValueError, match=r'x is on cpu:0, and the model on cuda:0: give x.to\("cuda:0"\)'):
        model(torch.from_numpy(x), count)
