"""Folders of networks for several batch sizes: equal weights are there once, on disk and in memory."""

import shutil

import numpy as np
import pytest

from tests.command.networks import SIZE, bright_pixels
from tests.helpers import module
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tvm_passes import runtime
from tvm_passes.runtime import FolderError
from tvm_passes.runtime.manifest import MANIFEST, PARAMETERS, library_of

import tvm
from tvm import relay

LENGTH = 1000
WEIGHTS = np.random.default_rng(0).random((2, LENGTH), "float32")


def network(batch, is_dynamic=False):
    """It also returns one of its weights, and one that differs from batch to batch."""
    x = relay.var("x", shape=(batch, relay.Any() if is_dynamic else LENGTH))
    common, own = relay.const(WEIGHTS[0]), relay.const(batch * WEIGHTS[1])
    mod = module(x, relay.Tuple([x * common + own, common, own]))
    mod["main"] = mod["main"].with_attr("output_names", ["result", "common", "own"])
    return relay.transform.InferType()(mod)


def save_sizes(folder, *sizes, target="llvm", **options):
    networks = {size: network(size, **options) for size in sizes}
    built = {size: (runtime.build_library(mod, target), mod) for size, mod in networks.items()}
    runtime.save_sizes(folder, built, target, {"by": "a test"})
    return folder


@pytest.fixture(scope="module", params=["graph", "vm"])
def written(request, tmp_path_factory):
    return save_sizes(tmp_path_factory.mktemp(request.param), 1, 3, is_dynamic=request.param == "vm")


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(written, tmp_path / "copy")


def outputs_of(model, batch):
    """Of ones, in TVM's own arrays, which are in the memory in which they were found."""
    return model(tvm.nd.array(np.ones((batch, LENGTH), "float32"), model.device))


def address(array):
    return array.handle.contents.data


def test_each_size_computes_the_same(written):
    models = runtime.load_sizes(written)
    assert list(models) == [1, 3]
    for size, model in models.items():
        assert [each.shape[0] for each in model.inputs.values()] == [size]
        found = outputs_of(model, size)
        assert found["result"].shape == (size, LENGTH)
        np.testing.assert_allclose(found["result"].numpy()[-1], WEIGHTS[0] + size * WEIGHTS[1], rtol=1e-6)


def test_equal_weights_are_one_tensor(written):
    one, three = (
        outputs_of(model, size) for size, model in runtime.load_sizes(written, copy_outputs=False).items()
    )
    assert address(one["common"]) == address(three["common"])
    assert address(one["own"]) != address(three["own"])


def test_equal_weights_are_stored_once(written):
    stored = tvm.runtime.load_param_dict((written / PARAMETERS).read_bytes())
    assert sorted(array.numpy()[0] for array in stored.values()) == pytest.approx(
        sorted([WEIGHTS[0, 0], WEIGHTS[1, 0], 3 * WEIGHTS[1, 0]])
    )
    assert (written / PARAMETERS).stat().st_size < 4 * WEIGHTS[0].nbytes
    manifest = runtime.read_manifest(written)
    assert manifest["about"] == {"by": "a test"} and list(manifest["sizes"]) == ["1", "3"]
    assert {name for each in manifest["sizes"].values() for name in each["weights"].values()} == set(stored)


def test_one_of_the_sizes(written):
    assert outputs_of(runtime.load(written, batch=3), 3)["result"].shape == (3, LENGTH)
    manifest = runtime.read_manifest(written, batch=3)
    assert manifest["inputs"][0]["shape"][0] == 3 and manifest["about"] == {"by": "a test"}
    with pytest.raises(FolderError, match="compiled for batches of 1, 3: give batch=, or use load_sizes"):
        runtime.load(written)
    for ask in (runtime.load, runtime.read_manifest):
        with pytest.raises(FolderError, match="compiled for batches of 1, 3, not 2: give one of these"):
            ask(written, batch=2)


def test_a_single_size(tmp_path):
    folder = save_sizes(tmp_path, 3)
    assert outputs_of(runtime.load(folder), 3)["result"].shape == (3, LENGTH)
    assert list(runtime.load_sizes(folder)) == [3]


def test_a_folder_without_sizes(tmp_path):
    mod = network(3)
    runtime.save(tmp_path, runtime.build_library(mod, "llvm"), mod, "llvm")
    with pytest.raises(FolderError, match="was not compiled for batch sizes: leave out batch=3"):
        runtime.load(tmp_path, batch=3)
    with pytest.raises(FolderError, match="was not compiled for batch sizes: use load"):
        runtime.load_sizes(tmp_path)


def test_a_network_without_weights_beside_one_with(tmp_path):
    mods = {1: bright_pixels()[0], 3: network(3, is_dynamic=True)}
    runtime.save_sizes(
        tmp_path, {size: (runtime.build_library(mod, "llvm"), mod) for size, mod in mods.items()}, "llvm"
    )
    image = np.zeros((1, 3, *SIZE), "float32")
    assert runtime.load(tmp_path, batch=1)(image).shape == (0, 4)
    for wrong in ({}, {0: None}, {True: None}, {2: None}, {2: (None,)}):
        with pytest.raises(ValueError, match="give a network for at least one batch size"):
            runtime.save_sizes(tmp_path, wrong, "llvm")


@pytest.mark.parametrize("name", [library_of(1), library_of(3), PARAMETERS])
def test_files_that_were_changed_or_are_missing(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(FolderError, match=f"{name} is not the file that was written there: compile again"):
        runtime.load(folder, batch=1)
    (folder / name).unlink()
    with pytest.raises(FolderError, match=f"has no {name}: compile again"):
        runtime.load_sizes(folder)


def test_libraries_that_were_mixed_up(folder):
    one, three = folder / library_of(1), folder / library_of(3)
    one.write_bytes(three.read_bytes())
    with pytest.raises(FolderError, match="is not the file that was written there"):
        runtime.load(folder, batch=3)


def test_a_manifest_that_was_changed(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"3"', '"4"'))
    with pytest.raises(FolderError, match="was changed after it was written: compile again"):
        runtime.load(folder, batch=4)


def test_a_folder_that_is_written_again(tmp_path):
    """Libraries of sizes that it has no more are removed, and no file of anybody else."""
    (tmp_path / library_of(7)).write_text("")
    save_sizes(tmp_path, 1, 3)
    save_sizes(tmp_path, 3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([library_of(3), library_of(7), MANIFEST, PARAMETERS])


def test_saving_leaves_libraries_whole(tmp_path):
    for is_dynamic in (False, True):
        mod = network(2, is_dynamic)
        lib = runtime.build_library(mod, "llvm")
        runtime.save_sizes(tmp_path, {2: (lib, mod)}, "llvm")
        found = runtime.Model(lib)(np.ones((2, LENGTH), "float32"))
        np.testing.assert_array_equal(found[list(found)[1]], WEIGHTS[0])


# --- weights that are not copied


def test_a_model_has_weights_of_its_own_unless_it_is_told():
    lib = runtime.build_library(network(2), "llvm").module
    weights = {address(array) for array in lib["get_graph_params"]().values()}
    for copy_weights in (True, False):
        model = runtime.Model(lib, copy_outputs=False, copy_weights=copy_weights)
        found = [address(array) for array in list(outputs_of(model, 2).values())[1:]]
        assert weights.isdisjoint(found) if copy_weights else weights == set(found)


def test_weights_that_are_on_another_device_are_copied(emulated_cuda, fake_cuda):  # noqa: F811
    lib = runtime.build_library(network(2), emulated_cuda.target).module
    graph, code, weights = lib["get_graph_json"](), lib.imported_modules[0], lib["get_graph_params"]()
    on_device = {name: array.copyto(emulated_cuda.device) for name, array in weights.items()}
    create = tvm.get_global_func("tvm.graph_executor_factory.create")
    there = create(graph, code, "default", *(part for pair in on_device.items() for part in pair))
    for module_, is_shared in ((lib, False), (there, True)):
        options = {"copy_outputs": False, "copy_weights": False, "cuda_graph": False}
        model = runtime.Model(module_, emulated_cuda.device, **options)
        result, *found = outputs_of(model, 2).values()
        assert ({*map(address, found)} == {*map(address, on_device.values())}) == is_shared
        np.testing.assert_allclose(result.numpy()[1], WEIGHTS[0] + 2 * WEIGHTS[1], rtol=1e-6)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    """Two sizes take the memory of the weights once."""
    target = f"cuda -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    models = runtime.load_sizes(save_sizes(tmp_path, 1, 3, target=target), copy_outputs=False)
    one, three = (outputs_of(model, size) for size, model in models.items())
    assert address(one["common"]) == address(three["common"])
    np.testing.assert_allclose(three["result"].numpy()[2], WEIGHTS[0] + 3 * WEIGHTS[1], rtol=1e-6)
