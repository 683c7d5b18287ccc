"""FoldPreprocessing: structure, numbers, refusals, and nothing more the second time."""

import re

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
    run,
)
from tvm_passes import CombineTransposes, ConvertToNHWC, FoldPreprocessing, InMixedPrecision

import tvm
from tvm import relay

NAME = "topi_ext.preprocess"
CAMERA = (1, 20, 30, 3)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # the graph's places between pixels are rounded, the operator's are not


def camera(shape=CAMERA, dtype="uint8"):
    return relay.var("x", shape=shape, dtype=dtype)


def planes(x):
    """As a network takes a camera's image."""
    return relay.cast(relay.transpose(x, (0, 3, 1, 2)), "float32") / relay.const(255.0)


def per_channel(values, axis=1, rank=4):
    shape = [len(values) if at == axis else 1 for at in range(rank)]
    return relay.const(np.array(values, "float32").reshape(shape))


def normalised(x, axis=1):
    rank = len(CAMERA)
    return (x - per_channel(MEAN, axis, rank)) / per_channel(STD, axis, rank)


def resized(x, size=(14, 23), **options):
    options = {
        "layout": "NCHW",
        "method": "linear",
        "coordinate_transformation_mode": "half_pixel",
        **options,
    }
    return relay.image.resize2d(x, size, **options)


def padded(x, down=2, right=9, **options):
    return relay.nn.pad(x, ((0, 0), (0, 0), (0, down), (0, right)), **options)


def with_zeros(x):
    """The image with a fourth channel of zeros."""
    return relay.nn.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0)))


def pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, "uint8")


def folded(x, y, *arrays, only=True):
    """The options of the operator that a graph becomes, after its numbers were compared."""
    after = assert_same_numbers(FoldPreprocessing(), module(x, y), *arrays, **CLOSE)
    assert not only or [name for name in ops(after) if name != "expand_dims"] == [NAME]
    assert_no_second_change(FoldPreprocessing(), after)
    return after["main"].body.attrs


# --- what becomes one operator


def test_a_channel_of_zeros():
    x = camera()
    y = relay.layout_transform(with_zeros(padded(resized(normalised(planes(x))))), "NCHW", "NHWC")
    options = folded(x, y, pixels(*CAMERA))
    assert int(options["padded_channels"]) == 4 and len(options["mean"]) == 3
    assert list(options["padded_size"]) == [16, 32] and str(options["layout"]) == "NHWC"


def test_all_of_it():
    x = camera()
    options = folded(x, padded(resized(normalised(planes(x)))), pixels(*CAMERA))
    assert list(options["size"]) == [14, 23] and list(options["padded_size"]) == [16, 32]
    assert (options["image_layout"], options["layout"], options["swap_channels"]) == ("NHWC", "NCHW", 0)
    np.testing.assert_allclose([float(value) for value in options["mean"]], np.array(MEAN) * 255, rtol=1e-6)
    np.testing.assert_allclose([float(value) for value in options["std"]], np.array(STD) * 255, rtol=1e-6)


def test_of_a_float_image():
    x = camera((1, 3, 20, 30), "float32")
    options = folded(x, resized(normalised(x)), np.abs(numbers(1, 3, 20, 30)))
    assert options["image_layout"] == "NCHW"


def test_of_one_image_without_a_batch():
    x = camera((3, 20, 30), "float32")
    y = (x - per_channel(MEAN, 0, 3)) / per_channel(STD, 0, 3)
    y = relay.take(resized(relay.expand_dims(y, 0)), relay.const(0), axis=0, mode="wrap")
    y = relay.nn.pad(y, ((0, 0), (0, 2), (0, 9)))
    folded(x, relay.stack([y], 0), np.abs(numbers(3, 20, 30)))


@pytest.mark.parametrize("combine", ["stack", "concatenate"])
@pytest.mark.parametrize("take", ["split", "take"])
def test_of_a_batch_that_is_taken_apart(take, combine):
    x = camera((3, 20, 30, 3))
    whole = planes(x)
    split = relay.split(whole, 3)
    results = []
    for index in range(3):
        if take == "split":
            image = relay.squeeze(split[index], [0])
        else:
            image = relay.take(whole, relay.const(index), axis=0)
        image = (image - per_channel(MEAN, 0, 3)) / per_channel(STD, 0, 3)
        image = relay.squeeze(padded(resized(relay.expand_dims(image, 0))), [0])
        results.append(image if combine == "stack" else relay.expand_dims(image, 0))
    y = relay.stack(results, 0) if combine == "stack" else relay.concatenate(results, 0)
    options = folded(x, y, pixels(3, 20, 30, 3))
    assert list(options["padded_size"]) == [16, 32]


@pytest.mark.parametrize(
    "flip", [lambda x: relay.reverse(x, 1), lambda x: relay.take(x, relay.const([2, 1, 0]), axis=1)]
)
def test_channels_from_last_to_first(flip):
    x = camera()
    assert folded(x, resized(normalised(flip(planes(x)))), pixels(*CAMERA))["swap_channels"] == 1
    assert folded(x, resized(flip(normalised(planes(x)))), pixels(*CAMERA))["swap_channels"] == 1
    assert folded(x, resized(flip(normalised(flip(planes(x))))), pixels(*CAMERA))["swap_channels"] == 0


@pytest.mark.parametrize(
    "arithmetic",
    [
        lambda x: relay.const(0.5) - x,
        lambda x: relay.const(2.0) * x + per_channel(MEAN),
        lambda x: per_channel(MEAN) + relay.divide(x, per_channel(STD)),
        lambda x: x * relay.expand_dims(relay.const(np.array(STD, "float32")), 1, 2) * relay.const(-3.0),
    ],
)
def test_any_arithmetic_by_channel(arithmetic):
    x = camera()
    folded(x, resized(arithmetic(planes(x))), pixels(*CAMERA))
    folded(x, arithmetic(resized(planes(x))), pixels(*CAMERA))


def test_normalised_after_it_is_resized():
    x = camera()
    folded(x, padded(normalised(resized(planes(x)))), pixels(*CAMERA))


def test_in_nhwc():
    x = camera()
    y = normalised(relay.cast(x, "float32") / relay.const(255.0), axis=3)
    assert folded(x, resized(y, layout="NHWC"), pixels(*CAMERA))["layout"] == "NHWC"


def test_layout_and_type_that_come_later():
    """First the image, then what other passes put between it and its convolution."""
    x = camera()
    y = convolution(padded(resized(normalised(planes(x)))), 4, 3)
    mod = module(x, y)
    passes = [FoldPreprocessing(), InMixedPrecision(), ConvertToNHWC(), CombineTransposes()]
    mixed = tvm.transform.Sequential(passes)(mod)
    after, _ = apply(FoldPreprocessing(), mixed)
    assert ops(after)[:2] == [NAME, "nn.conv2d"] and {"cast", "layout_transform"} <= set(ops(mixed)[:3])
    image = pixels(*CAMERA)
    expected, found = run(mod, image)[0], run(after, image)[0]
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)
    assert_no_second_change(FoldPreprocessing(), after)


def test_a_cast_and_a_transpose_in_either_order():
    x = camera()
    y = resized(normalised(planes(x)))
    for z in (
        relay.cast(relay.transpose(y, (0, 2, 3, 1)), "float16"),
        relay.layout_transform(relay.cast(y, "float16"), "NCHW", "NHWC"),
    ):
        after, _ = apply(FoldPreprocessing(), module(x, z))
        assert ops(after) == [NAME]
        expected, found = (run(mod, pixels(*CAMERA))[0] for mod in (module(x, z), after))
        assert found.dtype == "float16"
        np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), rtol=2e-3, atol=1e-3)


# --- what is refused


def image():
    x = camera()
    return x, resized(normalised(planes(x)))


NOT_RESIZED_SO = [
    ({"method": "cubic"}, "resized with method cubic, not linear"),
    ({"method": "nearest_neighbor", "rounding_method": "floor"}, "nearest_neighbor, not linear"),
    ({"coordinate_transformation_mode": "align_corners"}, "with align_corners, not half_pixel"),
    ({"coordinate_transformation_mode": "asymmetric"}, "with asymmetric, not half_pixel"),
    ({"coordinate_transformation_mode": "pytorch_half_pixel"}, "with pytorch_half_pixel, not half_pixel"),
    ({"out_dtype": "float16"}, "not resized in float32"),
]


@pytest.mark.parametrize("options, reason", NOT_RESIZED_SO)
def test_another_resizing_is_refused(options, reason):
    x = camera()
    assert_refused(x, resized(normalised(planes(x)), **options), reason)


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda y: relay.clip(y, 0.1, 0.9), "clip comes between"),
        (lambda y: relay.cast(relay.cast(y, "float16"), "float32"), "cast comes between"),
        (lambda y: relay.const(1.0) / y, "divide comes between"),
        (lambda y: y * y, "multiply comes between"),
        (lambda y: y * relay.const(numbers(1, 1, 20, 30)), "multiply comes between"),
        (lambda y: relay.take(y, relay.const([1, 0, 2]), axis=1), r"permuted to \[1, 0, 2\]"),
        (lambda y: relay.take(y, relay.const([0, 1]), axis=1), r"permuted to \[0, 1\]"),
        (lambda y: y * per_channel([1, 0, 1]), "multiplied by 0"),
        (lambda y: y / per_channel([1, 0, 1]), "or by a value that is not finite"),
        (lambda y: y + per_channel([1, np.nan, 1]), "or by a value that is not finite"),
        (lambda y: relay.reverse(y, 2), "reverse comes between"),
        (lambda y: relay.transpose(y, (0, 1, 3, 2)), "the axes of the image are NWHC"),
        (lambda y: relay.nn.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1))), "nn.pad comes between"),
        (lambda y: relay.strided_slice(y, [0, 0, 1, 0], [1, 3, 20, 30]), "strided_slice comes between"),
    ],
)
def test_what_else_is_done_to_the_image_is_refused(spoil, reason):
    x = camera()
    assert_refused(x, resized(spoil(planes(x)) - relay.const(0.5)), reason)


def test_a_image_of_another_type_is_refused():
    x = camera(dtype="int32")
    assert_refused(x, resized(normalised(planes(x))), "the image is of type int32")


def test_what_is_no_input_is_refused():
    weight = relay.var("weight", shape=(3, 3, 1, 1))
    x = camera()
    y = relay.nn.conv2d(planes(x), weight, channels=3, kernel_size=(1, 1))
    mod = module(x, weight, resized(normalised(y)))
    assert_refused_in(mod, "nn.conv2d comes between the input image and its resizing")


def test_a_image_that_is_wanted_elsewhere_is_refused():
    x = camera()
    y = planes(x)
    z = relay.Tuple([resized(normalised(y)), y])
    assert_refused(x, z, "has another user")


def test_other_resizings_are_not_looked_at():
    x, features = camera((1, 3, 20, 30), "float32"), camera((1, 8, 20, 30), "float32")
    for mod in (module(x, resized(x)), module(features, resized(features * relay.const(2.0)))):
        after, report = apply(FoldPreprocessing(), mod)
        assert after.same_as(mod) and not refusals(report)


@pytest.mark.parametrize(
    "follow, reason",
    [
        (lambda y: padded(y, pad_value=114.0), "not padded with zeros"),
        (lambda y: padded(y, pad_mode="edge"), "not padded with zeros"),
        (
            lambda y: relay.nn.pad(y, ((0, 0), (0, 0), (1, 1), (0, 0))),
            "padded on a side other than",
        ),
        (
            lambda y: relay.nn.pad(y, ((0, 0), (1, 0), (0, 0), (0, 0))),
            "padded on a side other than",
        ),
        (
            lambda y: relay.nn.pad(y, ((0, 0), (0, 2), (0, 0), (0, 0))),
            "padded to 5 channels, not to 4",
        ),
        (
            lambda y: relay.nn.pad(y, ((0, 0), (0, 0), (0, -1), (0, 0))),
            "padded on a side other than",
        ),
        (lambda y: relay.Tuple([padded(y), y]), "this step has another user"),
        (lambda y: relay.Tuple([relay.cast(y, "float16"), y]), "this step has another user"),
        (
            lambda y: relay.Tuple([relay.layout_transform(y, "NCHW", "NHWC"), y]),
            "this step has another user",
        ),
        (lambda y: relay.Tuple([y + relay.const(1.0), y]), "this step has another user"),
        (lambda y: padded(y) - relay.const(1.0), "normalized after it is padded"),
        (lambda y: with_zeros(y) - relay.const(1.0), "normalized after it is padded"),
        (lambda y: y * relay.const(0.0), "multiplied by 0"),
        (lambda y: relay.transpose(y, (0, 1, 3, 2)), "a layout other than NCHW and NHWC"),
    ],
)
def test_what_follows_and_is_refused_stays(follow, reason):
    x, y = image()
    mod = module(x, follow(y))
    after = assert_same_numbers(FoldPreprocessing(), mod, pixels(*CAMERA), rtol=1e-3, atol=1e-3)
    assert NAME in ops(after) and len(ops(after)) >= 2
    assert any(reason in each for each in refusals(apply(FoldPreprocessing(), mod)[1]))


@pytest.mark.parametrize(
    "order, different, reason",
    [
        ([0, 0], False, None),
        ([1, 0], False, None),
        ([0, 1], True, "the images of the batch are preprocessed in different ways"),
        ([0, 1, 2], False, None),
    ],
)
def test_images_are_together_if_all_are_alike(order, different, reason):
    x = camera((3, 20, 30, 3))
    results = []
    for place, index in enumerate(order):
        y = normalised(relay.expand_dims(relay.take(planes(x), relay.const(index), axis=0), 0))
        results.append(resized(y * relay.const(2.0) if different and place else y))
    mod = module(x, relay.concatenate(results, 0))
    after = assert_same_numbers(FoldPreprocessing(), mod, pixels(3, 20, 30, 3), **CLOSE)
    assert ops(after).count(NAME) == (len(order) if reason else 1)
    # All images of a batch in their order are the batch; others are taken from it.
    assert ops(after).count("strided_slice") == (0 if order == [0, 1, 2] else len(order))
    _, report = apply(FoldPreprocessing(), mod)
    assert [each for each in refusals(report) if reason in each] if reason else not refusals(report)


@pytest.mark.parametrize("combine", ["stack", "concatenate"])
def test_images_that_come_apart(combine):
    """As torchvision's detectors take them, for a network in NHWC and half precision."""
    xs = [relay.var(f"x{number}", shape=(1, 20, 30, 3), dtype="uint8") for number in range(3)]
    ys = [padded(resized(normalised(planes(x)))) for x in xs]
    together = [relay.squeeze(y, [0]) for y in ys] if combine == "stack" else ys
    y = getattr(relay, combine)(together, 0)
    y = relay.nn.pad(relay.cast(relay.transpose(y, (0, 2, 3, 1)), "float16"), [(0, 0)] * 3 + [(0, 1)])
    mod = module(*xs, y)
    arrays = [pixels(1, 20, 30, 3) + np.uint8(number) for number in range(3)]
    after = assert_same_numbers(FoldPreprocessing(), mod, *arrays, rtol=1e-3, atol=1e-3)
    assert ops(after) == [NAME] and not refusals(apply(FoldPreprocessing(), mod)[1])


def test_images_that_come_apart_are_not_too_many():
    xs = [relay.var(f"x{number}", shape=(1, 4, 5, 3), dtype="uint8") for number in range(33)]
    y = relay.concatenate([resized(normalised(planes(x))) for x in xs], 0)
    after, report = apply(FoldPreprocessing(), module(*xs, y))
    assert ops(after).count(NAME) == 33 and "more than 32 tensors" in str(refusals(report))


def assert_refused(x, y, reason):
    assert_refused_in(module(x, y), reason)


def assert_refused_in(mod, reason):
    after, report = apply(FoldPreprocessing(), mod)
    assert after.same_as(mod)
    (refusal,) = refusals(report)
    assert re.search(reason, refusal)
