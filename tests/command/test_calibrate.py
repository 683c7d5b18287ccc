"""`tvm-passes calibrate` writes what `--int8` reads."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.command.networks import HERE
from tvm_passes.quantize import Calibration
from tvm_passes.quantize.histogram import METHODS

MODEL = f"{HERE}:two_layers"
GPU = "cuda -arch=sm_90"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 30, 3), "uint8")
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


def test_a_file_for_compile_and_inspect(tvm_passes_command, photos, tmp_path):
    path = tmp_path / "network.json"
    answer = tvm_passes_command("calibrate", MODEL, photos, "-o", path, "--count", 5, "--method", "maximum")
    assert answer.status == 0, answer.err
    assert "1 of 2 convolutions in int8; bounds by maximum, of 3 batches" in answer.out
    assert "Skipped: broken.jpg is no image" in answer.err
    found = Calibration.read(path)
    assert next(iter(found.convolutions.values())).data == pytest.approx(1, abs=0.01)
    answer = tvm_passes_command("inspect", MODEL, "--target", GPU, "--int8", path, "--json")
    assert answer.status == 0, answer.err
    (done,) = (each for each in json.loads(answer.out)["passes"] if each["name"] == "InInt8")
    assert len(done["rewrites"]) == 1


def test_what_is_refused(tvm_passes_command, photos, tmp_path):
    def error(*arguments):
        answer = tvm_passes_command(*arguments)
        assert answer.status != 0
        return answer.error

    out = "-o", tmp_path / "network.json"
    (tmp_path / "text.json").write_text("{}")
    text = "--int8", tmp_path / "text.json"
    calibrate = "calibrate", MODEL, photos, *out
    on_cpu = error(*calibrate, "--target", "llvm")
    assert "in int8, convolutions need a GPU" in on_cpu and "--verbose" not in on_cpu
    assert "the pipeline has no InInt8" in error(*calibrate, "--pipeline", "tvm_passes:FoldPreprocessing")
    nothing = tvm_passes_command("calibrate", MODEL, tmp_path / "nothing", *out)
    assert nothing.error.startswith("tvm-passes calibrate: there is no") and "--verbose" not in nothing.error
    assert "Import" not in nothing.err  # it is said at once, and a sentence needs no traceback
    assert "'nan' is not a number of dB" in error(*calibrate, "--min-snr", "nan")
    assert all(method in error(*calibrate, "--method", "best") for method in METHODS)
    assert "'0' is not a number above 0" in error(*calibrate, "--count", 0)
    pair = f"{HERE}:pair_and_images"
    assert "does not take one image of a fixed size" in error("calibrate", pair, photos, *out)
    assert "text.json is not a calibration: give a file that calibrate wrote" in error(
        "inspect", MODEL, *text
    )
    assert "not allowed with argument" in error("inspect", MODEL, *text, "--dtype", "float16")
    custom = "--pipeline", "tvm_passes:FoldPreprocessing"
    assert "--int8 is for the pipelines detection and subpixel" in error("inspect", MODEL, *text, *custom)
