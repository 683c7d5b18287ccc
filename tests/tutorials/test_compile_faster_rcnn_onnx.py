"""The tutorial on Faster R-CNN through ONNX, with a small image."""

import importlib
import re

import matplotlib.image
import pytest

compile_faster_rcnn_onnx = importlib.import_module("tutorials.04_compile_faster_rcnn_onnx")


@pytest.mark.slow
def test_it_runs(tmp_path, capsys):
    compile_faster_rcnn_onnx.main(["--weights", "random", "--short-side", "128", "--output", str(tmp_path)])
    said = capsys.readouterr().out
    found, expected = map(int, re.search(r"TVM finds (\d+) of PyTorch's (\d+) detections", said).groups())
    assert found >= 0.95 * expected > 10
    assert (tmp_path / "faster_rcnn.onnx").stat().st_size > 1e7
    height, width, _ = matplotlib.image.imread(tmp_path / "faster_rcnn.png").shape
    assert height > width > 300
