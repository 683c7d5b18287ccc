"""The forms in which networks take batches of images, and give the detections of each."""

import numpy as np
import pytest

from tvm_passes.batch import BatchError
from tvm_passes.batch.network import Images, Network


def images_of(*shapes, dtype="float32"):
    inputs = [{"name": f"i{at}", "shape": list(shape), "dtype": dtype} for at, shape in enumerate(shapes)]
    return Images.of({"inputs": inputs, "about": {}})


def arrays_of(images, number):
    each = images.taken
    shape = (2, 5, 3) if each.layout == "NHWC" else (each.channels, 2, 5)
    return images.inputs([np.full(shape, value, each.dtype) for value in range(number)])


@pytest.mark.parametrize(
    "shapes, dtype, number",
    [
        ([(1, 3, 2, 5)], "float32", 1),
        ([(None, 3, None, None)], "float32", 1),
        ([(3, 2, 5)], "float16", 1),
        ([(4, 3, 2, 5)], "float32", 4),
        ([(4, 2, 5, 3)], "uint8", 4),
        ([(3, 2, 5)] * 4, "float32", 4),
        ([(1, 1, 2, 5)] * 4, "float32", 4),
    ],
)
def test_inputs_that_are_images(shapes, dtype, number):
    images = images_of(*shapes, dtype=dtype)
    assert images.number == number
    for count in {1, number}:
        arrays = arrays_of(images, count)
        assert len(arrays) == len(shapes)
        for array, shape in zip(arrays, shapes):
            assert array.dtype == dtype and array.ndim == len(shape)
            assert all(length in (None, found) for length, found in zip(shape, array.shape))
        values = [
            int(value) for array in arrays for value in array.reshape(-1, 30 if number == 1 else 1)[:, 0]
        ]
        assert set(values) == set(range(count))  # the last one fills the batch


@pytest.mark.parametrize(
    "shapes", [[], [(1, 3, 2, 5), (1, 3, 9, 9)], [(1, 64, 2, 5)], [(7,)], [(2, 3, 2, 5)] * 2]
)
def test_inputs_that_are_none(shapes):
    assert images_of(*shapes) is None


class Fake:
    """A model that returns the same, whatever it is given."""

    def __init__(self, **outputs):
        self.outputs, self.output_names = outputs, list(outputs)

    def __call__(self, *_):
        return self.outputs


def found_by(images, number, rows=(), **outputs):
    network = Network(Fake(**outputs), images, rows, "folder")
    return network.start([np.zeros((3, 2, 5), "float32")] * number)()


BOXES = np.arange(2 * 3 * 4, dtype="float32").reshape(2, 3, 4)
SCORES, LABELS = np.float32([[0.9, 0.8, 0], [0.7, 0, 0]]), np.int32([[1, 2, 0], [3, 0, 0]])
TWO = images_of((2, 3, 2, 5))


def test_detections_with_an_axis_of_images():
    first, second = found_by(TWO, 2, boxes=BOXES, scores=SCORES, labels=LABELS)
    np.testing.assert_array_equal(first["boxes"], BOXES[0])
    np.testing.assert_array_equal(second["scores"], SCORES[1])


def test_detections_that_are_counted_by_an_output():
    numbers = np.int32([[2], [1]])
    outputs = {"num_dets": numbers, "det_boxes": BOXES, "det_scores": SCORES, "det_classes": LABELS}
    first, second = found_by(TWO, 2, **outputs)
    np.testing.assert_array_equal(first["boxes"], BOXES[0, :2])
    assert second["labels"].tolist() == [3] and len(second["boxes"]) == 1


def test_padded_detections_of_a_single_image():
    """Their axis is not the first one that is longer than 1, so they are not cut before they are copied."""
    rows = [[1, 0], [1, 0], [1, 0]]
    (found,) = found_by(
        images_of((1, 3, 2, 5)),
        1,
        rows,
        boxes=BOXES[:1],
        scores=SCORES[:1],
        labels=LABELS[:1],
        num_detections=np.int32(2),
    )
    assert found["boxes"].shape == (2, 4) and found["labels"].tolist() == [1, 2]


def test_outputs_that_are_none():
    with pytest.raises(BatchError, match=r"folder returns a: float32 \[2, 3, 4\], in which no boxes"):
        found_by(TWO, 2, a=BOXES)
