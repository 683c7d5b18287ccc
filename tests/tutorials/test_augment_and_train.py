"""The tutorial on augmentation, with few images."""

import importlib
import re

import matplotlib.image
import pytest

augment_and_train = importlib.import_module("tutorials.05_augment_and_train")

needs_opencv_4 = pytest.mark.skipif(
    not augment_and_train.cv2.__version__.startswith("4."), reason="OpenCV 5 warps by other rules"
)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@needs_opencv_4
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


def test_opencv_5_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(augment_and_train.cv2, "__version__", "5.0.0")
    with pytest.raises(SystemExit) as left:
        augment_and_train.main(["--quick"])
    assert left.value.code == 1 and "'opencv-python-headless<5'" in capsys.readouterr().err
