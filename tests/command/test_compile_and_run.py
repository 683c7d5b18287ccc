"""`tvm-passes compile` writes a folder; `tvm-passes run` draws what is found in an image, or made of it."""

import itertools
import json
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco

from frontends import Camera
from tests.command.networks import HERE, SIZE, upscaler, write_onnx
from tests.models.zoo import random_image, tiny_detector
from topi_ext import cpu_target
from tvm_passes import runtime
from tvm_passes.command import progress
from tvm_passes.command.draw import detections_in, draw_detections
from tvm_passes.command.images import ImageInput, image_of
from tvm_passes.command.models import SEED, TorchModel, TvmModel
from tvm_passes.command.pipelines import prepare
from tvm_passes_cli.options import parser

import tvm
from tvm import relay

HEIGHT, WIDTH = SIZE
UPSCALER, COLOURS = f"{HERE}:upscaler_and_image", f"{HERE}:colours"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled(folders, tvm_passes_command):
    """A function that compiles a model, if no test before did, and gives its folder."""

    def compile(model, *options):
        folder = folders / "".join(filter(str.isalnum, "".join(map(str, (model, *options)))))
        if not folder.exists():
            answer = tvm_passes_command("compile", model, "-o", folder, *options)
            assert answer.status == 0, answer.err
            assert f"tvm-passes run {folder}" in answer.err
        return folder

    return compile


def test_what_is_said_to_be_typed_next_can_be(tvm_passes_command, tmp_path):
    folder = tmp_path / "my network"
    answer = tvm_passes_command("compile", COLOURS, "-o", folder)
    *_, typed = answer.err.strip().split("run it by: tvm-passes ")
    assert shlex.split(typed) == ["run", str(folder), "--image", "image.png", "-o", "out.png"]


@pytest.fixture
def photo(tmp_path):
    """A function that writes an image, and gives its path."""

    def write(values, name="photo.png"):
        Image.fromarray(np.asarray(values, "uint8")).save(tmp_path / name)
        return tmp_path / name

    return write


def plain(red, green, blue, height=HEIGHT, width=WIDTH):
    return np.full((height, width, 3), (red, green, blue))


def noise(height=HEIGHT, width=WIDTH):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3))


def test_a_network_that_makes_a_image(tvm_passes_command, compiled, photo, tmp_path):
    values = noise()
    out = tmp_path / "out.png"
    answer = tvm_passes_command("run", compiled(UPSCALER), "--image", photo(values), "-o", out)
    assert answer.status == 0, answer.err
    torch.manual_seed(SEED)
    with torch.no_grad():
        expected = upscaler()(torch.from_numpy(values.transpose(2, 0, 1)[None] / 255).float())[0]
    found = np.asarray(Image.open(out))
    assert found.shape == (2 * HEIGHT, 2 * WIDTH, 3)
    np.testing.assert_allclose(found.transpose(2, 0, 1), 255 * expected.numpy(), atol=0.51)


def test_detections_as_a_table_and_as_json(tvm_passes_command, compiled, photo):
    arguments = "run", compiled(COLOURS), "--image", photo(plain(255, 51, 204))
    answer = tvm_passes_command(*arguments)
    assert [line.split("│")[1:3] for line in answer.out.splitlines() if "│" in line] == [
        [" 0     ", " 1.000 "],
        [" 2     ", " 0.800 "],
    ]
    assert "2 of 3 detections have a score of 0.5 or more" in answer.err
    found = json.loads(tvm_passes_command(*arguments, "--json", "--score", "0.1").out)
    assert [each["label"] for each in found] == ["0", "2", "1"]
    assert found[2]["score"] == pytest.approx(0.2, abs=1e-5) and found[2]["box"] == [6, 8, 30, 20]


def test_detections_are_drawn(tvm_passes_command, compiled, photo, tmp_path):
    grey, out = plain(200, 100, 100), tmp_path / "out.png"
    answer = tvm_passes_command("run", compiled(COLOURS), "--image", photo(grey), "-o", out)
    assert answer.status == 0, answer.err
    differs = (np.asarray(Image.open(out)) != grey).any(axis=2)
    assert differs[14, 2:13].all() and differs[3:15, 12].all()  # the lower and the right side of the box
    assert not differs[16:].any()  # neither of the other boxes


def test_masks_are_drawn_in_every_form(tvm_passes_command, compiled, photo, tmp_path):
    """Raw ones are scaled by another rule, but to the same boxes."""
    grey, drawn = plain(200, 200, 200), {}
    for form in ("pasted", "encoded", "raw"):
        folder, out = compiled(f"{HERE}:colours_with_masks", "--masks", form), tmp_path / f"{form}.png"
        answer = tvm_passes_command("run", folder, "--image", photo(grey), "-o", out)
        assert answer.status == 0, answer.err
        drawn[form] = np.asarray(Image.open(out))
    assert (drawn["pasted"] != grey).any(axis=2).mean() > 0.2
    np.testing.assert_array_equal(drawn["encoded"], drawn["pasted"])
    assert (drawn["raw"] != grey).any()


def test_encoded_masks_in_a_file(tvm_passes_command, compiled, photo, tmp_path):
    folder, out = compiled(f"{HERE}:colours_with_masks", "--masks", "encoded"), tmp_path / "out.npz"
    tvm_passes_command("run", folder, "--image", photo(noise()), "-o", out)
    with np.load(out) as found:
        areas = [coco.area(mask) for mask in runtime.coco_masks(found["masks"], SIZE)]
    assert len(areas) == 3 and all(0 < area < HEIGHT * WIDTH for area in areas)


def test_names_of_labels(tvm_passes_command, compiled, photo, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\n")
    arguments = "run", compiled(COLOURS), "--image", photo(plain(255, 255, 255)), "--labels", names
    found = json.loads(tvm_passes_command(*arguments, "--json").out)
    assert sorted(each["label"] for each in found) == ["2", "green", "red"]


def test_another_size_of_image(tvm_passes_command, compiled, photo):
    arguments = "run", compiled(COLOURS), "--image", photo(plain(255, 0, 0, 2 * HEIGHT, 4 * WIDTH)), "--json"
    refused = tvm_passes_command(*arguments)
    assert refused.status == 1
    assert f"is 48x128, and {compiled(COLOURS)} was compiled for images of 24x32" in refused.error
    (found,) = json.loads(tvm_passes_command(*arguments, "--resize").out)
    assert found["box"] == [8, 6, 48, 28]  # in pixels of the image as it was


def test_all_outputs_in_a_file(tvm_passes_command, compiled, photo, tmp_path):
    out = tmp_path / "out.npz"
    values = noise()
    tvm_passes_command("run", compiled(COLOURS), "--image", photo(values), "-o", out)
    with np.load(out) as found:
        assert sorted(found) == ["boxes", "labels", "scores"]
        np.testing.assert_allclose(found["scores"], values.mean(axis=(0, 1)) / 255, rtol=1e-5)


def test_outputs_that_are_no_image(tvm_passes_command, compiled, photo, tmp_path):
    folder, values = compiled(f"{HERE}:bright_pixels"), noise()
    answer = tvm_passes_command("run", folder, "--image", photo(values))
    assert answer.status == 1 and "give -o OUT.npz" in answer.error
    out = tmp_path / "out.npz"
    tvm_passes_command("run", folder, "--image", photo(values), "-o", out)
    with np.load(out) as found:
        expected = np.argwhere(values.transpose(2, 0, 1)[None] / 255 > 0.5)
        np.testing.assert_array_equal(found["where"], expected)


def test_a_camera_takes_pixels(tvm_passes_command, compiled, photo, tmp_path):
    folder = compiled(UPSCALER, "--camera", f"{HEIGHT}x{WIDTH}:BGR")
    values, out = noise(), tmp_path / "out.png"
    tvm_passes_command("run", folder, "--image", photo(values), "-o", out)
    other = tmp_path / "other.png"
    tvm_passes_command("run", compiled(UPSCALER), "--image", photo(values), "-o", other)
    found, expected = (np.asarray(Image.open(path)).astype("int32") for path in (out, other))
    np.testing.assert_allclose(found, expected, atol=1)


def test_an_onnx_file(tvm_passes_command, compiled, photo, tmp_path):
    model = write_onnx(tmp_path / "network.onnx", "Relu", "Neg", "Relu")
    out = tmp_path / "black.png"
    tvm_passes_command("run", compiled(model), "--image", photo(noise()), "-o", out)
    assert not np.asarray(Image.open(out)).any()


def test_for_this_machine(tvm_passes_command, compiled, photo):
    folder = compiled(COLOURS, "--target", "native")
    assert json.loads((folder / "manifest.json").read_text())["target"] == str(cpu_target())
    (found,) = json.loads(tvm_passes_command("run", folder, "--image", photo(plain(0, 255, 0)), "--json").out)
    assert found["label"] == "1"


def test_several_batch_sizes(tvm_passes_command, compiled, photo, tmp_path):
    folder, images = tmp_path / "sizes", []
    with pytest.MonkeyPatch.context() as patch:  # steps of a moment are not shown
        patch.setattr(progress, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
        answer = tvm_passes_command("compile", UPSCALER, "-o", folder, "--batch", "2,1")
    assert answer.status == 0, answer.err
    for size in ("1 image", "2 images"):
        for shown in (f"Import {UPSCALER} for {size}: ", f"{UPSCALER} for {size}: Compile for native: "):
            assert f"\n{shown}" in answer.err
    assert runtime.read_manifest(folder)["about"]["model"] == UPSCALER
    for number, each in enumerate((folder, compiled(UPSCALER))):
        out = tmp_path / f"{number}.png"
        answer = tvm_passes_command("run", each, "--image", photo(noise()), "-o", out)
        assert answer.status == 0, answer.err
        images.append(np.asarray(Image.open(out)))
    np.testing.assert_array_equal(*images)
    batch = np.random.default_rng(0).random((2, 3, *SIZE), "float32")
    models = runtime.load_sizes(folder)
    one = np.concatenate([models[1](image[None]) for image in batch])
    np.testing.assert_allclose(models[2](batch), one, rtol=1e-5, atol=1e-6)


def test_a_batch_size_without_one_image(tvm_passes_command, photo, tmp_path):
    model = write_onnx(tmp_path / "network.onnx", "Relu")
    answer = tvm_passes_command("compile", model, "-o", tmp_path / "two", "--batch", "2")
    assert answer.status == 0 and "tvm-passes detect photos" in answer.err
    assert runtime.read_manifest(tmp_path / "two", batch=2)["inputs"][0]["shape"] == [2, 3, *SIZE]
    answer = tvm_passes_command("run", tmp_path / "two", "--image", photo(noise()))
    assert answer.status == 1
    assert "batches of 2, not for one image: use tvm-passes detect, or compile with" in answer.error


@pytest.mark.parametrize("camera, shapes", [(None, [(3, *SIZE)] * 3), (Camera(*SIZE), [(3, 3, *SIZE)])])
def test_a_detector_takes_a_list_of_images_or_those_of_a_camera(camera, shapes):
    detector = TorchModel("detector", tiny_detector(), (torch.rand(3, *SIZE),), camera)
    of_three = detector.in_batches_of(3)
    assert [tuple(tensor.shape) for tensor in of_three.inputs] == shapes
    assert of_three.camera == (camera and Camera(*SIZE, batch=3))


def test_a_folder_is_written_again_but_no_other_files(tvm_passes_command, compiled, tmp_path):
    folder = compiled(COLOURS)
    assert tvm_passes_command("compile", COLOURS, "-o", folder).status == 0
    (tmp_path / "letter.txt").write_text("")
    answer = tvm_passes_command("compile", COLOURS, "-o", tmp_path)
    assert answer.status == 1 and "contains other files" in answer.error
    answer = tvm_passes_command("compile", COLOURS, "-o", tmp_path / "letter.txt")
    assert answer.status == 1 and "is a file" in answer.error


@pytest.mark.slow
def test_a_detector_finds_what_torch_finds(tvm_passes_command, compiled, photo):
    folder = compiled("tests.models.zoo:tiny_detector", "--size", "96x128")
    values = (random_image(96, 128).permute(1, 2, 0) * 255).round().numpy()
    arguments = "run", folder, "--image", photo(values), "--score", "0", "--json"
    found = json.loads(tvm_passes_command(*arguments).out)
    with torch.no_grad():
        (expected,) = tiny_detector()([torch.from_numpy(values / 255).permute(2, 0, 1).float()])
    assert len(found) == len(expected["boxes"]) > 10
    np.testing.assert_allclose([each["score"] for each in found], expected["scores"], atol=1e-4)
    np.testing.assert_allclose([each["box"] for each in found], expected["boxes"], atol=2e-2)
    assert [int(each["label"]) for each in found] == expected["labels"].tolist()


# --- images and drawings


@pytest.mark.parametrize(
    "shape, dtype, layout",
    [
        ((1, 3, 4, 5), "float32", "NCHW"),
        ((3, 4, 5), "float16", "CHW"),
        ((1, 1, None, None), "float32", "NCHW"),
        ((1, 4, 5, 3), "uint8", "NHWC"),
    ],
)
def test_inputs_that_are_images(shape, dtype, layout):
    found = ImageInput.of(shape, dtype)
    assert found.layout == layout and found.dtype == dtype
    array = found.array(Image.new("RGB", (5, 4), (255, 255, 255)))
    assert array.dtype == dtype and array.flags.c_contiguous
    assert all(length in (None, given) for length, given in zip(shape, array.shape))
    assert array.max() == (255 if dtype == "uint8" else 1)


@pytest.mark.parametrize(
    "shape, dtype",
    [((2, 3, 4, 5), "float32"), ((1, 64, 4, 5), "float32"), ((1, 3, 4, 5), "int64"), ((5,), "float32")],
)
def test_inputs_that_are_none(shape, dtype):
    assert ImageInput.of(shape, dtype) is None


def test_luminance_gets_the_colours_of_the_image():
    original = Image.new("RGB", (4, 4), (200, 40, 40))
    luminance = np.asarray(original.convert("YCbCr"))[:, :, 0].astype("float32")
    made = image_of((luminance / 255).repeat(2, 0).repeat(2, 1)[None, None], original)
    assert made.size == (8, 8)
    np.testing.assert_allclose(np.asarray(made), np.asarray(original.resize((8, 8))), atol=2)


def test_detections_by_type_where_names_do_not_tell():
    boxes, labels, scores = np.zeros((5, 4), "float32"), np.zeros(5, "int64"), np.zeros(5, "float32")
    found = detections_in({"6570": boxes, "6572": labels, "6887": scores})
    assert found["boxes"] is boxes and found["labels"] is labels and found["scores"] is scores
    assert detections_in({"a": boxes, "b": labels, "c": scores, "d": scores}) is None
    assert detections_in({"image": np.zeros((1, 3, 4, 4), "float32")}) is None


def test_a_module_of_the_users_own_stays_as_it_is():
    x, w = relay.var("x", shape=(2,)), relay.var("w", shape=(2,))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], x + w))
    model = TvmModel("a module", mod, {"w": tvm.nd.array(np.ones(2, "float32"))})
    work = prepare(parser().parse_args(["inspect", COLOURS]), model)
    assert [len(each["main"].params) for each in (work.mod, mod)] == [1, 2]


@pytest.mark.parametrize("side", ["pasted", "of its box"])
def test_masks_cover_what_they_are_of(side):
    original = Image.new("RGB", (100, 80), (0, 0, 0))
    box = np.float32([[20, 10, 60, 50]])
    mask = np.zeros((1, 1, 80, 100), "float32") if side == "pasted" else np.ones((1, 1, 28, 28), "float32")
    if side == "pasted":
        mask[:, :, 10:50, 20:60] = 1
    found = {"boxes": box, "scores": np.float32([0.9]), "labels": np.int64([1]), "masks": mask}
    drawn = np.asarray(draw_detections(original, found)).any(axis=2)
    assert drawn[12:48, 22:58].all()
    assert not drawn[:, :18].any() and not drawn[53:].any() and not drawn[:, 63:].any()


def test_boxes_that_are_not_numbers_are_drawn_somewhere():
    wild = np.float32([[np.nan, np.inf, -np.inf, 5], [30, 30, 10, 10], [-1e30, 0, 1e30, 3]])
    found = {"boxes": wild, "scores": np.float32([0.9] * 3), "labels": np.int64([-1, 0, 10**6])}
    assert draw_detections(Image.new("RGB", (40, 40)), found, ["one"]).size == (40, 40)


@pytest.mark.gpu
def test_on_a_gpu(tvm_passes_command, compiled, photo, tmp_path):
    target = f"cuda -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    values, images = noise(), []
    for name, options in (("cpu.png", ()), ("gpu.png", ("--target", target, "--dtype", "float32"))):
        folder = compiled(UPSCALER, *options)
        tvm_passes_command("run", folder, "--image", photo(values), "-o", tmp_path / name)
        images.append(np.asarray(Image.open(tmp_path / name)).astype("int32"))
    np.testing.assert_allclose(*images, atol=1)
