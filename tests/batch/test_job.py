"""Every image ends in exactly one of two tables, whatever happens to the job."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.batch.tables import reasons, rows
from tests.command.networks import bright_pixels, colours
from tvm_passes import batch, runtime
from tvm_passes.batch import BatchError, detector, job, local, results, table
from tvm_passes.batch.output import locked, paths_of

REASONS = {
    "empty.jpg": "is empty",
    "text.jpg": "is no image of a known format",
    "cut.jpg": "is truncated or damaged",
    "day1/gone.png": "does not exist",
}


@pytest.fixture(scope="session")
def clean(photos, detector_folder, tmp_path_factory):
    """The rows of a job that nothing interrupted."""
    output = tmp_path_factory.mktemp("clean") / "detections.parquet"
    batch.detect(photos, output, detector_folder("encoded"))
    return rows(output)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "detections.parquet"


def check(output, clean):
    """All images are there once, as in a clean run, and the others are errors."""
    assert rows(output) == clean
    found = reasons(output.with_name("errors.parquet"))
    assert set(found) == set(REASONS)
    assert all(found[name].startswith(reason) for name, reason in REASONS.items())
    assert not [*output.glob(".*.parquet"), *output.with_name("errors.parquet").glob(".*.parquet")]


def test_a_job(photos, detector_folder, output, clean, monkeypatch):
    told = []
    monkeypatch.setattr(results, "SECONDS_BETWEEN", 0)
    summary = batch.detect(
        photos, output, detector_folder("encoded"), rows_per_part=5, on_progress=told.append
    )
    assert 15 <= told[-1].images + told[-1].errors <= 16 and told[-1].total in (None, 16)
    check(output, clean)
    assert (summary.images, summary.errors, summary.done_before) == (12, 4, 0)
    assert summary.bound in ("decode", "fit", "run", "map back", "write") and summary.images_per_second > 0
    assert len(list(output.glob("part-*.parquet"))) == 3
    row = clean["0.png"]
    assert (row["height"], row["width"]) == (160, 100) and row["labels"] == [0, 1]
    assert row["model"] == "encoded"
    assert row["manifest"] == runtime.read_manifest(detector_folder("encoded"))["sha256"]


def test_batches_across_images_find_the_same(photos, detector_folder, output, clean):
    batch.detect(photos, output, detector_folder("four"), decoders=3)
    assert {name: row["boxes"] for name, row in rows(output).items()} == {
        name: row["boxes"] for name, row in clean.items()
    }


def test_the_last_batch_costs_no_more_than_its_size(photos, detector_folder, output, clean, sizes_that_ran):
    batch.detect(photos, output, detector_folder("sizes"))
    assert sizes_that_ran == [5, 5, 2]
    assert {name: row["boxes"] for name, row in rows(output).items()} == {
        name: row["boxes"] for name, row in clean.items()
    }


def test_an_output_that_exists(photos, detector_folder, output, clean):
    folder = detector_folder("encoded")
    assert batch.detect(photos, output, folder, resume=True).images == 12  # there is nothing to go on with
    with pytest.raises(BatchError, match=r"detections.parquet exists: give --resume \(resume=True\)"):
        batch.detect(photos, output, folder)
    summary = batch.detect(photos, output, folder, resume=True)
    assert (summary.images, summary.errors, summary.done_before) == (0, 0, 16)
    check(output, clean)


def test_an_output_of_a_job_that_could_not_start(photos, detector_folder, tmp_path, output, clean):
    """It leaves nothing with which another network could neither go on nor begin."""
    mod, _ = bright_pixels()  # which is no detector
    runtime.save(tmp_path / "other", runtime.build_library(mod, "llvm"), mod, "llvm")
    with pytest.raises(BatchError, match="no boxes, scores and labels are recognized"):
        batch.detect(photos, output, tmp_path / "other")
    assert not output.exists()  # it is refused before images are decoded, whose errors would be there
    batch.detect(photos, output, detector_folder("encoded"))
    check(output, clean)


@pytest.mark.parametrize("resume", [False, True])
def test_errors_of_a_job_whose_detections_were_removed(photos, detector_folder, output, resume):
    """Their images, which may be mended now, would count as done."""
    batch.detect(photos, output, detector_folder("encoded"))
    shutil.rmtree(output)
    with pytest.raises(BatchError, match=r"errors.parquet is of another job, as there is no .*: remove it"):
        batch.detect(photos, output, detector_folder("encoded"), resume=resume)
    assert not output.exists()


def test_names_of_outputs(tmp_path):
    def names(output):
        return [path.name for path in paths_of(tmp_path / output)]

    assert names("detections") == names("detections.json") == ["detections.parquet", "errors.parquet"]
    assert names("run.1") == ["run.1.parquet", "run.1.errors.parquet"]
    assert names("run.2.parquet") == ["run.2.parquet", "run.2.errors.parquet"]
    with pytest.raises(BatchError, match=r"\. names no new folder"):
        paths_of(Path())


def test_another_job_than_the_one_that_was_begun(photos, detector_folder, output, clean):
    batch.detect(photos, output, detector_folder("encoded"))
    with pytest.raises(BatchError, match="was begun with another model: give that one, or another output"):
        batch.detect(photos, output, detector_folder("raw"), resume=True)
    with pytest.raises(BatchError, match=r"was begun with the source .*, not .*day1: give that one"):
        batch.detect(photos / "day1", output, detector_folder("encoded"), resume=True)
    check(output, clean)


@pytest.mark.parametrize("ids", [{}, {"image_id": list("abcdefg")}])
def test_rows_without_ids_are_those_of_the_same_file(photos, detector_folder, output, tmp_path, ids):
    """Other images in another order would count as done under the numbers of those that were."""
    images = [(photos / f"{number}.png").read_bytes() for number in (0, 2, 4, 6, 8, 10)] + [b"none"]
    source = tmp_path / "images.parquet"
    parquet.write_table(pyarrow.table({"bytes": images, **ids}), source)
    batch.detect(source, output, detector_folder("encoded"))
    assert batch.detect(source, output, detector_folder("encoded"), resume=True).done_before == 7
    ids = {name: values[::-1] for name, values in ids.items()}
    parquet.write_table(pyarrow.table({"bytes": images[::-1], **ids}), source)
    refused = pytest.raises(BatchError, match=r"is not as it was when .* numbers as ids: give the same file")
    with contextlib.nullcontext() if ids else refused:
        assert batch.detect(source, output, detector_folder("encoded"), resume=True).done_before == 7


def test_two_jobs_at_once(photos, detector_folder, output):
    with (
        locked(output),
        pytest.raises(BatchError, match=r"another job is writing .*: wait for it"),
    ):
        batch.detect(photos, output, detector_folder("encoded"), resume=True)


KILLED = """
import os, pathlib, signal, sys, time
from tvm_passes import batch
source, output, model, *wanted = sys.argv[1:]
write = batch.job.Tables.write
def are_there():
    return len(list(pathlib.Path(output).glob("part-*")))
def held(self, result):
    while are_there() > number:  # the parent has seen enough, and kills this when it comes to it
        time.sleep(0.002)
    write(self, result)
batch.job.Tables.write = held
for number in map(int, wanted):
    child = os.fork()  # before any thread: importing everything takes longer than the jobs
    if not child:
        batch.detect(source, output, model, resume=True, rows_per_part=1)
        os._exit(0)
    while are_there() < number:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
"""


def test_killed_again_and_again(photos, detector_folder, output, clean):
    """By SIGKILL, each time when some more images are there; what is there then is whole."""
    arguments = photos, output, detector_folder("encoded"), 1, 3, 4, 7, 9
    subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], check=True, timeout=60)
    assert rows(output).items() <= clean.items()
    summary = batch.detect(photos, output, detector_folder("encoded"), resume=True)
    assert 0 < summary.images <= 3
    check(output, clean)


def test_the_disk_is_full(photos, detector_folder, output, clean, monkeypatch):
    real, written = os.fsync, []

    def fsync(file):
        written.append(file)
        if len(written) > 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(table.os, "fsync", fsync)
    with pytest.raises(BatchError, match=r"the disk of .* is full: free some of it; .*give --resume"):
        batch.detect(photos, output, detector_folder("encoded"), rows_per_part=2)
    monkeypatch.undo()
    assert 0 < len(rows(output)) < 12 and rows(output).items() <= clean.items()
    assert not list(output.glob(".part*"))
    batch.detect(photos, output, detector_folder("encoded"), resume=True)
    check(output, clean)


def test_interrupted_from_the_keyboard(photos, detector_folder, output, clean):
    """What was found until then is written, and no thread goes on."""
    before = {*threading.enumerate()}

    def interrupt(progress):
        if progress.images >= 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "SECONDS_BETWEEN", 0)
        with pytest.raises(KeyboardInterrupt):
            batch.detect(photos, output, detector_folder("encoded"), on_progress=interrupt)
    assert before.issuperset(threading.enumerate())
    assert 3 <= len(rows(output)) < 12
    summary = batch.detect(photos, output, detector_folder("encoded"), resume=True)
    assert summary.done_before + summary.images + summary.errors == 16 and summary.done_before >= 3
    check(output, clean)


def test_the_network_fails(photos, detector_folder, output, clean):
    def fail(self, images):
        raise RuntimeError("the device\nis gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector.Detector, "start", fail)
        with pytest.raises(
            BatchError, match=r"the network failed on 0.png .the device is gone.: .*give --resume"
        ):
            batch.detect(photos, output, detector_folder("encoded"), decoders=1)
    batch.detect(photos, output, detector_folder("encoded"), resume=True)
    check(output, clean)


@pytest.mark.parametrize("kind", ["encoded", "four"])
def test_the_network_fails_on_some_images(photos, detector_folder, output, clean, monkeypatch, kind):
    """On those with something green: they are errors, and the others of their batches are not lost."""
    start, green = detector.Detector.start, {"0.png", "4.png", "8.png"}

    def fail(self, images):
        if any(image[1].max() > 0.9 for image in images):
            raise RuntimeError("too green")
        return start(self, images)

    monkeypatch.setattr(detector.Detector, "start", fail)
    summary = batch.detect(photos, output, detector_folder(kind))
    assert (summary.images, summary.errors) == (9, 7)
    found = reasons(output.with_name("errors.parquet"))
    assert {name: found.pop(name) for name in green} == dict.fromkeys(
        green, "makes the network fail: too green"
    )
    assert set(found) == set(REASONS)
    assert {name: row["boxes"] for name, row in rows(output).items()} == {
        name: row["boxes"] for name, row in clean.items() if name not in green
    }


def test_memory_is_bounded(photos, detector_folder, output, monkeypatch):
    """However slow the network is, no more images are decoded than the queues hold."""
    alive, most, lock = [0], [0], threading.Lock()
    prepare, start = detector.Detector.prepare, detector.Detector.start

    def count(by):
        with lock:
            alive[0] += by
            most[0] = max(most[0], alive[0])

    def prepared(self, image):
        count(1)
        return prepare(self, image)

    def begun(self, images):
        def ended():
            time.sleep(0.02)
            count(-len(images))
            return found()

        found = start(self, images)
        return ended

    monkeypatch.setattr(detector.Detector, "prepare", prepared)
    monkeypatch.setattr(detector.Detector, "start", begun)
    batch.detect(photos, output, detector_folder("encoded"), decoders=2)
    in_queues = local.BATCHES_AHEAD + 1
    assert most[0] <= 2 + in_queues + 1  # in the hands of decoders, and of the network
    assert alive[0] == 0


def test_a_trace(photos, detector_folder, output, tmp_path):
    batch.detect(photos, output, detector_folder("four"), trace=tmp_path / "trace.json")
    *events, process = json.loads((tmp_path / "trace.json").read_text())
    assert process["ph"] == "M"
    assert {event["name"] for event in events} == {"decode", "fit", "run", "map back", "write"}
    assert sum(event["args"].get("images", 0) for event in events if event["name"] == "run") == 12
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)


def test_a_trace_of_several_processes(photos, detector_folder, output, tmp_path, monkeypatch):
    """Each of their works is in it; without a trace, only sums leave a process."""
    monkeypatch.setattr(job, "_is_for_gpus", lambda _: True)
    monkeypatch.setattr(job, "_gpus_here", lambda _: ["cpu"])
    trace = tmp_path / "trace.json"
    summary = batch.detect(photos, output, detector_folder("four"), gpus=1, processes=2, trace=trace)
    decoding = [event for event in json.loads(trace.read_text()) if event["name"] == "decode"]
    assert len({event["args"]["image"] for event in decoding}) == summary.images + summary.errors


def test_the_table_of_errors_has_the_name_of_the_table(photos, detector_folder, tmp_path):
    summary = batch.detect(photos / "day1", tmp_path / "night.parquet", detector_folder("encoded"))
    assert summary.error_table == tmp_path / "night.errors.parquet"
    assert set(reasons(summary.error_table)) == {"gone.png"}


def test_options_that_are_none(photos, detector_folder, output, tmp_path):
    folder = detector_folder("encoded")
    for options, reason in (
        ({"format": "csv"}, "format must be parquet or coco, not 'csv'"),
        ({"engine": "spark"}, "engine must be local or ray, not 'spark'"),
        ({"gpus": 2}, "was compiled for llvm.*: leave out --gpus, or compile for a GPU"),
        ({"processes": 2}, "was compiled for llvm.*: leave out --processes, or compile for a GPU"),
        ({"decoders": 0}, "decoders must be at least 1, not 0"),
        ({"processes": 0}, "processes must be at least 1, not 0"),
        ({"batch": 8}, "was compiled for batches of 1, not 8"),
    ):
        with pytest.raises(BatchError, match=reason):
            batch.detect(photos, output, folder, **options)
    with pytest.raises(BatchError, match=r"has no manifest.json"):
        batch.detect(photos, output, tmp_path)
    output.write_text("")
    with pytest.raises(BatchError, match="is a file: give a folder to write to"):
        batch.detect(photos, output, folder)


def test_pyarrow_is_missing(photos, detector_folder, output, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        BatchError, match=r'pyarrow is missing: run `pip install "tvm-vision-passes\[batch\]"`'
    ):
        batch.detect(photos, output, detector_folder("encoded"))


def test_colours_of_another_network(tmp_path, photos):
    mod, _ = colours()
    runtime.save(tmp_path / "model", runtime.build_library(mod, "llvm"), mod, "llvm")
    batch.detect(photos / "day0", tmp_path / "a.parquet", tmp_path / "model")
    found = rows(tmp_path / "a.parquet")
    assert all(len(row["boxes"]) == 3 and row["masks"] is None for row in found.values()) and found
