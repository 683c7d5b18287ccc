"""The tutorial on Mask R-CNN, with a network of a few layers, and without stock TVM."""

import importlib
import re

import matplotlib.image
import pytest

from tests.models.zoo import tiny_mask_rcnn
from tutorials import detectors

compile_mask_rcnn = importlib.import_module("tutorials.01_compile_mask_rcnn")

TARGETS = ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_it_runs(tmp_path, capsys, monkeypatch, target):
    monkeypatch.setattr(detectors, "detector", tiny_detector)
    compile_mask_rcnn.main(
        ["--target", target, "--short-side", "96", "--no-stock", "--output", str(tmp_path)]
    )
    said = capsys.readouterr().out
    assert "RestoreBatchedNMS" in said and "MultiScaleRoIAlign" in said
    found, expected = map(int, re.search(r"TVM finds (\d+) of PyTorch's (\d+) detections", said).groups())
    assert found >= (0.95 if target == "llvm" else 0.5) * expected > 10  # random weights, half precision
    for name in ("detections.png", "profile.png"):
        assert min(matplotlib.image.imread(tmp_path / name).shape[:2]) > 300


def tiny_detector(_name, image, _weights):
    model = tiny_mask_rcnn(images=[image, image.flip(2)], fixed_size=(image.shape[2], image.shape[1]))
    return model, [f"class {index}" for index in range(91)]
