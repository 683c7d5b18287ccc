"""The engine `ray`: the same tables as by threads, whatever is killed meanwhile."""

import dataclasses
import json
import os
import signal
import sys

import numpy as np
import pytest

from tests.batch.networks import SIZE
from tests.batch.tables import reasons, rows
from tvm_passes import batch
from tvm_passes.batch import BatchError, Detector, on_ray
from tvm_passes.batch.chunks import packed, unpacked
from tvm_passes.batch.decode import MAX_PIXELS
from tvm_passes.batch.failing import NetworkFailed
from tvm_passes.batch.figures import Figures
from tvm_passes.batch.letterbox import Fitted, Placed
from tvm_passes.batch.network import images_of
from tvm_passes.runtime import read_manifest


@pytest.fixture(scope="session")
def cluster():
    """Ray on this machine, as it is where a job does not start it."""
    pytest.importorskip("ray.data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # tests of other processes do not wait, either
        with on_ray._connected(None):
            yield


@pytest.fixture(scope="session")
def many(photos, tmp_path_factory):
    """The photographs, most of them several times."""
    folder = tmp_path_factory.mktemp("many")
    for path in photos.iterdir():
        for copy in range(6 if path.is_file() else 1):
            (folder / f"{copy}-{path.name}").symlink_to(path)
    return folder


@pytest.fixture(scope="session")
def clean(many, detector_folder, tmp_path_factory):
    """The tables of the engine `local`."""
    output = tmp_path_factory.mktemp("local") / "detections.parquet"
    batch.detect(many, output, detector_folder("encoded"))
    return tables(output)


def tables(output):
    return rows(output), reasons(output.with_name("errors.parquet"))


@pytest.fixture
def detect(cluster, many, detector_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "IMAGES", 3)  # so that there is more than one chunk

    def run(source=many, engine="ray", **options):
        output = tmp_path / "detections.parquet"
        summary = batch.detect(source, output, detector_folder("encoded"), engine=engine, **options)
        return summary, output

    return run


@pytest.mark.slow
def test_as_by_threads_although_processes_are_killed(detect, clean, tmp_path, monkeypatch):
    """One that decodes and one that runs the network, as soon as they have done something."""
    add, killed = Figures.add, {}

    def added(self, work):
        if work.stage in ("decode", "run") and work.stage not in killed:
            killed[work.stage] = work.process
            os.kill(work.process, signal.SIGKILL)
        add(self, work)

    monkeypatch.setattr(Figures, "add", added)
    told = []
    summary, output = detect(on_progress=told.append, trace=tmp_path / "trace.json")
    assert tables(output) == clean
    assert (summary.images, summary.errors) == (len(clean[0]), len(clean[1]))
    assert summary.bound in ("decode", "fit", "run", "map back", "write") and told
    events = json.loads((tmp_path / "trace.json").read_text())
    decoding, running = (
        {event["pid"] for event in events if event["name"] == stage} for stage in ("decode", "run")
    )
    assert decoding > {killed["decode"]} and running > {killed["run"]} and not decoding & running


def test_interrupted_and_resumed_by_threads(detect, clean, monkeypatch):
    """From the keyboard, when an image is written."""
    write = batch.job.Tables.write

    def interrupted(self, result):
        write(self, result)
        if not isinstance(result, batch.results.Failed):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch.job.Tables, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            detect()
    summary, output = detect(engine="local", resume=True)
    assert tables(output) == clean
    assert summary.done_before >= 1
    assert summary.done_before + summary.images + summary.errors == sum(map(len, clean))


@pytest.mark.parametrize("source", ["photos.tar", ["photos.tar"]])
def test_an_error_in_a_task_ends_the_job(detect, tmp_path, monkeypatch, source):
    """Whose processes are in another folder."""
    (tmp_path / "photos.tar").write_bytes(b"which is none" * 100)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BatchError, match=r"^.*photos.tar is damaged: .*; what came before is done$"):
        detect(source)


@pytest.mark.slow
def test_an_actor_that_always_dies_ends_the_job(detect, monkeypatch):
    class Dying(on_ray._Network):
        def __call__(self, table):
            os._exit(1)

    monkeypatch.setattr(on_ray, "_Network", Dying)
    monkeypatch.setattr(on_ray, "RETRIES", 1)
    with pytest.raises(BatchError, match=r"^Ray has ended the job \(.*\): what was written is whole; "):
        detect()


def test_options(photos, detector_folder, tmp_path):
    def detect(**options):
        batch.detect(photos, tmp_path / "detections.parquet", detector_folder("encoded"), **options)

    with pytest.raises(BatchError, match='are for the engine "ray": give --engine ray, too'):
        detect(workers=2)
    with pytest.raises(BatchError, match="workers must be at least 1, not 0"):
        detect(engine="ray", workers=0)
    pytest.importorskip("ray.data")
    with pytest.raises(BatchError, match=r"nothing answers at 127.0.0.1:1 \(.*refused.*\): see `ray status`"):
        detect(engine="ray", address="127.0.0.1:1", resume=True)


def test_ray_is_missing(photos, detector_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(BatchError, match=r'ray is missing: run `pip install "tvm-vision-passes\[ray\]"`'):
        batch.detect(photos, tmp_path / "a.parquet", detector_folder("encoded"), engine="ray")


# --- an actor, in this process


@pytest.fixture
def model(detector_folder):
    folder = detector_folder("encoded")
    images = images_of(read_manifest(folder), folder)
    return on_ray.Model(folder, images, "auto", MAX_PIXELS, is_on_gpu=True)


@pytest.fixture
def actor(model):
    return on_ray._Network(model)


def test_pixels_of_a_jpeg_move_as_a_buffer(model):
    """They are not in the order in which they are decoded."""
    image, _ = model.prepared(
        np.random.default_rng(0).integers(0, 256, (3, *SIZE), "uint8").transpose(1, 2, 0)
    )
    (buffers,) = packed(image).column("arrays").to_pylist()
    assert image.shape == (*SIZE, 3) and [len(each) for each in buffers] == [image.nbytes]


def given(*values):
    placed = Placed(SIZE, SIZE, SIZE)
    images = [Fitted(str(value), np.full((*SIZE, 3), 255 * value, "uint8"), placed) for value in values]
    return packed(on_ray._Chunk(images, [on_ray.Failed("before", "is empty")], []))


def failing_at(limit):
    """Detector.start, which fails on bright images."""
    real = Detector.start

    def start(self, images):
        if max(image.max() for image in images) >= limit:
            raise RuntimeError("CUDA: an illegal memory access")
        return real(self, images)

    return start


def test_an_image_on_which_the_network_fails(actor, monkeypatch):
    monkeypatch.setattr(Detector, "start", failing_at(0.9))
    (chunk,) = (chunk for table in actor(given(0.5, 1.0)) for chunk in unpacked(table))
    before, second, rows = chunk.results
    assert before == ("before", "is empty") and rows.table.column("image_id").to_pylist() == ["0.5"]
    assert second == ("1.0", "makes the network fail: CUDA: an illegal memory access")


def test_a_context_that_died_ends_its_process(actor, monkeypatch):
    """But not a process in which nothing has ever worked: that is the job's end, with the reason."""
    exits = []

    def leave(status):
        exits.append(status)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    start = Detector.start
    monkeypatch.setattr(Detector, "start", failing_at(0))
    with pytest.raises(NetworkFailed, match=r"the network failed on 0.5 \(CUDA: an illegal .*--resume"):
        list(actor(given(0.5)))
    assert not exits
    monkeypatch.setattr(Detector, "start", start)
    assert list(actor(given(0.5)))
    monkeypatch.setattr(Detector, "start", failing_at(0))
    with pytest.raises(SystemExit):
        list(actor(given(0.5)))
    assert exits == [1]


def test_a_batch_that_the_folder_does_not_have(model):
    network = on_ray._Network(dataclasses.replace(model, batch=8))
    with pytest.raises(BatchError, match=r"was compiled for batches of 1, not 8: give one of these"):
        list(network(given(0.5)))


@pytest.mark.parametrize(
    "size, batch, number", [((48, 64), 1, 16), ((800, 1333), 1, 5), ((800, 1333), 4, 4), ((2000, 2000), 8, 8)]
)
def test_chunks_are_of_full_batches(model, size, batch, number):
    taken = dataclasses.replace(model.images.taken, height=size[0], width=size[1])
    images = dataclasses.replace(model.images, taken=taken, number=batch)
    assert dataclasses.replace(model, images=images).chunk == number


def test_chunks_are_read_without_a_copy():
    value = {"image": np.arange(1000.0).reshape(10, 100), "text": "a"}
    table = packed(value)
    (back,) = unpacked(table)
    assert back["text"] == "a" and not back["image"].flags.writeable
    np.testing.assert_array_equal(back["image"], value["image"])
    assert not list(unpacked(table.slice(0, 0)))
