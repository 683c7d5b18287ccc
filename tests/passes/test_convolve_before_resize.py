"""ConvolveBeforeResize: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    refusals,
)
from tvm_passes import ConvolveBeforeResize, subpixel_pipeline
from tvm_passes.engine.graph import calls_of
from tvm_passes.subpixel.convolve_before_resize import REPEATING

from tvm import relay

SHAPE = 2, 3, 4, 5
EQUALLY_OFTEN = [(mode, rounding) for mode, roundings in REPEATING.items() for rounding in roundings]
UNEQUALLY = [("align_corners", ""), ("half_pixel", ""), ("half_pixel", "floor"), ("asymmetric", "round")]


def resized(x, times=(2, 2), mode="asymmetric", rounding="", layout="NCHW", method="nearest_neighbor"):
    extents = dict(zip(layout, map(int, x.type_annotation.shape)))
    size = [int(extents[axis] * factor) for axis, factor in zip("HW", times)]
    return relay.image.resize2d(x, size, None, layout, method, mode, rounding)


def of(filters=6, shape=SHAPE, times=(2, 2), mode="asymmetric", rounding="", **options):
    x = relay.var("x", shape=shape)
    return module(x, convolution(resized(x, times, mode, rounding), filters, shape[1], **options))


@pytest.mark.parametrize(
    "times, options",
    [
        (2, {}),
        (3, {}),
        (2, {"kernel": 1}),
        (2, {"kernel": 5}),
        (3, {"kernel": 2, "padding": (1, 0, 0, 1)}),
        (2, {"kernel": 7, "padding": (6, 0, 0, 6)}),
        (3, {"kernel": 3, "dilation": 2, "padding": (1, 0, 3, 4)}),
    ],
)
def test_the_shuffle_comes_last(times, options):
    mod = of(times=(times, times), **options)
    after = assert_same_numbers(ConvolveBeforeResize(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]
    assert_no_second_change(ConvolveBeforeResize(), after)


@pytest.mark.parametrize("mode, rounding", EQUALLY_OFTEN)
def test_coordinates_that_repeat_each_pixel(mode, rounding):
    mod = of(mode=mode, rounding=rounding, times=(3, 3), kernel=1)
    after = assert_same_numbers(ConvolveBeforeResize(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]


def test_in_nhwc():
    x = relay.var("x", shape=(2, 4, 5, 3))
    y = convolution(resized(x, layout="NHWC"), 6, 3, data_layout="NHWC", kernel_layout="HWIO")
    array = numbers(2, 4, 5, 3)
    after = assert_same_numbers(ConvolveBeforeResize(), module(x, y), array, rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]


def test_weights_of_repeated_pixels_are_summed():
    after, _ = apply(ConvolveBeforeResize(), of())
    (conv,) = calls_of(after, "nn.conv2d")
    weights = conv.args[1].data.numpy()
    assert weights.shape == (24, 3, 3, 3)
    assert (weights != 0).mean() == pytest.approx(4 / 9)  # a pixel of the block sees 2x2 pixels


def of_float16():
    x = relay.var("x", shape=SHAPE, dtype="float16")
    weight = relay.const(numbers(6, 3, 3, 3).astype("float16"))
    conv = relay.nn.conv2d(resized(x), weight, padding=1, channels=6, kernel_size=(3, 3))
    return module(x, conv)


def test_sums_are_rounded_once():
    after, _ = apply(ConvolveBeforeResize(), of_float16())
    (conv,) = calls_of(after, "nn.conv2d")
    last = conv.args[1].data.numpy()[-6:, :, 2, 2]  # of the last pixel of the block, and the last one it sees
    weights = numbers(6, 3, 3, 3).astype("float16").astype("float64")
    np.testing.assert_array_equal(last, weights[:, :, 2, 2].astype("float16"))
    middle = conv.args[1].data.numpy()[-6:, :, 1, 1]
    np.testing.assert_array_equal(middle, weights[:, :, :2, :2].sum((2, 3)).astype("float16"))


def two_users():
    x = relay.var("x", shape=SHAPE)
    y = resized(x)
    return module(x, relay.Tuple([convolution(y, 6, 3), y]))


def dynamic():
    x = relay.var("x", shape=(relay.Any(), *SHAPE[1:]))
    y = relay.image.resize2d(x, (8, 10), None, "NCHW", "nearest_neighbor", "asymmetric")
    return module(x, convolution(y, 6, 3))


def of_another_type():
    x = relay.var("x", shape=SHAPE, dtype="float16")
    y = relay.image.resize2d(x, (8, 10), None, "NCHW", "nearest_neighbor", "asymmetric", out_dtype="float32")
    return module(x, convolution(y, 6, 3))


def of_int8():
    x = relay.var("x", shape=SHAPE, dtype="int8")
    weight = relay.const(np.full((6, 3, 3, 3), 100, "int8"))
    return module(x, relay.nn.conv2d(resized(x), weight, padding=1, channels=6, out_dtype="int32"))


NOT_THESE = {
    "sums of integer weights may not fit into their type": [of_int8()],
    "the resized image has other users": [two_users()],
    "the shape is dynamic": [dynamic()],
    "the image is empty": [of(shape=(0, *SHAPE[1:]))],
    "the resize changes the type": [of_another_type()],
    "the convolution has strides": [of(strides=2)],
    "the result is not as large as the image that the convolution sees": [of(padding=0)],
    "height and width are not the same multiple of what they were": [
        of(times=(2, 3)),
        of(times=(1.5, 2)),
        of(times=(1, 1)),
    ],
    "does not repeat each pixel equally often": [of(mode=mode, rounding=each) for mode, each in UNEQUALLY],
    "the convolution would be no quicker before: 1.9 times": [
        of(64, (1, 64, 9, 9), dilation=4, padding=4)  # of windows with holes
    ],
}


@pytest.mark.parametrize("reason, mod", [(reason, mod) for reason in NOT_THESE for mod in NOT_THESE[reason]])
def test_refusals(reason, mod):
    after, report = apply(ConvolveBeforeResize(), mod)
    (found,) = refusals(report)
    assert after.same_as(mod) and reason in found


def test_interpolation_is_another_matter():
    x = relay.var("x", shape=SHAPE)
    mod = module(x, convolution(resized(x, mode="half_pixel", method="linear"), 6, 3))
    after, report = apply(ConvolveBeforeResize(), mod)
    assert after.same_as(mod) and not refusals(report)


def test_a_part_of_a_concatenated_image():
    """The sum of both parts is still that of a convolution and its residual."""
    x, y = (relay.var(name, shape=(1, 32, size, size)) for name, size in (("x", 32), ("y", 64)))
    joined = relay.concatenate([resized(x), y], 1)
    mod = module(x, y, relay.nn.relu(convolution(joined, 32, 64)))
    after, _ = apply(subpixel_pipeline("cuda -arch=sm_90"), mod)
    blocks = {int(call.attrs["block_size"]) for call in calls_of(after, "topi_ext.conv2d_nhwc")}
    assert blocks == {1, 2} and not {"image.resize2d", "concatenate", "add"} & set(ops(after))
