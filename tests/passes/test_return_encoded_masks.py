"""ReturnEncodedMasks: run lengths in place of images, before and after MakeDetectionStatic."""

import numpy as np
import pytest
from pycocotools import mask as coco

from tests.helpers import apply, assert_no_second_change, module, ops, refusals, runner
from tests.passes.images_of_masks import CANVAS, Image, a_image, with_masks
from tvm_passes import (
    Canonicalize,
    MakeDetectionStatic,
    ReturnEncodedMasks,
    ReturnRawMasks,
    detection_pipeline,
    runtime,
)

import tvm
from tvm import relay

SIZE = CANVAS[::-1]


def encoded(mod, *args, **options):
    after, report = apply(ReturnEncodedMasks(*args, **options), mod)
    assert not refusals(report), refusals(report)
    return after


def static(outputs):
    return tvm.transform.Sequential([MakeDetectionStatic(outputs), Canonicalize()])


def named(mod):
    mod["main"] = mod["main"].with_attr("output_names", ["boxes", "masks"])
    return mod


def by_pycocotools(images, threshold):
    return [coco.encode(np.asfortranarray(image >= threshold, "uint8")) for image in images[:, 0]]


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_as_pycocotools(scale, threshold):
    mod = with_masks()
    after = encoded(mod, threshold)
    assert "topi_ext.paste_masks" not in ops(after)
    boxes, images = runner(mod)(*a_image(0, scale))
    same_boxes, masks = runner(after)(*a_image(0, scale))
    np.testing.assert_array_equal(same_boxes, boxes)
    assert runtime.coco_masks(masks, SIZE) == by_pycocotools(images, threshold)
    assert_no_second_change(ReturnEncodedMasks(threshold), after)


@pytest.mark.parametrize("threshold", [0.7, 0.0])
def test_a_threshold_of_the_network(threshold):
    mod = with_masks(threshold=threshold)
    images, masks = (runner(each)(*a_image())[1] for each in (mod, encoded(mod, 0.5)))
    assert runtime.coco_masks(masks, SIZE) == by_pycocotools(images, 1)


def test_bits():
    mod = with_masks()
    images, bits = (runner(each)(*a_image())[1] for each in (mod, encoded(mod, form="bits")))
    np.testing.assert_array_equal(bits, np.packbits(images[:, 0] >= 0.5, axis=2))


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_before_or_after_shapes_are_fixed(outputs):
    before, _ = apply(static(outputs), encoded(with_masks()))
    after = encoded(apply(static(outputs), with_masks())[0])
    tvm.ir.assert_structural_equal(before["main"], after["main"])
    boxes, masks, *number = runner(after)(*a_image(0, 0.3))
    count = len(runner(with_masks())(*a_image(0, 0.3))[0])
    assert not number or number[0] == count < len(masks)
    expected = by_pycocotools(runner(with_masks())(*a_image(0, 0.3))[1], 0.5)
    found = runtime.coco_masks(masks, SIZE)
    assert found[:count] == expected
    assert not any(map(coco.area, found[count:])) and not boxes[count:].any()


@pytest.mark.parametrize("threshold", [0.4, 0.0])
def test_a_model_that_cuts(threshold):
    """Names and `padded_rows` fit, and only the detections come back."""
    mod = named(with_masks(threshold=threshold))
    padded, _ = apply(static("padded"), encoded(mod))
    assert list(padded["main"].attrs["output_names"]) == ["boxes", "masks", "num_detections"]
    model = runtime.compile(padded, "llvm", cut=True)
    for scale in (1.0, 0.3, 0.01):
        images = runner(mod)(*a_image(0, scale))[1]
        found = model(*a_image(0, scale))
        assert len(found["boxes"]) == len(found["masks"]) == len(images)
        assert runtime.coco_masks(found["masks"], SIZE) == by_pycocotools(images, 1)


def test_on_cuda(emulated_cuda):
    padded, _ = apply(static("padded"), encoded(with_masks(), 0.4))
    images = runner(with_masks())(*a_image(0, 0.3))[1]
    _, masks, number = emulated_cuda.run_relay(padded, *a_image(0, 0.3))
    assert runtime.coco_masks(masks[:number], SIZE) == by_pycocotools(images, 0.4)


def test_masks_alone():
    image = Image()
    after = encoded(module(*image.inputs, image.pasted()), capacity=99)
    assert after["main"].ret_type.dtype == "uint8" and after["main"].ret_type.shape[1] == 99


def test_images_that_are_used():
    mod = with_masks(lambda images: images > relay.const(0.5))
    after, report = apply(ReturnEncodedMasks(), mod)
    assert refusals(report) == ["the pasted images have users besides the outputs of the function"]
    assert after.same_as(mod)


def test_a_form_that_there_is_not():
    with pytest.raises(ValueError, match="form must be rle or bits, not 'png'"):
        ReturnEncodedMasks(form="png")


@pytest.mark.parametrize("options", [{"capacity": 0}, {"form": "bits", "capacity": 100}])
def test_a_capacity_that_there_is_not(options):
    with pytest.raises(ValueError, match="ReturnEncodedMasks: capacity must be at least 1"):
        ReturnEncodedMasks(**options)


MASKS = {None: None, "pasted": None, "raw": ReturnRawMasks(), "encoded": ReturnEncodedMasks()}


@pytest.mark.parametrize("outputs", ["dynamic", "padded"])
@pytest.mark.parametrize("masks", MASKS)
def test_as_an_option_of_the_pipeline(masks, outputs):
    mod = named(with_masks())
    found = detection_pipeline("llvm", outputs=outputs, masks=masks)(mod)
    expected = detection_pipeline("llvm", outputs=outputs)(MASKS[masks](mod) if MASKS[masks] else mod)
    tvm.ir.assert_structural_equal(found["main"], expected["main"])


def test_masks_that_there_are_not():
    with pytest.raises(ValueError, match="masks must be one of pasted, raw, encoded, not 'drawn'"):
        detection_pipeline("llvm", masks="drawn")
