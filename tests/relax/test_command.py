"""`tvm-passes compile` and `run` by the TVM with Relax."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from torch import nn

from tests.command.conftest import tvm_passes_command  # noqa: F401  (a fixture)
from tvm_passes import runtime
from tvm_passes.command.models import SEED
from tvm_passes.command.work import target_of
from tvm_passes.runtime.manifest import MANIFEST

import tvm

HERE = __name__
SIZE = 24, 32


def upscaler():
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.Sigmoid())


def upscaler_and_image():
    return upscaler(), torch.rand(1, 3, *SIZE)


class Colours(nn.Module):
    """Each colour of an image is found, with its mean as score, in a box of its own."""

    def forward(self, image):
        boxes = torch.tensor([[2.0, 3, 12, 14], [6, 8, 30, 20], [0, 0, 31, 23]])
        return {"boxes": boxes, "scores": image.mean((0, 2, 3)), "labels": torch.arange(3)}


def colours_and_image():
    return Colours(), torch.rand(1, 3, *SIZE)


def photo(folder, height, width):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype("uint8")
    Image.fromarray(values).save(folder / "photo.png")
    return folder / "photo.png", values


def test_a_network_that_makes_an_image(tvm_passes_command, tmp_path):  # noqa: F811
    folder, out = tmp_path / "folder", tmp_path / "out.png"
    answer = tvm_passes_command("compile", f"{HERE}:upscaler_and_image", "-o", folder)
    assert answer.status == 0, answer.err
    assert "Pipeline: convolution, for native" in answer.err and f"tvm-passes run {folder}" in answer.err
    path, values = photo(tmp_path, *SIZE)
    answer = tvm_passes_command("run", folder, "--image", path, "-o", out)
    assert answer.status == 0, answer.err
    torch.manual_seed(SEED)
    with torch.no_grad():
        expected = upscaler()(torch.from_numpy(values.transpose(2, 0, 1)[None] / 255).float())[0]
    np.testing.assert_allclose(
        np.asarray(Image.open(out)).transpose(2, 0, 1), 255 * expected.numpy(), atol=0.51
    )


def test_an_onnx_file(tvm_passes_command, tmp_path):  # noqa: F811
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, "height", "width"])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [1, 3, "height", "width"])
    node = helper.make_node("Sqrt", ["image"], ["result"])
    onnx.save(
        helper.make_model(helper.make_graph([node], "brighter", [image], [result])), tmp_path / "sqrt.onnx"
    )
    arguments = "compile", tmp_path / "sqrt.onnx", "-o", tmp_path / "folder"
    path, values = photo(tmp_path, *SIZE)
    for sizes in ([], ["--size", "24x32"]):  # of any image, or of one size
        answer = tvm_passes_command(*arguments, *sizes)
        assert answer.status == 0, answer.err
        answer = tvm_passes_command("run", tmp_path / "folder", "--image", path, "-o", tmp_path / "out.png")
        assert answer.status == 0, answer.err
        found = np.asarray(Image.open(tmp_path / "out.png"))
        np.testing.assert_allclose(found, 255 * np.sqrt(values / 255), atol=0.51)
    answer = tvm_passes_command(*arguments, "--size", "24x32", "--batch", "2")
    assert answer.status == 0, answer.err


def test_a_detector(tvm_passes_command, tmp_path):  # noqa: F811
    folder, target = tmp_path / "folder", '{"kind": "llvm", "opt-level": 0}'
    answer = tvm_passes_command("compile", f"{HERE}:colours_and_image", "-o", folder, "--target", target)
    assert answer.status == 0, answer.err
    path, values = photo(tmp_path, *SIZE)
    answer = tvm_passes_command("run", folder, "--image", path, "--json", "--score", "0")
    found = {each["label"]: each for each in json.loads(answer.out)}
    assert found["1"]["box"] == [6, 8, 30, 20]
    means = values.mean((0, 1)) / 255
    np.testing.assert_allclose([found[label]["score"] for label in "012"], means, rtol=1e-4)
    about = runtime.read_manifest(folder)["about"]
    assert about["pipeline"] == "convolution" and about["model"] == f"{HERE}:colours_and_image"


def test_inspect_says_what_each_pass_did(tvm_passes_command, tmp_path):  # noqa: F811
    page, arguments = tmp_path / "page.html", ("inspect", f"{HERE}:upscaler_and_image", "--target", "llvm")
    answer = tvm_passes_command(*arguments, "--graph", page)
    assert answer.status == 0, answer.err
    assert "No NMS; 1 convolutions and products in float32." in answer.out
    (row,) = (line for line in answer.out.splitlines() if "WithBias" in line)
    assert [cell.strip() for cell in row.split("│")[1:3]] == ["WithBias", "1"]
    found = json.loads(tvm_passes_command(*arguments, "--json").out)
    before, after = found["operators"]["before"], found["operators"]["after"]
    assert before["nn.conv2d"] == after["topi_ext.conv2d_nhwc"] == 1
    assert "topi_ext.conv2d_nhwc" not in before and "nn.conv2d" not in after
    (fused,) = (each for each in found["passes"] if each["name"] == "FuseConv2dNHWC")
    assert [each["rule"] for each in fused["rewrites"]] == [
        "OfConv2d",
        "WithBias",
        "WithShuffle",
        "WithActivation",
    ]
    assert fused["nodes"]["removed"] and all(each["location"] for each in fused["rewrites"])
    assert '"topi_ext.conv2d_nhwc"' in page.read_text(encoding="utf-8")


def test_profile_times_each_kernel(tvm_passes_command, tmp_path):  # noqa: F811
    table, target = tmp_path / "kernels.csv", '{"kind": "llvm", "opt-level": 0}'
    arguments = "profile", f"{HERE}:upscaler_and_image", "--target", target, "--csv", table, "--json"
    answer = tvm_passes_command(*arguments, "--compare", "torch")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert list(found["call_ms"]) == ["before", "after", "torch, eager"]
    (convolution,) = (each for each in found["kernels"]["after"] if each["name"] == "conv2d_nhwc")
    assert convolution["kind"] == "convolution" and convolution["ms"] > 0
    assert convolution["shapes"].startswith("float32[1, 24, 32, 3], float32[12, 3, 3, 3]")
    rows = table.read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + sum(map(len, found["kernels"].values()))


README = Path(__file__).parents[2] / "README.md"
NEEDS_RELAY = "needs a TVM with Relay, and this process has TVM 0.27"
REFUSED = {
    "outputs": (["inspect", "torchvision:resnet18", "--outputs", "cut"], f"--outputs {NEEDS_RELAY}"),
    "camera": (["compile", "torchvision:resnet18", "--camera", "24x32"], f"--camera {NEEDS_RELAY}"),
    "dtype": (
        ["compile", f"{HERE}:upscaler_and_image", "--dtype", "float16", "--target", "llvm"],
        "in float16, a CPU needs oneDNN",
    ),
    "onnx": (["compile", README], "README.md is not an ONNX model, or is truncated"),
    "pipeline": (
        ["compile", f"{HERE}:upscaler_and_image", "--pipeline", "subpixel"],
        "there is no pipeline subpixel for Relax: give auto, or module:function",
    ),
    "target": (["compile", "torchvision:resnet18", "--target", "lvm"], 'TVM does not know --target "lvm"'),
    "import": (
        ["compile", f"{HERE}:upscaler_and_image", "--size", "24x32", "--batch", "2", "--target", "cuda -arc"],
        'TVM does not know --target "cuda -arc" (-arc has no value): give',
    ),
}


def test_targets_are_written_as_for_relay():
    attrs = target_of("llvm -mcpu=skylake -mattr=+avx2,+fma -num-cores=4 -libs=onednn").attrs
    assert attrs["mcpu"] == "skylake" and attrs["num-cores"] == 4
    assert [*attrs["mattr"]] == ["+avx2", "+fma"] and [*attrs["libs"]] == ["onednn"]
    target = target_of("cuda -arch=sm_90")
    assert target.attrs["arch"] == "sm_90" and target.host.kind.name == "llvm"


@pytest.fixture
def no_gpu(monkeypatch):
    """TVM does not look for one, either: no emulated one could come later."""
    monkeypatch.setattr(tvm.runtime.Device, "exist", False)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(tvm_passes_command, tmp_path, no_gpu, what):  # noqa: F811
    arguments, reason = REFUSED[what]
    output = ["-o", tmp_path / "folder"] if arguments[0] == "compile" else []
    answer = tvm_passes_command(*arguments, *output)
    assert answer.status == 1 and reason in answer.error


def test_serve_is_refused_for_a_compiled_folder(tvm_passes_command, tmp_path):  # noqa: F811
    (tmp_path / MANIFEST).touch()
    answer = tvm_passes_command("serve", tmp_path)
    assert answer.status == 1 and f"tvm-passes serve {NEEDS_RELAY}" in answer.error


def test_the_doctor_says_that_the_main_job_can_run(tvm_passes_command, no_gpu):  # noqa: F811
    answer = tvm_passes_command("doctor")
    assert answer.status == 0 and "TVM with Relax" in answer.out and "The main job can run" in answer.out
