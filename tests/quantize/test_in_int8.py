"""Which convolutions and tensors are in int8, and that they stand for the numbers that they did."""

from dataclasses import replace

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, module, numbers, ops, refusals, run
from tests.quantize.networks import (
    BETWEEN,
    CHANNELS,
    FIRST,
    FLOAT,
    LAST,
    arrays_for,
    bounded,
    calibrated,
    conv,
    dtypes,
    image,
    in_int8,
    relu_conv,
    signal_to_noise,
    weights,
)
from topi_ext.conv2d_nhwc import reference
from tvm_passes import InInt8, InMixedPrecision
from tvm_passes.engine.graph import calls_of
from tvm_passes.quantize import Calibration, CalibrationError
from tvm_passes.quantize.numbers import quantized_weights

import tvm
from tvm import relay

# Of int8 alone: 127 steps to a bound of three to four standard deviations, at each of a few roundings.
MIN_SNR = 28


def test_it_computes_what_the_oracle_does_with_the_rounded_numbers():
    x = image()
    first, second = weights(seed=1), weights(seed=2)
    mod, after, _, calibration = in_int8(x, conv(relu_conv(x, first), second))
    assert dtypes(after) == [FIRST, LAST]
    (array,) = arrays_for(mod)
    bias, step = numbers(CHANNELS, seed=9), next(iter(calibration.convolutions.values())).result / 127
    middle = reference.conv2d_nhwc(
        array, first, bias, padding=1, activation="relu", out_scale=1 / step, out_dtype="int8"
    )
    rounded, steps = quantized_weights(second)
    expected = reference.conv2d_nhwc(
        *(middle, rounded, bias), padding=1, scale=steps * np.float32(step), out_dtype="float32"
    )
    (found,) = run(after, array)
    # Where a tie is rounded may differ: by one step of the middle tensor, times a weight.
    assert np.abs(found - expected).max() <= 2 * step * np.abs(second).max()
    assert (np.abs(found - expected) < 1e-4).mean() > 0.95


def test_weights_are_within_a_step_and_use_the_whole_range():
    given = weights(seed=3)
    given[2] = 0
    rounded, steps = quantized_weights(given)
    assert rounded.dtype == np.int8 and not rounded[2].any()
    assert (np.abs(rounded).max(axis=(1, 2, 3)) == [127, 127, 0, 127, 127, 127, 127, 127]).all()
    assert (np.abs(rounded * steps[:, None, None, None] - given) <= 1.001 * steps[:, None, None, None]).all()


def test_a_filter_too_small_for_a_step():
    """The step would be 0 in float32, and 0 divided by it NaN."""
    given = np.ones((2, 1, 1, 8), "float32")
    given[1] = 1e-44
    with np.errstate(divide="raise", invalid="raise"):
        rounded, steps = quantized_weights(given)
    np.testing.assert_array_equal(rounded[:, 0, 0, 0], [127, 0])
    assert (steps > 0).all()


def test_a_residual_is_added_in_int8():
    x = image()
    start = relu_conv(x)
    y = conv(relu_conv(start, seed=2), seed=3, residual=start, final_activation="relu")
    mod, after, *_ = in_int8(x, conv(y, seed=4), by=lambda mod: bounded(mod, 6.0))
    assert dtypes(after) == [FIRST, BETWEEN, BETWEEN, LAST]
    added = calls_of(after, "topi_ext.conv2d_nhwc")[2]
    assert added.args[3].checked_type.dtype == "int8"
    assert float(added.attrs["residual_scale"]) == pytest.approx(6 / 127)
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_what_is_concatenated_has_one_step():
    x = image()
    parts = [relu_conv(x, seed=1), conv(x, weights(seed=2) * 5)]
    y = conv(relay.concatenate(parts, 3), weights(channels=2 * CHANNELS, seed=3))
    mod, after, *_ = in_int8(x, y, by=lambda mod: bounded(mod, 4.0, 20.0))
    assert dtypes(after) == [FIRST, FIRST, LAST]
    scales = {float(call.attrs["out_scale"]) for call in calls_of(after, "topi_ext.conv2d_nhwc")[:2]}
    assert list(scales) == pytest.approx([127 / 20]) and "cast" not in ops(after)
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def of_two_scales(ratio=100):
    """Eight channels, of which the latter half is a hundredth of the first."""
    given = weights(seed=2)
    given[CHANNELS // 2 :] = given[: CHANNELS // 2] / ratio
    return given


def halves(x, ratio=100):
    first, second = relay.split(conv(relu_conv(x), of_two_scales(ratio), bias=None), 2, axis=3)
    return [conv(half, weights(channels=CHANNELS // 2, seed=3)) for half in (first, second)]


def joined_and_read(x):
    small = conv(relu_conv(x), seed=2)
    large = conv(small, weights(seed=3) * 100)
    return [conv(relay.concatenate([small, large], 3), weights(channels=2 * CHANNELS, seed=4)), conv(small)]


@pytest.mark.parametrize("build, kept", [(halves, 0), (joined_and_read, 1)])
def test_a_part_of_much_smaller_numbers_has_a_step_of_its_own(build, kept):
    x = image()
    mod, after, *_ = in_int8(x, relay.Tuple(build(x)), by=calibrated)
    assert dtypes(after).count(BETWEEN) == kept
    assert min(signal_to_noise(mod, after)) > MIN_SNR


def test_what_is_lost_by_a_step_that_a_part_shares_is_measured():
    """The halves are the same numbers, a third as large, for which there is a third of the steps."""
    x = image()
    *_, after, _, calibration = in_int8(x, relay.Tuple(halves(x, 3)), by=calibrated)
    assert dtypes(after).count(BETWEEN) == 1
    *_, of_first, of_second = (each.snr for each in calibration.convolutions.values())
    assert 6 < of_first - of_second < 12


def test_what_no_convolution_computed_is_rounded_before_it_is_concatenated():
    x, other = image(), image(name="other")
    y = conv(relay.concatenate([relu_conv(x), relay.tanh(other)], 3), weights(channels=2 * CHANNELS, seed=3))
    mod, after, *_ = in_int8(x, other, y)
    assert dtypes(after) == [FIRST, LAST]
    (joined,) = calls_of(after, "concatenate")
    assert {field.checked_type.dtype for field in joined.args[0].fields} == {"int8"}
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_a_head_that_levels_share_has_bounds_for_each():
    x, small = image(), image(4, 5, name="small")
    stems = relu_conv(x, seed=1), relay.multiply(relu_conv(small, seed=2), relay.const(8.0))
    heads = [conv(stem, seed=3) for stem in stems]
    mod, after, _, calibration = in_int8(x, small, relay.Tuple(heads), by=calibrated)
    first, second = [name for name in calibration.convolutions if name.startswith(_shared(calibration))]
    assert second == f"{first}.2"
    bounds = calibration.convolutions
    assert bounds[second].data > 4 * bounds[first].data
    assert dtypes(after).count(LAST) == 2
    assert min(signal_to_noise(mod, after)) > MIN_SNR


def _shared(calibration):
    return next(name for name in calibration.convolutions if name.endswith(".2")).removesuffix(".2")


def split_in_two(y):
    halves = relay.split(y, 2, axis=3)
    return relay.concatenate([halves[1], halves[0]], 3)


CARRIED = {
    "max pooling": lambda y: relay.nn.max_pool2d(y, (3, 3), (2, 2), padding=(1, 1), layout="NHWC"),
    "nearest resize": lambda y: relay.image.resize2d(
        y, (18, 20), layout="NHWC", method="nearest_neighbor", coordinate_transformation_mode="asymmetric"
    ),
    "upsampling": lambda y: relay.nn.upsampling(y, 2, 2, layout="NHWC"),
    "relu": relay.nn.relu,
    "reshape": lambda y: relay.reshape(y, (1, 10, 9, CHANNELS)),
    "transpose": lambda y: relay.transpose(y, (0, 2, 1, 3)),
    "pad": lambda y: relay.nn.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0))),
    "slice": lambda y: relay.strided_slice(y, [1, 0], [9, 8], [1, 1], axes=[1, 2]),
    "split": split_in_two,
    "concatenate": lambda y: relay.concatenate([y, relay.nn.relu(y)], 1),
}


@pytest.mark.parametrize("name", CARRIED)
def test_what_moves_elements_is_computed_in_int8(name):
    x = image()
    mod, after, *_ = in_int8(x, conv(CARRIED[name](conv(x)), seed=2))
    assert dtypes(after) == [FIRST, LAST]
    assert "cast" not in ops(after)
    assert signal_to_noise(mod, after)[0] > MIN_SNR


BROUGHT_BACK = {
    "mean pooling": lambda y: relay.nn.avg_pool2d(y, (2, 2), (1, 1), layout="NHWC"),
    "linear resize": lambda y: relay.image.resize2d(y, (12, 13), layout="NHWC"),
    "padding with ones": lambda y: relay.nn.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)), 1.0),
    "product": lambda y: relay.multiply(y, relay.sigmoid(y)),
}


@pytest.mark.parametrize("name", BROUGHT_BACK)
def test_around_anything_else_numbers_are_float(name):
    x = image()
    mod, after, *_ = in_int8(x, conv(BROUGHT_BACK[name](conv(x)), seed=2))
    assert dtypes(after)[-1] == LAST
    assert "round" in ops(after)
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_grouped_convolutions():
    """They are in int8 as others are; depthwise ones compute in float, and write int8."""
    x = image()
    y = conv(relu_conv(x), weights(channels=CHANNELS // 2, seed=5), groups=2)
    mod, after, *_ = in_int8(x, conv(y, seed=2))
    assert dtypes(after) == [FIRST, BETWEEN, LAST] and "round" not in ops(after)
    assert signal_to_noise(mod, after)[0] > MIN_SNR
    y = conv(relu_conv(x), weights(channels=1, seed=5), groups=CHANNELS)
    mod, after, *_ = in_int8(x, conv(y, seed=2))
    assert dtypes(after) == [FLOAT, FIRST, LAST] and "round" not in ops(after)
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_an_elementwise_reader_takes_int8_times_the_step():
    x = image()
    y = relu_conv(x)
    mod, after, *_ = in_int8(x, relay.Tuple([conv(y, seed=2), relay.exp(y)]))
    assert dtypes(after) == [FIRST, LAST] and "round" not in ops(after)
    assert min(signal_to_noise(mod, after)) > MIN_SNR


def test_for_other_readers_the_convolution_gives_float():
    """And for the function itself, whose outputs are not rounded."""
    x = image()
    y = relu_conv(x)
    pooled = relay.nn.global_avg_pool2d(y, layout="NHWC")
    for others in ([pooled], [y]):
        mod, after, *_ = in_int8(x, relay.Tuple([conv(y, seed=2), *others]))
        assert dtypes(after) == [FLOAT, LAST] and ops(after).count("round") == 1
        of_convolution, of_other = signal_to_noise(mod, after)
        assert of_convolution > MIN_SNR and of_other > 100


def test_a_split_whose_other_half_is_read_in_float():
    x = image()
    halves = relay.split(relu_conv(x), 2, axis=3)
    y = conv(relay.nn.relu(halves[0]), weights(channels=CHANNELS // 2, seed=2))
    mod, after, *_ = in_int8(x, relay.Tuple([y, relay.nn.global_avg_pool2d(halves[1], layout="NHWC")]))
    assert dtypes(after) == [FLOAT, LAST] and ops(after).count("round") == 1
    of_convolution, of_other = signal_to_noise(mod, after)
    assert of_convolution > MIN_SNR and of_other > 100


def test_a_residual_that_stays_float_is_added_in_float():
    x, added = image(), image(name="added")
    y = conv(relu_conv(x), seed=2, residual=relay.tanh(added))
    mod, after, *_ = in_int8(x, added, y)
    assert dtypes(after) == [FIRST, LAST] and "round" not in ops(after)
    assert calls_of(after, "topi_ext.conv2d_nhwc")[1].args[3].checked_type.dtype == "float32"
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_a_convolution_that_loses_too_much_stays_float():
    """One channel is a thousand times the others, and hardly counts: in its steps the others are 0."""
    x = image()
    loud, deaf = weights(seed=1), weights(seed=2)
    loud[0] *= 1000
    deaf[..., 0] = 0
    mod, after, report, calibration = in_int8(x, conv(conv(conv(x, loud), deaf), seed=3), by=calibrated)
    first, second, third = calibration.convolutions.values()
    assert first.snr is None and second.snr < 10 and third.snr > MIN_SNR
    assert first.in_float and second.in_float and not third.in_float
    assert dtypes(after) == [FLOAT, FIRST, LAST]
    assert any(
        reason.startswith("stays in floating point: the calibration says so") for reason in refusals(report)
    )
    assert signal_to_noise(mod, after)[0] > MIN_SNR
    assert f"{second.snr:.1f}" in str(calibration)


def test_reasons_to_stay_float():
    x, given = image(), relay.var("weight", shape=(CHANNELS, 3, 3, CHANNELS))
    of_any = topi_ext.conv2d_nhwc(conv(x, seed=1), given, padding=1)
    depthwise = conv(of_any, weights(channels=1, seed=5), groups=CHANNELS)
    y = conv(depthwise, weights(seed=6))
    _, after, report, calibration = in_int8(x, given, y)
    assert dtypes(after) == [FLOAT, FLOAT, FIRST, LAST]
    assert len(calibration.convolutions) == 3  # of constant weights
    assert refusals(report) == [
        "it is the first convolution, which reads the image",
        "the convolution is depthwise: it multiplies too little to gain from int8",
    ]


def test_branches_are_left_alone():
    x = image()
    y = relu_conv(x)
    branch = relay.If(relay.const(True), conv(y, seed=2), y)
    mod, after, *_ = in_int8(x, conv(branch, seed=3))
    assert dtypes(after).count(FLOAT) == 2
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_another_batch_size():
    def network(batch):
        x = image(batch=batch)
        return relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))

    calibration = bounded(network(1))
    mod = network(3)
    after, _ = apply(InInt8(calibration), mod)
    assert dtypes(after) == [FIRST, LAST]
    assert signal_to_noise(mod, after)[0] > MIN_SNR


def test_a_calibration_of_another_network_is_refused():
    x = image()
    calibration = bounded(relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2))))
    other = module(x, conv(relu_conv(x), seed=3))
    with pytest.raises(CalibrationError, match="does not fit the network: it knows 1 of its 2 convolutions"):
        InInt8(calibration)(other)
    with pytest.raises(CalibrationError, match="needs a calibration: make one"):
        InInt8()(other)


def test_a_second_application_changes_nothing():
    x = image()
    _, after, _, calibration = in_int8(x, conv(relu_conv(x), seed=2))
    again, _ = apply(InInt8(calibration), after)
    assert tvm.ir.structural_equal(again, after)


# --- regions

ROIS = np.float32([[0, 0, 0, 12, 9], [0, 3, 2, 39, 35], [0, 10, 1, 17, 33], [0, -4, -4, 4, 4]])


def pooled(*features, rois=ROIS):
    """RoIAlign of a pyramid, and the fully connected layer of a box head."""
    options = {"scales": [1.0, 0.5], "sampling_ratio": 2, "canonical_size": 16.0, "min_level": 4}
    regions = topi_ext.multiscale_roi_align(
        features, relay.const(rois), pooled_size=3, layout="NHWC", **options
    )
    rows = relay.reshape(regions, (len(rois), 1, 1, 9 * CHANNELS))
    return conv(rows, weights(kernel=1, channels=9 * CHANNELS, seed=7), activation="relu")


def levels():
    """Two levels, which the convolutions of a region proposal network read, and a box head behind regions."""
    x = image(18, 20)
    fine = conv(relu_conv(x, seed=1), seed=2)
    coarse = conv(fine, weights(seed=3) / 4, strides=2)
    proposals = [relu_conv(feature, seed=4) for feature in (fine, coarse)]
    return x, relay.Tuple([*proposals, conv(pooled(fine, coarse), weights(kernel=1, seed=8))])


def types_of_regions(mod):
    """(of the features, of the result) of each RoIAlign."""
    calls = calls_of(relay.transform.InferType()(mod), "topi_ext.multiscale_roi_align")
    return [
        ({field.checked_type.dtype for field in call.args[0].fields[:-1]}, call.checked_type.dtype)
        for call in calls
    ]


def test_regions_are_pooled_from_int8_to_int8():
    mod, after, *_ = in_int8(*levels(), by=calibrated)
    assert types_of_regions(after) == [({"int8"}, "int8")]
    assert "round" not in ops(after) and "cast" not in ops(after)
    (call,) = calls_of(after, "topi_ext.multiscale_roi_align")
    fine, coarse = map(float, call.attrs["feature_scales"])
    assert fine > 1.5 * coarse
    assert min(signal_to_noise(mod, after)) > MIN_SNR
    half = InMixedPrecision("float16")(after)
    assert types_of_regions(half) == [({"int8"}, "int8")]


def kept_in_float(mod, *numbers):
    """A calibration by which some of the convolutions, in the order of the graph, stay in float."""
    known = bounded(mod).convolutions
    in_float = [replace(each, in_float=at in numbers) for at, each in enumerate(known.values())]
    return Calibration(dict(zip(known, in_float)))


@pytest.mark.parametrize(
    "in_float, types",
    [
        ([5], ({"int8"}, "float16")),  # the box head
        ([3, 4], ({"float16"}, "int8")),  # the region proposal network, which alone asks for int8
        ([3], ({"float16"}, "int8")),  # that of one level
    ],
)
def test_regions_beside_what_stays_in_float(in_float, types):
    mod, after, *_ = in_int8(*levels(), by=lambda mod: kept_in_float(mod, *in_float))
    before_half = (
        {name.replace("float16", "float32") for name in types[0]},
        types[1].replace("float16", "float32"),
    )
    assert types_of_regions(after) == [before_half]
    assert min(signal_to_noise(mod, after)) > MIN_SNR
    half = InMixedPrecision("float16")(after)
    assert types_of_regions(half) == [types]
    assert min(signal_to_noise(mod, half)) > MIN_SNR


def test_in_half_precision_each_convolution_is_there_once():
    x = image()
    start = relu_conv(x)
    y = conv(relu_conv(start, seed=2), seed=3, residual=start)
    _, after, *_ = in_int8(x, conv(y, seed=4))
    half = InMixedPrecision("float16")(after)
    assert dtypes(half) == [("float16", "int8"), BETWEEN, BETWEEN, ("int8", "float16")]


def test_the_rest_is_in_half_precision():
    """The first convolution multiplies halves and writes int8; the last one gives halves."""
    x = image()
    mod, after, *_ = in_int8(x, relay.sigmoid(conv(relu_conv(x), seed=2)))
    half = InMixedPrecision("float16")(after)
    assert dtypes(half) == [("float16", "int8"), ("int8", "float16")]
    assert relay.transform.InferType()(half)["main"].checked_type == mod["main"].checked_type
    assert signal_to_noise(mod, half)[0] > MIN_SNR
