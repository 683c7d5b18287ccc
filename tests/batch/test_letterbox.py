"""How an image is fitted into the input of a network."""

import numpy as np
import pytest
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from topi_ext.preprocess import reference
from tvm_passes.batch.image_input import ImageInput
from tvm_passes.batch.letterbox import PADDING, Placed, letterbox

FLOATS = ImageInput(48, 64, 3, "NCHW", "float32")


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), "uint8")


@pytest.mark.parametrize("size", [(48, 64), (96, 128), (100, 60), (20, 300), (7, 9)])
def test_as_the_operator_resizes(size):
    image = noise(*size)
    array, placed = letterbox(image, FLOATS)
    expected = reference.preprocess(image[None], placed.resized, mean=[0] * 3, std=[255] * 3)[0]
    height, width = placed.resized
    scale = min(48 / size[0], 64 / size[1])
    np.testing.assert_allclose((height, width), np.maximum(np.array(size) * scale, 1), atol=1)
    assert height <= 48 and width <= 64
    np.testing.assert_allclose(array[:, :height, :width], expected, atol=2e-5)
    padding = np.concatenate([array[:, height:].ravel(), array[:, :, width:].ravel()])
    assert set(np.unique(padding)) <= set(np.float32(PADDING) * np.float32(255) / np.float32(255))


@pytest.mark.parametrize("size", [(100, 200), (102, 136), (105, 140), (33, 44), (48, 64), (1000, 1500)])
def test_as_a_detector_of_torchvision_resizes_and_pads(size):
    """What it sees after its own normalization is what it makes of an image of any size by itself."""
    transform = GeneralizedRCNNTransform(48, 64, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    image = noise(*size)
    array, placed = letterbox(image, FLOATS)
    theirs, _ = transform([torch.from_numpy(image).permute(2, 0, 1) / 255])
    ours = transform.normalize(torch.from_numpy(array)).numpy()
    height, width = placed.resized
    assert theirs.image_sizes == [placed.resized]
    np.testing.assert_allclose(ours[:, :height, :width], theirs.tensors[0, :, :height, :width], atol=1e-4)
    assert np.abs(ours[:, height:]).max(initial=0) < 1e-6 and np.abs(ours[:, :, width:]).max(initial=0) < 1e-6


def test_bytes_of_a_camera():
    taken = ImageInput(20, 20, 3, "NHWC", "uint8")
    image = np.full((20, 10, 3), (200, 100, 50), "uint8")
    array, _ = letterbox(image, taken)
    swapped, _ = letterbox(image, taken, "BGR")
    assert array.shape == (20, 20, 3) and array.dtype == "uint8"
    assert array[0, 0].tolist() == [200, 100, 50] and swapped[0, 0].tolist() == [50, 100, 200]
    assert array[0, 19].tolist() == [124, 116, 104] and swapped[0, 19].tolist() == [104, 116, 124]


def test_luminance_in_half_precision():
    array, _ = letterbox(np.full((5, 5, 3), 255, "uint8"), ImageInput(5, 5, 1, "CHW", "float16"))
    assert array.shape == (1, 5, 5) and array.dtype == "float16"
    np.testing.assert_allclose(array, 1, rtol=1e-3)


def test_a_size_that_may_be_any():
    placed = Placed.of((33, 77), ImageInput(None, None, 3, "NCHW", "float32"))
    assert placed.image == placed.resized == placed.given == (33, 77) and placed.factor == (1, 1)
