"""What a GPU does of a job, on the device of the tests: as it is done without one."""

import contextlib
import threading
import time

import numpy as np
import pytest
import torch

from tests.batch.networks import painted
from tvm_passes.batch import BadImage, Detector, on_gpu, run_lengths
from tvm_passes.batch.image_input import ImageInput
from tvm_passes.batch.letterbox import letterbox
from tvm_passes.batch.network import Network
from tvm_passes.batch.on_gpu import USUAL, OnGpu

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
INPUTS = [
    ImageInput(48, 64, 3, "NCHW", "float32"),
    ImageInput(48, 64, 3, "CHW", "float16"),
    ImageInput(48, 64, 1, "NCHW", "float32"),
    ImageInput(48, 64, 3, "NHWC", "uint8"),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("taken", INPUTS, ids=str)
@pytest.mark.parametrize("waiting", [0, on_gpu.MAX_WAITING])
def test_images_are_fitted_in(device, taken, waiting, monkeypatch):
    monkeypatch.setattr(on_gpu, "MAX_WAITING", waiting)
    for size in ((90, 40), (30, 200), (48, 64)):
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
        image.flags.writeable = False
        gpu = OnGpu(device)
        prepared, placed = gpu.letterbox(image, taken, "BGR")
        assert isinstance(prepared, on_gpu.Waiting) == bool(waiting)
        (found,) = gpu.arrived([prepared])
        expected, place = letterbox(image, taken, "BGR")
        assert placed == place and found.device.type == device
        limit = 1 if taken.dtype == "uint8" else 1e-3
        np.testing.assert_allclose(found.cpu().numpy(), expected, atol=limit if device == "cuda" else 0)


def some_masks(count, size):
    rng = np.random.default_rng(count)
    rows, columns = np.mgrid[:28, :28]
    centre = rng.uniform(8, 20, (2, count, 1, 1))
    far = np.hypot(rows - centre[0], columns - centre[1])
    masks = (1 / (1 + np.exp(far - rng.uniform(4, 12, (count, 1, 1))))).astype("float32")
    corners = np.sort(rng.uniform(-0.2, 1.2, (count, 2, 2)), axis=1) * size[::-1]
    return masks, corners.reshape(count, 4).astype("float32")


@pytest.mark.parametrize("usual", [USUAL, 9])
@pytest.mark.parametrize("device", DEVICES)
def test_run_lengths(device, usual, monkeypatch):
    """Also of masks that are longer than usual."""
    monkeypatch.setattr(on_gpu, "USUAL", usual)
    gpu = OnGpu(device)
    for count, size in ((7, (90, 140)), (0, (90, 140)), (3, (33, 20)), (7, (90, 140))):
        masks, boxes = some_masks(count, size)
        found = gpu.start_run_lengths(masks, boxes, size)()
        assert found == [run_lengths.of_box(mask, box, size) for mask, box in zip(masks, boxes)]


@pytest.mark.parametrize("kind", ["raw", "encoded", "four"])
def test_a_detector_finds_the_same(detector_folder, monkeypatch, kind):
    images = [painted(90 + each, 120, (10, 20, 60 + each, 80)) for each in range(3)]
    without = Detector(detector_folder(kind))
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    with_it = Detector(detector_folder(kind))
    fitted = with_it.fitted([with_it.prepare(image)[0] for image in images])
    assert all(isinstance(tensor, torch.Tensor) for tensor in fitted)
    assert with_it({"image": images}).equals(without({"image": images}))


def test_a_mask_of_too_many_runs(detector_folder, monkeypatch):
    """Goes without the GPU, which has no room for it."""
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector = Detector(detector_folder("raw"))

    def run_lengths_():
        raise ValueError("1 of 3 masks take more than 100 bytes")

    expected = detector({"image": [painted(90, 120, (10, 20, 60, 80))]})
    monkeypatch.setattr(detector._gpu, "start_run_lengths", lambda *_: run_lengths_)
    assert detector({"image": [painted(90, 120, (10, 20, 60, 80))]}).equals(expected)


@pytest.mark.parametrize("room", [0, 4, 9])
def test_masks_of_a_batch_are_encoded_together(detector_folder, monkeypatch, room):
    """Those of images of one size; without room for all, image by image, and without room for one, here."""
    without = Detector(detector_folder("raw"))
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector, numbers = Detector(detector_folder("raw")), []
    start = detector._gpu.start_run_lengths

    def start_run_lengths(masks, boxes, size):
        numbers.append((len(masks), size))
        return start(masks, boxes, size) if len(masks) <= room else no_room

    def no_room():
        raise ValueError("1 of the masks takes more than 100 bytes")

    monkeypatch.setattr(detector._gpu, "start_run_lengths", start_run_lengths)
    sizes = (48, 64), (90, 140), (48, 64), (48, 64)
    placed = [without.prepare(painted(*size))[1] for size in sizes]
    found = [{**some_found(4), "boxes": some_masks(4, (40, 50))[1]} for _ in sizes]
    ids, found[3] = list("abcd"), BadImage("is none")
    *finishes, failing = detector.start_finish(ids, found, placed)
    expected = [without.finish(*each) for each in zip(ids[:3], found, placed)]
    counts = [len(one["masks"]) for one in expected]
    together = counts[0] + counts[2]
    assert all(counts) and together > 4
    for finish, row in zip(finishes, expected):
        assert finish()["masks"] == row["masks"]
    with pytest.raises(BadImage, match="is none"):
        failing()
    begun = [(together, sizes[0]), (counts[1], sizes[1])]
    alone = [(counts[0], sizes[0]), (counts[2], sizes[0])] if together > room else []
    assert numbers == begun + alone


def some_found(count, kept=0):
    """Detections as a network gives them, whose boxes are all but one outside the image."""
    masks, _ = some_masks(count, (48, 64))
    boxes = np.float32([[70, 50, 90, 60]] * count)
    boxes[kept] = 5, 5, 40, 30
    scores, labels = np.linspace(1, 0.1, count, dtype="float32"), np.arange(count)
    return {"boxes": boxes, "scores": scores, "labels": labels, "masks": masks[:, None]}


def test_masks_are_chosen_in_the_stream_in_which_they_are_encoded(detector_folder, monkeypatch):
    """One that waits for no other would read what is not there yet."""
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector, entered = Detector(detector_folder("raw")), []

    @contextlib.contextmanager
    def own_stream():
        entered.append(True)
        yield
        entered.pop()

    def start_run_lengths(masks, *_):
        assert entered
        return lambda: [b"a mask"] * len(masks)

    monkeypatch.setattr(detector._gpu, "own_stream", own_stream)
    monkeypatch.setattr(detector._gpu, "start_run_lengths", start_run_lengths)
    _, placed = detector.prepare(painted(48, 64))
    assert detector.finish("a", some_found(3), placed)["masks"] == [b"a mask"]


@pytest.mark.gpu
def test_masks_of_some_boxes_while_the_gpu_is_busy(detector_folder, monkeypatch):
    without = Detector(detector_folder("raw"))
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cuda"))
    detector = Detector(detector_folder("raw"))
    _, placed = without.prepare(painted(48, 64))
    for kept in range(3):  # the first one compiles
        found = some_found(3, kept)
        expected = without.finish("a", found, placed)["masks"]
        found["masks"] = torch.from_numpy(found["masks"]).cuda()
        torch.cuda._sleep(100_000_000)
        assert detector.finish("a", found, placed)["masks"] == expected


def test_masks_of_the_whole_input_that_stayed_on_the_device(detector_folder, monkeypatch):
    """As those of a network for images of any size do."""
    without = Detector(detector_folder("raw"))
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector, found = Detector(detector_folder("raw")), some_found(3)
    _, placed = without.prepare(painted(48, 64))
    found["masks"] = np.random.default_rng(0).random((3, 1, *placed.given), "float32")
    expected = without.finish("a", found, placed)["masks"]
    found["masks"] = torch.from_numpy(found["masks"])
    assert detector.finish("a", found, placed)["masks"] == expected


def test_a_run_that_begins_overwrites_no_outputs_of_another(detector_folder, monkeypatch):
    """In several threads: the model returns the same memory again and again."""
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector = Detector(detector_folder("encoded"))
    (network,) = detector._networks.values()
    memory = {
        "boxes": torch.zeros(1, 4),
        "scores": torch.zeros(1),
        "labels": torch.zeros(1, dtype=torch.int64),
    }

    class Model:
        def __call__(self, image):
            memory["scores"].fill_(float(image.max()))
            time.sleep(0.02)
            return memory

    detector._networks = {1: Network(Model(), network.images, [], "a folder")}
    found = {}
    values = [0.25, 0.5, 0.75]

    def run(value):
        (found[value],) = detector.run([torch.full((3, 48, 64), value)])

    threads = [threading.Thread(target=run, args=[value]) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(found[value]["scores"][0]) for value in values] == values


@pytest.mark.parametrize("is_known_later", [False, True])
def test_an_image_on_which_the_network_fails(detector_folder, monkeypatch, is_known_later):
    """As it begins, or when what it finds is waited for, as with most errors of a GPU."""
    monkeypatch.setattr(OnGpu, "of", lambda model: OnGpu("cpu"))
    detector = Detector(detector_folder("raw"))
    start = detector.start

    def fail():
        raise RuntimeError("a bright image")

    def failing(images):
        if max(float(image.max()) for image in detector.fitted(images)) <= 0.9:
            return start(images)
        return fail if is_known_later else fail()

    monkeypatch.setattr(detector, "start", failing)
    images = [detector.prepare(painted(48, 64, box))[0] for box in ((1, 1, 9, 9), None)]
    bad, good = detector.run_each(images, ["bright", "dark"])
    assert isinstance(bad, BadImage) and "boxes" in good
