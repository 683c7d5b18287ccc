"""`tvm-passes profile`: tables, CSV, JSON and chart of the same times, and a peer's beside them."""

import csv
import json
import sys

import numpy as np
import pytest
from PIL import Image

from tests.command.networks import HERE, SIZE, write_onnx
from tvm_passes.command import peers, work
from tvm_passes.command.chart import write_chart
from tvm_passes.command.models import find_model
from tvm_passes_cli.options import parser

import tvm

UPSCALER, COLOURS = f"{HERE}:upscaler_and_image", f"{HERE}:colours"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


def test_tables_say_where_the_time_goes(tvm_passes_command, files):
    answer = tvm_passes_command("profile", UPSCALER, "--target", "llvm", "--csv", files / "times.csv")
    assert answer.status == 0, answer.err
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in answer.out.splitlines() if "│" in line
    ]
    (before,), (after,) = ([row for row in rows if row[0] == name] for name in ("before", "after"))
    assert float(before[1]) > 0 and before[2] == "1.00"
    assert float(after[2]) == pytest.approx(float(before[1]) / float(after[1]), rel=0.1)
    with open(files / "times.csv") as file:
        kernels = list(csv.DictReader(file))
    (every,) = (row for row in rows if row[0] == "all")
    for name, ms, count in (("before", *every[1:3]), ("after", *every[3:5])):
        times = [float(kernel["ms"]) for kernel in kernels if kernel["graph"] == name]
        assert len(times) == int(count) and sum(times) == pytest.approx(float(ms), abs=2e-3)
    names = {
        name: [kernel["kernel"] for kernel in kernels if kernel["graph"] == name]
        for name in ("before", "after")
    }
    assert not any("depth_to_space" in name for name in names["before"])
    assert any("depth_to_space" in name for name in names["after"])


def test_json_has_every_kernel_and_the_peer(tvm_passes_command):
    answer = tvm_passes_command("profile", UPSCALER, "--json", "--compare", "torch")
    found = json.loads(answer.out)
    assert list(found["call_ms"]) == ["before", "after", "torch, eager"]
    assert all(ms > 0 for ms in found["call_ms"].values())
    for name, kinds in found["kinds_ms"].items():
        assert kinds["convolution"] > 0
        assert sum(kinds.values()) == pytest.approx(sum(kernel["ms"] for kernel in found["kernels"][name]))


def test_detectors_are_called_as_torchvision_has_it():
    """Compiling one takes long: here is the peer alone."""
    args = parser().parse_args(["profile", "tests.models.zoo:tiny_detector", "--size", "64x96"])
    model = find_model(args)
    of_detector = work.Work(model, None, work.target_of("llvm"), "detection", None)
    seen = []
    model.module.register_forward_hook(lambda _module, inputs, outputs: seen.append((inputs, outputs)))
    peers.peer_of("torch", of_detector, [model.inputs[0].numpy()]).call()
    ((inputs, outputs),) = seen
    assert [tuple(each.shape) for each in inputs[0]] == [(3, 64, 96)]
    assert set(outputs[0]) == {"boxes", "scores", "labels"}


def test_a_image_is_resized_to_what_is_taken(tvm_passes_command, files):
    Image.fromarray(np.full((50, 60, 3), 255, "uint8")).save(files / "photo.png")
    answer = tvm_passes_command("profile", COLOURS, "--image", files / "photo.png", "--json")
    assert answer.status == 0, answer.err
    shapes = [kernel["shapes"] for kernel in json.loads(answer.out)["kernels"]["after"]]
    assert any(f"float32[1, 3, {SIZE[0]}, {SIZE[1]}]" in shape for shape in shapes)


def test_onnx_runtime(tvm_passes_command, files):
    pytest.importorskip("onnxruntime")
    path = write_onnx(files / "network.onnx", "Sigmoid", "Tanh")
    answer = tvm_passes_command("profile", path, "--json", "--compare", "onnxruntime")
    assert list(json.loads(answer.out)["call_ms"]) == ["before", "after", "ONNX Runtime"]


def test_what_cannot_be_profiled(tvm_passes_command, files, monkeypatch):
    path = write_onnx(files / "dynamic.onnx", "Relu", shape=("n", 3, "height", "width"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    cases = {
        (path,): "give --size or --input-shape",
        (path, "--size", "8x8", "--compare", "torch"): "has no torch model to compare with",
        (path, "--size", "8x8", "--compare", "onnxruntime"): "pip install onnxruntime",
        (UPSCALER, "--compare", "onnxruntime"): "is for ONNX files",
        (UPSCALER, "--image", "absent.png"): "there is no image absent.png",
        (UPSCALER, "--csv", files / "no" / "times.csv"): "there is no folder",
        (UPSCALER, "--target", "opencl"): "there is no device for opencl here",
    }
    for arguments, expected in cases.items():
        answer = tvm_passes_command("profile", *arguments)
        assert answer.status == 1 and expected in answer.error


def test_the_chart_shows_each_time(tvm_passes_command, files):
    path = files / "chart.png"
    answer = tvm_passes_command("profile", UPSCALER, "--chart", path, "--compare", "torch")
    assert answer.status == 0, answer.err
    colours = {
        tuple(colour) for colour in np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).tolist()
    }
    assert {(0x98, 0xA2, 0xB3), (0x1F, 0x8F, 0x4A), (0x5B, 0x76, 0xC9)} <= colours


def test_bars_are_as_long_as_their_times(files):
    kinds = {"before": {"convolution": 30.0, "NMS": 10.0}, "after": {"convolution": 30.0}}
    write_chart(files / "bars.png", "a title", {"before": 40.0, "after": 20.0}, kinds)
    pixels = np.asarray(Image.open(files / "bars.png").convert("RGB")).astype(int)
    lengths = {}
    for name, colour in {"before": (0x98, 0xA2, 0xB3), "after": (0x1F, 0x8F, 0x4A)}.items():
        is_bar = (pixels == colour).all(axis=2).sum(axis=1)
        lengths[name] = is_bar[: len(is_bar) // 3].max()  # of the chart of whole calls, which is above
    assert lengths["before"] == pytest.approx(2 * lengths["after"], rel=0.02)


@pytest.mark.gpu
def test_on_a_gpu(tvm_passes_command):
    target = f"cuda -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    answer = tvm_passes_command("profile", UPSCALER, "--target", target, "--json", "--compare", "torch")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert "topi_ext_conv2d_nhwc" in " ".join(kernel["name"] for kernel in found["kernels"]["after"])
    assert all(0 < ms < 100 for ms in found["call_ms"].values())
