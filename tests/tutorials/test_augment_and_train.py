"""The tutorial on augmentation, with few pictures."""

import re

import matplotlib.image
import pytest

from tutorials import augment_and_train

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_it_runs(tmp_path, capsys, device):
    """It compares with OpenCV itself."""
    sheet = tmp_path / "augmented.png"
    augment_and_train.main(["--quick", "--device", device, "--output", str(sheet)])
    said = capsys.readouterr().out
    for what in ("moved by topi_ext", "moved by OpenCV", "trained on"):
        assert re.search(rf"{what} *│ +[\d,]+ ", said)
    assert 0 <= float(re.search(r"its IoU is (\d\.\d+)", said).group(1)) <= 1
    height, width, _ = matplotlib.image.imread(sheet).shape
    assert width > height > 500
