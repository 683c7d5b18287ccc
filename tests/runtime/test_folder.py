"""Saved models: that they run as before, and that a folder is refused that is not whole or not for here."""

import copy
import importlib.metadata
import json
import pickle
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest

import topi_ext
import tvm_passes
from tests.command.networks import SIZE, bright_pixels, colours
from tests.helpers import module
from topi_ext.onednn import library as onednn
from tvm_passes import runtime
from tvm_passes.runtime import FolderError
from tvm_passes.runtime.manifest import MANIFEST, PARAMETERS, digest_of, library_of

import tvm
from tvm import relay

TARGET = "llvm"
LIBRARY = library_of(None)


def saved_to(folder, mod, target=TARGET):
    runtime.save(folder, runtime.build_library(mod, target), mod, target, {"by": "a test"})
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return saved_to(tmp_path_factory.mktemp("written"), colours()[0])


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(written, tmp_path / "copy")


def rewrite(folder, forge=False, **changes):
    """Change the manifest; its digest too, as another installation would have written it, if that is told."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest.update(changes)
    if forge:
        del manifest["sha256"]
        manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def image(seed=0):
    return np.random.default_rng(seed).random((1, 3, *SIZE), "float32")


def test_a_static_network(written):
    model = runtime.load(written)
    found = model(image())
    assert list(found) == ["boxes", "scores", "labels"]
    np.testing.assert_allclose(found["scores"], image().mean(axis=(0, 2, 3)), rtol=1e-5)
    manifest = runtime.read_manifest(written)
    assert manifest["executor"] == "graph" and manifest["about"] == {"by": "a test"}
    assert manifest["inputs"] == [{"name": "image", "shape": [1, 3, *SIZE], "dtype": "float32"}]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied(written, duplicate):
    with pytest.raises(
        TypeError, match=r"Model: it can be neither copied nor pickled: .* call runtime.load there"
    ):
        duplicate(runtime.load(written))


def test_what_cannot_be_saved(tmp_path):
    mod, lib = colours()[0], tvm.IRModule()
    with pytest.raises(TypeError, match="save: about must be what JSON can hold"):
        runtime.save(tmp_path / "new", lib, mod, TARGET, {"by": object()})
    with pytest.raises(ValueError, match="save: TVM does not know the target 'lvm'"):
        runtime.save(tmp_path / "new", lib, mod, "lvm")
    with pytest.raises(ValueError, match=r"save_sizes: give a network .*, as \{1: \(lib, mod\)\}"):
        runtime.save_sizes(tmp_path / "new", [(lib, mod)], TARGET)
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match="save: lib must be what build_library returns, not IRModule"):
        runtime.save(tmp_path / "new", lib, mod, TARGET)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(FolderError, match=f"{place} cannot be made .*: give another folder"):
            runtime.save(place, lib, mod, TARGET)


@pytest.mark.parametrize("make", [colours()[0], bright_pixels()[0]], ids=["graph", "vm"])
@pytest.mark.parametrize(
    "compiled, given",
    [
        ("llvm", "cuda -arch=sm_90"),
        ("llvm -mcpu=skylake-avx512", "llvm"),
        ("llvm -libs=onednn", "llvm"),
    ],
)
def test_a_library_is_not_saved_for_another_target(tmp_path, make, compiled, given):
    """Which would be run where it cannot be: on a processor without its instructions, or on a GPU."""
    lib = runtime.build_library(make, compiled)
    with pytest.raises(ValueError, match=rf"save: lib was compiled for {compiled.split()[0]} .*: give the"):
        runtime.save(tmp_path, lib, make, given)
    if "-libs" not in compiled:  # the code tells the rest
        with pytest.raises(ValueError, match=r"save: lib was compiled for llvm .*, not for"):
            runtime.save(tmp_path, runtime.Model(lib).lib, make, given)
    runtime.save(tmp_path, lib, make, compiled)


def test_a_library_is_not_saved_for_another_machine(tmp_path):
    make, target = colours()[0], "llvm -mtriple=aarch64-linux-gnu"
    with pytest.raises(ValueError, match="save: the target is for aarch64-linux-gnu, and this machine has"):
        runtime.save(tmp_path / "folder", runtime.build_library(make, target), make, target)
    assert not (tmp_path / "folder").exists()


def test_a_library_is_not_saved_with_another_module(tmp_path):
    lib = runtime.build_library(bright_pixels()[0], TARGET)
    x = relay.var("x", shape=(2,))
    with pytest.raises(ValueError, match="save: lib takes image, and mod has only x: give the module that"):
        runtime.save(tmp_path, lib, module(x, x + x), TARGET)


def test_a_device_of_another_kind(written):
    with pytest.raises(FolderError, match=r"was compiled for llvm .*, not for cuda.*: leave out the device"):
        runtime.load(written, "cuda")


def test_a_network_of_dynamic_shapes(tmp_path):
    written = saved_to(tmp_path / "new" / "folder", bright_pixels()[0])
    manifest = runtime.read_manifest(written)
    assert manifest["executor"] == "vm"
    assert manifest["outputs"] == [{"name": "where", "shape": [None, 4], "dtype": "int32"}]
    np.testing.assert_array_equal(runtime.load(written)(image()), np.argwhere(image() > 0.5))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_weights_that_were_given_to_the_compiler_are_no_inputs(tmp_path, is_dynamic):
    """Else `tvm-passes run` finds no network of one image."""
    x, w = relay.var("x", shape=(relay.Any() if is_dynamic else 2, 3)), relay.var("w", shape=(3,))
    mod = relay.transform.InferType()(module(x, w, x * w))
    runtime.save(tmp_path, runtime.build_library(mod, TARGET, {"w": np.ones(3, "float32")}), mod, TARGET)
    assert [each["name"] for each in runtime.read_manifest(tmp_path)["inputs"]] == ["x"]
    assert list(runtime.load(tmp_path).inputs) == ["x"]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_weights_are_in_a_file_of_their_own(tmp_path, is_dynamic):
    x = relay.var("x", shape=(relay.Any() if is_dynamic else 2, 1000))
    weights = np.random.default_rng(0).random(1000, "float32")
    mod = relay.transform.InferType()(module(x, x * relay.const(weights)))
    lib = runtime.build_library(mod, TARGET)
    runtime.save(tmp_path, lib, mod, TARGET)
    assert (tmp_path / PARAMETERS).stat().st_size > weights.nbytes
    assert weights.tobytes() not in (tmp_path / LIBRARY).read_bytes()
    data = np.ones((2, 1000), "float32")
    np.testing.assert_array_equal(runtime.load(tmp_path)(data), data * weights)
    np.testing.assert_array_equal(runtime.Model(lib, "cpu")(data), data * weights)  # which saving left whole


def test_padded_detections_are_cut(tmp_path):
    number = relay.var("number", shape=(), dtype="int32")
    rows = relay.const(np.arange(10, dtype="float32").reshape(5, 2))
    function = relay.Function([number], relay.Tuple([rows, number + relay.const(1)]))
    function = function.with_attr("output_names", ["rows", "number"])
    function = function.with_attr("padded_rows", [[0, 0]])
    saved_to(tmp_path, tvm.IRModule.from_expr(function))
    found = runtime.load(tmp_path, cut=True)(np.array(2, "int32"))
    np.testing.assert_array_equal(found, np.arange(6).reshape(3, 2))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "network.onnx").touch()
    with pytest.raises(FolderError, match=r"network.onnx is a file: give a folder that was compiled to"):
        runtime.load(tmp_path / "network.onnx")


@pytest.mark.parametrize("name", [LIBRARY, PARAMETERS])
def test_files_that_were_changed(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(FolderError, match=f"{name} is not the file that was written there: compile again"):
        runtime.load(folder)


@pytest.mark.parametrize("name", [LIBRARY, PARAMETERS, MANIFEST])
def test_files_that_are_missing(folder, name):
    (folder / name).unlink()
    with pytest.raises(FolderError, match=f"{folder} has no {name}: "):
        runtime.load(folder)


def test_a_library_that_the_manifest_does_not_name(folder):
    rewrite(folder, forge=True, files={})
    with pytest.raises(FolderError, match="is not the file that was written there"):
        runtime.load(folder)


@pytest.mark.parametrize(
    "change", [{"target": "llvm -mcpu=skylake"}, {"padded_rows": [[0, 0]]}, {"about": {}}, {"sha256": "0"}]
)
def test_a_manifest_that_was_changed(folder, change):
    rewrite(folder, **change)
    with pytest.raises(FolderError, match="was changed after it was written: compile again"):
        runtime.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"manifest"', "\0", "[" * 100_000], ids=len)
def test_a_manifest_that_is_none(folder, text):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(
        FolderError, match=f"{MANIFEST} (is not the manifest|cannot be read).*: compile again"
    ):
        runtime.load(folder)


def test_a_manifest_of_another_format(folder):
    rewrite(folder, format=9)
    with pytest.raises(FolderError, match="has the format 9, and this version reads 1 and 2: compile again"):
        runtime.load(folder)


def test_the_other_tvm(folder):
    rewrite(folder, forge=True, dialect="relax")
    with pytest.raises(FolderError, match=r"by a TVM with Relax, .* Relay: set TVM_PASSES_IR=relax"):
        runtime.load(folder)


def test_a_folder_from_before_there_were_two_tvms(folder):
    manifest = runtime.read_manifest(folder)
    del manifest["dialect"], manifest["sha256"]
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    runtime.load(folder)


def test_what_is_loaded_is_what_the_folder_has(tmp_path):
    """Though an earlier library of the folder is loaded still."""
    x = relay.var("x", shape=(2, 3))
    array, models = np.ones((2, 3), "float32"), []
    for sign in (1.0, -1.0):
        mod = module(x, relay.exp(x) * relay.const(sign))
        runtime.save(tmp_path, runtime.build_library(mod, "llvm"), mod, "llvm")
        models.append(runtime.load(tmp_path))
    for model, sign in zip(models, (1.0, -1.0)):
        np.testing.assert_allclose(model(array), sign * np.exp(array), rtol=1e-6)


def test_the_version_is_that_of_the_distribution():
    assert tvm_passes.__version__ == importlib.metadata.version("tvm-vision-passes")


@pytest.mark.parametrize("name", ["TVM", "tvm-vision-passes"])
def test_other_versions(folder, name):
    versions = runtime.read_manifest(folder)["versions"]
    rewrite(folder, forge=True, versions={**versions, name: "0.0.9"})
    with pytest.raises(FolderError, match=f"compiled with {name} 0.0.9, and this is {versions[name]}"):
        runtime.load(folder)


def test_another_machine(folder):
    rewrite(folder, forge=True, machine="sparc64")
    with pytest.raises(FolderError, match=f"this machine is {platform.machine()}: compile for this one"):
        runtime.load(folder)


def test_instructions_that_this_machine_lacks(folder, monkeypatch):
    rewrite(folder, forge=True, target="llvm -mcpu=skylake-avx512")
    monkeypatch.setattr("tvm_passes.runtime.runs_here._features_here", lambda: {"sse3", "avx", "avx2"})
    with pytest.raises(FolderError, match=r"this machine lacks .*avx512f"):
        runtime.load(folder)


def test_instructions_that_this_machine_has(folder):
    rewrite(folder, forge=True, target="llvm -mattr=+sse2,+sse3")
    assert runtime.load(folder)(image())["labels"].shape == (3,)


def of_onednn(folder):
    """A network of one convolution, by oneDNN: what it computes, of ones."""
    x = relay.var("x", shape=(relay.Any(), 5, 6, 8))
    weight = relay.const(np.ones((4, 1, 1, 8), "float32"))
    return saved_to(folder, module(x, topi_ext.conv2d_nhwc(x, weight)), "llvm -libs=onednn")


@pytest.mark.skipif(onednn.library() is None, reason="oneDNN is not installed")
def test_of_onednn_in_a_new_process(tmp_path):
    code = (
        "import sys, numpy, tvm_passes; model = tvm_passes.runtime.load(sys.argv[1]); "
        "assert (model(numpy.ones((2, 5, 6, 8), 'float32')) == 8).all()"
    )
    subprocess.run([sys.executable, "-c", code, of_onednn(tmp_path)], check=True)


@pytest.mark.skipif(onednn.library() is None, reason="oneDNN is not installed")
def test_of_onednn_where_it_is_missing(tmp_path, monkeypatch):
    folder = of_onednn(tmp_path)
    monkeypatch.setattr(onednn, "library", lambda: None)
    with pytest.raises(FolderError, match="oneDNN is missing here: pip install onednn-cpu-gomp, or compile"):
        runtime.load(folder)


def test_a_device_that_is_not_here(folder):
    if tvm.cuda(0).exist:
        pytest.skip("there is a GPU")
    rewrite(folder, forge=True, target="cuda -arch=sm_90")
    with pytest.raises(FolderError, match="there is no such device here: compile for llvm"):
        runtime.load(folder)


@pytest.mark.gpu
def test_another_gpu(folder):
    rewrite(folder, forge=True, target="cuda -arch=sm_52")
    with pytest.raises(FolderError, match='compile for "cuda -arch=sm_'):
        runtime.load(folder)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    target = f"cuda -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    model = runtime.load(saved_to(tmp_path, colours()[0], target))
    np.testing.assert_allclose(model(image())["scores"], image().mean(axis=(0, 2, 3)), rtol=1e-4)


def test_outputs_that_are_no_tensors(tmp_path):
    x = relay.var("x", shape=(2,))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.Tuple([x, relay.Tuple([x, x])])))
    with pytest.raises(FolderError, match=r"output1 is of type .*, and only tensors can be saved"):
        saved_to(tmp_path, mod)
