"""ReturnRawMasks: the small masks in place of images, before and after MakeDetectionStatic."""

import numpy as np
import pytest

from tests.helpers import apply, assert_no_second_change, module, ops, refusals, runner
from tests.passes.images_of_masks import CANVAS, Image, a_image, with_masks
from topi_ext.paste_masks import reference
from tvm_passes import Canonicalize, MakeDetectionStatic, ReturnRawMasks

import tvm
from tvm import relay


def raw(mod):
    after, report = apply(ReturnRawMasks(), mod)
    assert not refusals(report), refusals(report)
    return after


def static(outputs):
    return tvm.transform.Sequential([MakeDetectionStatic(outputs), Canonicalize()])


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_pasting_them_gives_the_images(scale):
    mod = with_masks()
    after = raw(mod)
    assert "topi_ext.paste_masks" not in ops(after)
    boxes, images = runner(mod)(*a_image(0, scale))
    same_boxes, masks = runner(after)(*a_image(0, scale))
    np.testing.assert_array_equal(same_boxes, boxes)
    assert masks.shape == (len(boxes), 1, 5, 5)
    np.testing.assert_allclose(reference.paste_masks(masks, boxes, CANVAS[::-1]), images, atol=2e-6)
    assert_no_second_change(ReturnRawMasks(), after)


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_before_or_after_shapes_are_fixed(outputs):
    before, _ = apply(static(outputs), raw(with_masks()))
    after = raw(apply(static(outputs), with_masks())[0])
    tvm.ir.assert_structural_equal(before["main"], after["main"])
    expected = runner(raw(with_masks()))(*a_image(0, 0.3))
    for wanted, found in zip(expected, runner(after)(*a_image(0, 0.3))):
        np.testing.assert_array_equal(found[: len(wanted)], wanted)
        assert not found[len(wanted) :].any()


def test_names_stay():
    mod = with_masks()
    mod["main"] = mod["main"].with_attr("output_names", ["boxes", "masks"])
    assert list(raw(mod)["main"].attrs["output_names"]) == ["boxes", "masks"]


def test_masks_alone():
    image = Image()
    after = raw(module(*image.inputs, image.pasted(threshold=0.5)))
    assert after["main"].ret_type.dtype == "float32"  # not what a threshold makes of them


REFUSED = {
    "something computed of them": lambda images: images > relay.const(0.5),
    "beside that": lambda images: [images, relay.max(images, axis=[2, 3])],
    "in a tuple of outputs": lambda images: relay.Tuple([images]),
}


@pytest.mark.parametrize("use", REFUSED)
def test_images_that_are_used(use):
    mod = with_masks(REFUSED[use])
    after, report = apply(ReturnRawMasks(), mod)
    assert refusals(report) == ["the pasted images have users besides the outputs of the function"]
    assert after.same_as(mod)


def test_functions_that_others_call():
    mod = with_masks()
    argument = relay.var("x", shape=(3,))
    mod["other"] = relay.Function([argument], argument)
    after, report = apply(ReturnRawMasks(), mod)
    assert after.same_as(mod) and "may call this one" in refusals(report)[0]
