"""The tutorial on rasterisers, with two small samples."""

import importlib
import re

import numpy as np
import pytest
from PIL import Image

rasterize_scene = importlib.import_module("tutorials.06_rasterize_scene")

TARGETS = ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZE, BORDER = 96, rasterize_scene.BORDER


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs(tmp_path, capsys, target):
    path = tmp_path / "scene.png"
    arguments = ["--target", target, "--samples", "2", "--size", str(SIZE), "--output", str(path)]
    rasterize_scene.main(arguments)
    assert re.search(r"\d+ lanes, 2 samples", capsys.readouterr().out)
    image = np.array(Image.open(path))
    side = SIZE + 2 * BORDER
    assert image.shape == (side, 2 * side, 3)
    for sample in np.split(image, 2, axis=1):
        drawn = sample[BORDER:-BORDER, BORDER:-BORDER].reshape(-1, 3)
        assert len(np.unique(drawn, axis=0)) > 20  # lanes, crosswalks, agents, each fading
