"""The tutorial on Faster R-CNN through ONNX, with a small image and a network of a few layers."""

import importlib
import re

import matplotlib.image
import onnx
import pytest

from tests.models.zoo import tiny_faster_rcnn
from tutorials import detectors

compile_faster_rcnn_onnx = importlib.import_module("tutorials.04_compile_faster_rcnn_onnx")


@pytest.mark.slow
def test_it_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(detectors, "detector", tiny_detector)
    compile_faster_rcnn_onnx.main(["--weights", "random", "--short-side", "128", "--output", str(tmp_path)])
    said = capsys.readouterr().out
    found, expected = map(int, re.search(r"TVM finds (\d+) of PyTorch's (\d+) detections", said).groups())
    assert found >= 0.95 * expected > 10
    exported = onnx.load(str(tmp_path / "faster_rcnn.onnx")).graph
    assert [each.name for each in exported.output] == ["boxes", "labels", "scores"]
    height, width, _ = matplotlib.image.imread(tmp_path / "faster_rcnn.png").shape
    assert height > width > 300


def tiny_detector(name, image, _weights):
    assert name == "fasterrcnn_mobilenet_v3_large_320_fpn"
    model = tiny_faster_rcnn(images=[image, image.flip(2)], fixed_size=(image.shape[2], image.shape[1]))
    return model, [f"class {index}" for index in range(91)]
