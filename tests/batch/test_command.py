"""`tvm-passes detect`."""

import re

import pytest

from tests.batch.tables import reasons, rows
from tests.command.conftest import tvm_passes_command  # noqa: F401  (a fixture)
from tvm_passes.batch.figures import Progress
from tvm_passes.command.detect import described


@pytest.fixture
def detect(tvm_passes_command, photos, detector_folder, tmp_path):  # noqa: F811
    def run(*options, source=photos, model="four", output=tmp_path / "detections.parquet"):
        return tvm_passes_command("detect", source, "-o", output, "--model", detector_folder(model), *options)

    return run


def test_a_folder(detect, tmp_path):
    answer = detect("--format", "coco", "--batch", "4", "--trace", tmp_path / "trace.json")
    assert answer.status == 0 and not answer.out
    assert re.search(
        r"12 images and 4 errors; [\d.]+ a second, bound by: (decode|fit|run|map back|write)\.", answer.err
    )
    for name in ("detections.parquet", "errors.parquet", "detections.json"):
        assert f"{tmp_path / name}\n" in answer.err
    assert len(rows(tmp_path / "detections.parquet")) == 12 and len(reasons(tmp_path / "errors.parquet")) == 4
    assert (tmp_path / "trace.json").exists()
    assert "exists: give --resume" in detect().error
    assert "0 images and 0 errors; 16 were done before; " in detect("--resume").err


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--batch", "none"], "'none' is not a number of images: give one, or auto"),
        (["--batch", "3"], "was compiled for batches of 4, not 3"),
        (["--address", "auto"], 'are for the engine "ray": give --engine ray, too'),
        (["--gpus", "1"], "leave out --gpus, or compile for a GPU"),
        (["--trace", "/nowhere/trace.json"], "there is no folder /nowhere"),
        (["--trace", "/dev/full"], "the trace /dev/full cannot be written (No space left on device): give"),
    ],
)
def test_errors(detect, options, reason):
    answer = detect(*options)
    assert answer.status in (1, 2) and reason in answer.error
    assert "--verbose" not in answer.error  # a sentence needs no traceback


def test_an_output_in_a_file(detect, tmp_path):
    (tmp_path / "file").touch()
    answer = detect(output=tmp_path / "file" / "detections.parquet")
    assert "detections.parquet cannot be made (Not a directory): give another output" in answer.error


def test_a_mark_that_is_damaged(detect, tmp_path):
    assert detect().status == 0
    (tmp_path / "detections.parquet" / ".job.json").write_text("[" * 100_000)
    assert "is damaged: give another output" in detect("--resume").error


def test_a_source_that_is_none(detect, tmp_path):
    assert "there is no" in detect(source=tmp_path / "nowhere").error
    assert "there is no source without a name" in detect(source="").error
    (tmp_path / "empty").mkdir()
    answer = detect(source=tmp_path / "empty")
    assert answer.status == 1 and "there are no images in" in answer.error
    assert not (tmp_path / "detections.parquet").exists()


def test_interrupted(detect, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_passes.batch.detect", interrupt)
    answer = detect()
    assert answer.status == 130 and "is whole; --resume does the rest." in answer.err


def test_progress_in_one_line():
    assert described(Progress(117, 3, 2000, 60, "run")) == (
        "120 of 2000 images, 3 errors, 2.0 a second, 0:15:40 left, bound by: run"
    )
    assert described(Progress(0, 0, None, 0, None)) == "0 images, 0 errors, 0.0 a second"
