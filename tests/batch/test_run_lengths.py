"""Masks brought back to the image as runs, versus the same by pixels."""

import numpy as np
import pytest
from pycocotools import mask as coco

from topi_ext.paste_masks import reference
from tvm_passes.batch import run_lengths
from tvm_passes.batch.image_input import ImageInput
from tvm_passes.batch.letterbox import Placed

SIZES = [(24, 32), (48, 64), (96, 40), (17, 91), (300, 200), (1, 50), (50, 1)]


def blobs(seed, height, width):
    """Masks with all kinds of borders: nothing, everything, stripes, noise, discs."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    yield np.zeros((height, width), bool)
    yield np.ones((height, width), bool)
    yield x % 3 == 0
    yield y % 3 == 0
    yield random.random((height, width)) < 0.5
    yield (y - height / 2) ** 2 + (x - width / 3) ** 2 < (height / 3) ** 2


def decoded(string, size):
    return coco.decode({"size": list(size), "counts": string}).astype(bool)


@pytest.mark.parametrize("image", SIZES)
def test_masks_of_the_input_become_those_of_the_image(image):
    placed = Placed.of(image, ImageInput(24, 32, 3, "NCHW", "float32"))
    rows, columns = (
        ((np.arange(length) + 0.5) * part / length).astype(int)
        for length, part in zip(placed.image, placed.resized)
    )
    for mask in blobs(0, *placed.given):
        string = run_lengths.of_pixels(mask, mask.shape)
        found = run_lengths.in_the_image(string, placed)
        expected = mask[np.ix_(rows, columns)]
        np.testing.assert_array_equal(decoded(found, image), expected)
        assert found == coco.encode(np.asfortranarray(expected, "uint8"))["counts"]
        assert run_lengths.area(found) == expected.sum()


def test_masks_as_pycocotools_encodes_them():
    for mask in blobs(1, 20, 30):
        string = run_lengths.of_pixels(mask, mask.shape)
        assert string == coco.encode(np.asfortranarray(mask, "uint8"))["counts"]


@pytest.mark.parametrize(
    "box",
    [
        (5, 6, 25, 30),
        (-10, -3, 8, 70),
        (0, 0, 50, 40),
        (40.2, 3.7, 90, 9),
        (3, 3, 3.5, 3.5),
        (60, 60, 70, 70),
        (0, 0, np.inf, 9),
    ],
)
def test_small_masks_are_pasted(box):
    size, box = (40, 50), np.float32(box)
    for seed in range(3):
        mask = np.random.default_rng(seed).random((28, 28), "float32")
        expected = reference.paste_masks(mask[None, None], box[None], size, threshold=0.5)[0, 0]
        assert run_lengths.of_box(mask, box, size) == coco.encode(np.asfortranarray(expected))["counts"]
