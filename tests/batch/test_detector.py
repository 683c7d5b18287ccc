"""What is found, in the pixels of each image; batches as Ray Data gives them."""

import io

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from tests.batch.conftest import KINDS
from tests.batch.networks import SIZE, painted, painted_detector
from tests.command.networks import colours
from tvm_passes import runtime
from tvm_passes.batch import BatchError, Detector
from tvm_passes.batch.network import check_detects

SIZES = [(480, 640), (640, 480), (90, 300), (300, 90), (48, 64), (40, 44)]
BOXES = (0.2, 0.1, 0.5, 0.6), None, (0.55, 0.3, 0.95, 0.9)  # in parts of the image


def boxes_in(height, width):
    """The same in pixels."""
    return [
        None if box is None else tuple(int(part * length) for part, length in zip(box, (width, height) * 2))
        for box in BOXES
    ]


@pytest.fixture(scope="module")
def detectors(detector_folder):
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Detector(detector_folder(kind))
        return made[kind]

    return of


def found_in(detector, *images):
    rows = detector({"image": list(images)}).to_pylist()
    assert [row["error"] for row in rows] == [None] * len(images)
    return [dict(row, boxes=np.array(row["boxes"])) for row in rows]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["encoded", "raw", "pasted"])
def test_boxes_masks_and_keypoints_are_those_of_the_image(detectors, kind, size):
    height, width = size
    wanted = [box for box in boxes_in(*size) if box]
    (row,) = found_in(detectors(kind), painted(height, width, *boxes_in(*size)))
    assert (row["height"], row["width"]) == size and row["labels"] == [0, 2]
    pixel = max(height / SIZE[0], width / SIZE[1], 1)  # one of the input, in the image
    np.testing.assert_allclose(row["boxes"], wanted, atol=pixel + 0.01)
    for box, string in zip(wanted, row["masks"]):
        left, top, right, bottom = box
        expected = np.zeros(size, "uint8")
        expected[top:bottom, left:right] = 1
        mask = {"size": list(size), "counts": string}
        (overlap,) = coco.iou([mask], [coco.encode(np.asfortranarray(expected))], [0])[0]
        border = 2 * (right - left + bottom - top)
        assert overlap >= 1 - 2 * pixel * border / expected.sum()
        assert overlap > 0.5
    if kind == "encoded":
        centers = [((left + right) / 2, (top + bottom) / 2, 1) for left, top, right, bottom in wanted]
        np.testing.assert_allclose(np.array(row["keypoints"])[:, 0], centers, atol=pixel + 0.01)


def test_the_same_masks_by_all_ways_of_a_network(detectors):
    image = painted(*SIZE, *boxes_in(*SIZE))  # of its own size: nothing is resized
    encoded, raw, pasted = (found_in(detectors(kind), image)[0] for kind in ("encoded", "raw", "pasted"))
    assert encoded["masks"] == raw["masks"] == pasted["masks"]


def test_boxes_are_clipped_and_those_without_area_left_out(detectors):
    detector = detectors("raw")
    _, placed = detector.prepare(painted(100, 50))  # resized to 48 x 24, in 48 x 64
    nan = float("nan")
    boxes = [[-5, -5, 10, 10], [30, 5, 40, 10], [3, 3, 3, 9], [8, 8, 4, 4], [nan, 0, 5, 5], [20, 40, 60, 60]]
    found = {
        "boxes": np.float32(boxes),
        "scores": np.linspace(0, 1, 6, dtype="float32"),
        "labels": np.arange(6),
        "masks": np.ones((6, 1, 28, 28), "float32"),
    }
    row = detector.finish("a", found, placed)
    assert row["labels"].tolist() == [0, 5] and len(row["masks"]) == len(row["scores"]) == 2
    np.testing.assert_allclose(
        row["boxes"], [[0, 0, 20.8333, 20.8333], [41.6667, 83.3333, 50, 100]], atol=1e-3
    )


def test_batches_are_filled_and_padded(detectors):
    four = detectors("four")
    assert four.batch == 4
    images = [painted(*size, *boxes_in(*size)) for size in SIZES[:5]]
    together = found_in(four, *images)
    for image, row in zip(images, together):
        (alone,) = found_in(four, image)
        np.testing.assert_array_equal(row["boxes"], alone["boxes"])
        np.testing.assert_array_equal(row["scores"], alone["scores"])
    assert together[0]["boxes"].shape == (2, 4)
    assert not np.array_equal(together[0]["boxes"], together[1]["boxes"])


def test_a_batch_of_ray_data(detectors):
    """Its columns are arrays of objects; a bad image has its error, and nothing else."""
    file = io.BytesIO()
    Image.fromarray(painted(*SIZE, *boxes_in(*SIZE))).save(file, "PNG")
    batch = {
        "bytes": np.array([file.getvalue(), b"", file.getvalue()], object),
        "path": np.array(["a.png", "b.png", "c.png"]),
    }
    table = detectors("four")(batch)
    columns = table.to_pydict()
    assert columns["image_id"] == ["a.png", "b.png", "c.png"]
    assert columns["error"] == [None, "is empty", None] and columns["height"] == [SIZE[0], None, SIZE[0]]
    assert [len(boxes) for boxes in columns["boxes"]] == [2, 0, 2]
    assert detectors("encoded")({"bytes": [b""]}).schema == table.schema  # whatever is found
    with pytest.raises(BatchError, match='must have a column "bytes" or "image", and has pixels'):
        detectors("four")({"pixels": []})


def test_images_take_the_smallest_size_that_holds_them(detectors, sizes_that_ran):
    sizes = detectors("sizes")
    assert sizes.batch == 5
    images = [painted(*size, *boxes_in(*size)) for size in (*SIZES, SIZES[0])]
    together = found_in(sizes, *images)
    assert sizes_that_ran == [5, 2]
    alone = [found_in(sizes, image)[0] for image in images]
    assert sizes_that_ran == [5, 2] + [1] * 7
    for one, other in zip(together, alone):
        np.testing.assert_array_equal(one["boxes"], other["boxes"])
        np.testing.assert_array_equal(one["scores"], other["scores"])
    found_in(sizes, *images[:3])
    assert sizes_that_ran[-1] == 5


def test_a_size_that_is_not_the_largest(detector_folder, sizes_that_ran):
    detector = Detector(detector_folder("sizes"), batch=2)
    assert detector.batch == 2
    found_in(detector, *[painted(48, 64)] * 3)
    assert sizes_that_ran == [2, 1]


@pytest.mark.parametrize("kind, sizes", [("four", "4"), ("sizes", "1, 2, 5")])
def test_sizes_of_batches_that_a_folder_does_not_have(detector_folder, kind, sizes):
    with pytest.raises(BatchError, match=f"compiled for batches of {sizes}, not 3: give one of these"):
        Detector(detector_folder(kind), batch=3)


def test_networks_that_do_not_take_the_same_images(tmp_path):
    mods = {1: painted_detector(), 2: painted_detector(2, size=(48, 48))}
    networks = {size: (runtime.build_library(mod, "llvm"), mod) for size, mod in mods.items()}
    runtime.save_sizes(tmp_path, networks, "llvm")
    with pytest.raises(BatchError, match="has networks that do not take the same images: compile again"):
        Detector(tmp_path)


def saved(folder, mod):
    runtime.save(folder, runtime.build_library(mod, "llvm"), mod, "llvm")
    return folder


def test_other_folders(tmp_path):
    from tests.command.networks import bright_pixels

    with pytest.raises(BatchError, match=r"has no manifest.json: give a folder that was compiled to"):
        Detector(tmp_path)
    other = saved(tmp_path / "other", bright_pixels()[0])
    with pytest.raises(BatchError, match=r"returns where: .*no boxes, scores and labels are recognized"):
        Detector(other)({"image": [painted(24, 32)]})


def test_what_a_manifest_tells_of_a_detector(detector_folder, tmp_path):
    """Before anything of it is loaded."""
    from tests.command.networks import bright_pixels, colours_with_masks

    folders = [detector_folder(kind) for kind in KINDS]
    for folder in [*folders, saved(tmp_path / "masks", colours_with_masks()[0])]:
        check_detects(runtime.read_manifest(folder), folder)
    other = saved(tmp_path / "other", bright_pixels()[0])
    with pytest.raises(BatchError, match=r"returns where: int32 .*no boxes, scores and labels are recogn"):
        check_detects(runtime.read_manifest(other), other)


def test_a_detector_of_another_module(tmp_path):
    (row,) = found_in(Detector(saved(tmp_path, colours()[0])), painted(48, 64, (0, 0, 64, 48)))
    np.testing.assert_allclose(row["boxes"][0], [4, 6, 24, 28])
    assert row["scores"][0] > 0.99 and row["masks"] is None and row["keypoints"] is None


def test_files_that_are_no_bytes(detector_folder):
    detect = Detector(detector_folder("encoded"))
    errors = detect({"bytes": ["text", None, b""]}).column("error").to_pylist()
    assert errors == [
        "is str, not the bytes of an encoded image",
        "is NoneType, not the bytes of an encoded image",
        "is empty",
    ]


def test_columns_that_do_not_fit(detector_folder):
    """Images without an id were left out, and bytes were taken for a list."""
    detect = Detector(detector_folder("encoded"))
    with pytest.raises(BatchError, match="must be lists of one length, not of 2, 1"):
        detect({"bytes": [b"", b""], "path": ["a.jpg"]})
    with pytest.raises(BatchError, match="must be lists of one length, not of bytes"):
        detect({"bytes": b"\xff\xd8"})


def test_arrays_that_are_no_images(detector_folder):
    """Floats from 0 to 1 were taken for bytes, and one image of gray ended the whole batch."""
    arrays = [
        np.zeros((9, 9), "uint8"),
        np.zeros((9, 9, 4), "uint8"),
        np.ones((9, 9, 3), "float32"),
        np.zeros((0, 9, 3), "uint8"),
        None,
        np.zeros((9, 9, 3), "uint8"),
    ]
    errors = Detector(detector_folder("encoded"))({"image": arrays}).column("error").to_pylist()
    assert errors == [
        "is uint8 (9, 9), not uint8 (height, width, 3)",
        "is uint8 (9, 9, 4), not uint8 (height, width, 3)",
        "is float32 (9, 9, 3), not uint8 (height, width, 3)",
        "is empty",
        "is NoneType (), not uint8 (height, width, 3)",
        None,
    ]
