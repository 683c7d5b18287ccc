"""MakeDetectionStatic of several images, whose rows are put in a row and taken apart again."""

import functools

import numpy as np
import pytest

from tests.helpers import apply, module, refusals, runner
from tests.passes.images_of_masks import MAX_KEPT, Image, a_image
from tests.passes.kept_rows import bounds, size, static
from tvm_passes import MakeDetectionStatic

from tvm import relay
from tvm.relay.op.dyn import _make as dyn

TO_THE_END = np.iinfo("int64").max


def between(boxes, begin, end, columns=4):
    """boxes[begin:end, :columns], as an importer spells it: the result's type forgets all lengths."""
    inside = relay.minimum(relay.const(begin, "int32") if isinstance(begin, int) else begin, size(boxes))
    return dyn.strided_slice(boxes, bounds(inside, 0), bounds(end, columns), bounds(1, 1), "end")


FEW = 4


def images(number):
    """Inputs, and the boxes that an NMS keeps of each image, which are at most FEW."""
    made = [Image(place, FEW) for place in range(number)]
    inputs = [each for image in made for each in image.inputs]
    return inputs, [image.rows(image.boxes) for image in made]


def in_a_row(parts):
    return relay.concatenate(parts, axis=0)


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_what_was_put_in_a_row_is_taken_apart(outputs):
    inputs, boxes = images(3)
    first, second, third = map(size, boxes)
    moved = in_a_row(boxes) * relay.const(2.0)
    others = between(moved, first, first + second + third)
    parts = [
        between(moved, 0, first),
        between(moved, first, first + second),
        between(moved, first + second, TO_THE_END),
        between(others, second, second + third),
    ]
    after = static(module(*inputs, relay.Tuple([relay.reshape(part, (-1, 4)) for part in parts])), outputs)
    compute, seen = runner(after), set()
    for scales in ((9, 9, 1), (0.01, 9, 9), (9, 0.01, 0.01), (1, 1, 9), (9, 9, 9), (0.01, 0.01, 0.01)):
        arrays = [array for seed, scale in enumerate(scales) for array in a_image(seed, scale)]
        expected = [2 * array for array in detected(*arrays)]
        numbers = list(map(len, expected))
        *found, counted = compute(*arrays) if outputs == "padded" else (*compute(*arrays), numbers)
        assert list(counted) == numbers
        for array, wanted in zip(found, (*expected, expected[2])):
            np.testing.assert_array_equal(array[: len(wanted)], wanted)
            assert not array[len(wanted) :].any() and (len(array) == FEW or outputs == "cut")
        seen.update(enumerate(numbers))
    assert {(place, number) for place in range(3) for number in (0, FEW)} <= seen


@functools.cache
def _detects(number):
    inputs, boxes = images(number)
    return runner(module(*inputs, relay.Tuple(boxes)))


def detected(*arrays):
    """What `images` keeps of such inputs."""
    return _detects(len(arrays) // 3)(*arrays)


REFUSED_AMONG_OTHERS = {
    "rows other than the leading ones or a concatenated part": lambda first, second: between(
        in_a_row([first, second]), size(second), size(first) + size(second)
    ),
    "rows other than the leading ones": lambda first, second: between(first, 0, size(second)),
    "the slice of another axis": lambda first, second: between(first, 0, TO_THE_END, size(second)),
    "mixes rows with other axes": lambda first, second: dyn.reshape(first, bounds(size(second), -1), False),
    "a shape depends on the number of valid rows": lambda first, second: dyn.reshape(
        first, bounds(size(first) * size(second), -1), False
    ),
    "the operands have different valid rows": lambda first, second: (
        in_a_row([first, second]) + in_a_row([second, first])
    ),
}


@pytest.mark.parametrize("reason", REFUSED_AMONG_OTHERS)
def test_refusals_among_several_images(reason):
    inputs, boxes = images(2)
    mod = module(*inputs, REFUSED_AMONG_OTHERS[reason](*boxes))
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert after.same_as(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_each_image_has_a_number():
    first, second = Image(0), Image(1)
    boxes = first.rows(first.boxes)
    others = relay.transpose(second.rows(second.boxes))
    outputs = [boxes, others, relay.const(np.ones(MAX_KEPT)), relay.stack([boxes], 0)]
    mod = module(*first.inputs, *second.inputs, relay.Tuple(outputs))
    after = static(mod, "padded")
    counted = [list(map(int, rows)) for rows in after["main"].attrs["padded_rows"]]
    assert counted == [[0, 0], [1, 1], [], [1, 0]]
    dynamic, padded = runner(mod), runner(after)
    for scale in (1.0, 0.3, 0.01):
        inputs = *a_image(), *a_image(1, scale)
        expected, (*found, numbers) = dynamic(*inputs), padded(*inputs)
        assert list(numbers) == [len(expected[0]), expected[1].shape[1]]
        for array, wanted, rows in zip(found, expected, counted):
            axis, number = (rows[0], numbers[rows[1]]) if rows else (0, len(array))
            detections, behind = np.split(array, [number], axis)
            np.testing.assert_array_equal(detections, wanted)
            assert not behind.any()
