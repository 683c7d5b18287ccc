"""The file of a calibration: read as written, edited by people, and refused with what to do."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import module, numbers
from tests.quantize.networks import CHANNELS, calibrated, conv, image, relu_conv, weights
from tvm_passes import InInt8
from tvm_passes.quantize import Calibration, CalibrationError, Observed, calibrate, observe

import tvm
from tvm import relay

OBSERVED = {
    "0123456789ab": Observed(0.5, 2.25, None, None, True, (8, 3, 3, 3), "conv1"),
    "0123456789ab.2": Observed(2.25, 4.0, 2.0, 35.5, False, (8, 3, 3, 8), "layer1, relu"),
    "ba9876543210": Observed(4.0, 1e-5, None, -3.5, True, (8, 3, 3, 8)),
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "network.json"
    Calibration(OBSERVED, "entropy", 12).save(path)
    return path


def test_it_is_read_as_it_was_written(saved):
    assert Calibration.read(saved) == Calibration(OBSERVED, "entropy", 12)


def test_a_line_for_each_convolution(saved):
    lines = [line for line in saved.read_text().splitlines() if '"data"' in line]
    assert len(lines) == len(OBSERVED) and all(name in line for name, line in zip(OBSERVED, lines))


def test_a_table_says_what_is_computed_in_int8():
    rows = [line for line in str(Calibration(OBSERVED, "entropy", 12)).splitlines() if "8x3x3x" in line]
    assert [row.strip("│ ").rsplit(None, 1)[-1] for row in rows] == ["float", "int8", "float"]
    assert "-3.5" in rows[2] and "layer1, relu" in rows[1]


DAMAGES = {
    "cannot be read": lambda text: text[:40],
    "cannot be read .*recursion": lambda text: "[" * 100_000,
    "is not a calibration": lambda text: "[]",
    "has the format 7, and this version reads 1": lambda text: text.replace('"format": 1', '"format": 7'),
    "data is -0.5, not a number": lambda text: text.replace('"data": 0.5', '"data": -0.5'),
    "data is None": lambda text: text.replace('"data": 0.5', '"data": null'),
    "it has sn, which is not known": lambda text: text.replace('"snr"', '"sn"'),
    "in_float is 'yes', not true or false": lambda text: text.replace("true", '"yes"', 1),
    "is damaged": lambda text: text.replace('"convolutions"', '"layers"'),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_file_is_refused(saved, reason):
    saved.write_text(DAMAGES[reason](saved.read_text()))
    with pytest.raises(CalibrationError, match=reason):
        Calibration.read(saved)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CalibrationError, match="there is no file"):
        Calibration.read(tmp_path / "nothing.json")


def test_calibrating_twice_gives_the_same_and_a_file_the_same_network(tmp_path):
    x = image()
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    first, second = calibrated(mod, method="mse"), calibrated(mod, method="mse")
    assert first == second and first.batches == 3
    first.save(tmp_path / "network.json")
    read = Calibration.read(tmp_path / "network.json")
    for name, each in first.convolutions.items():
        assert read.convolutions[name].data == pytest.approx(each.data, rel=1e-5)
    assert read.convolutions.keys() == first.convolutions.keys()
    edited = {name: replace(each, in_float=True) for name, each in read.convolutions.items()}
    unchanged = InInt8(replace(read, convolutions=edited))(mod)
    assert tvm.ir.structural_equal(unchanged, mod)


def test_of_large_tensors_some_rows_are_counted_and_all_are_for_the_maximum(monkeypatch):
    monkeypatch.setattr(observe, "MAX_SAMPLES", 150)
    x = image(8, 5)
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    array = np.ones((1, 8, 5, CHANNELS), "float32")
    array[0, 1, 2, 3] = 7  # in a row that is not counted
    whole = calibrate(mod, [array], InInt8(), target="llvm", method="maximum")
    some = calibrate(mod, [array], InInt8(), target="llvm", method="percentile")
    assert [next(iter(each.convolutions.values())).data for each in (whole, some)] == [
        7,
        pytest.approx(1, 0.01),
    ]


def test_a_mean_is_no_signal():
    """That of a detector's scores is a bias, far from 0, which int8 does not change."""
    x = image()
    by_bias = {}
    for bias in (0, 100):
        last = conv(relu_conv(x), seed=2, bias=relay.const(np.full(CHANNELS, bias, "float32")))
        found = calibrated(relay.transform.InferType()(module(x, last)))
        by_bias[bias] = [each.snr for each in found.convolutions.values()][-1]
    assert 30 < by_bias[0] < 50 and by_bias[100] == pytest.approx(by_bias[0], abs=0.1)


def test_a_region_is_a_row_as_an_image_is():
    """The head of a detector computes many regions of an image: as many times the rows of its backbone."""
    x = image(height=16, width=8)
    by_rows = {}
    for rows in (1, 16):
        y = conv(
            relay.reshape(conv(x, weights(kernel=1)), (rows, 16 // rows, 8, CHANNELS)), weights(kernel=1)
        )
        mod = relay.transform.InferType()(module(x, relay.reshape(y, (1, 16, 8, CHANNELS))))
        by_rows[rows] = [each.snr for each in calibrated(mod).convolutions.values()][-1]
    assert by_rows[16] == pytest.approx(by_rows[1], abs=0.1)


def test_one_image_of_much_larger_numbers_does_not_hide_what_the_others_lose():
    """Its bound leaves them no steps: they are rounded to 0."""
    x = image()
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    usual = [numbers(1, 9, 10, CHANNELS, seed=seed) for seed in range(3)]
    lonely = usual[0].copy()
    lonely[0, 3, 3, 0] = 1e6
    found = calibrate(mod, [*usual, lonely], InInt8(), target="llvm").convolutions.values()
    assert [each.in_float for each in found][-1]


@pytest.mark.parametrize("height, width", [(9, 10), (100, 168)])
def test_what_never_changes_has_its_power_for_a_signal(height, width):
    x = image(height, width)
    last = conv(conv(x, weights(kernel=1)), weights(kernel=1, seed=2))
    mod = relay.transform.InferType()(module(x, last))
    even = np.full((1, height, width, CHANNELS), 0.7, "float32")
    *_, found = calibrate(mod, [even], InInt8()).convolutions.values()
    assert 20 < found.snr < 120


@pytest.mark.parametrize("magnitude", [1e20, 1e-25])
def test_what_is_lost_of_numbers_whose_squares_float32_does_not_have(magnitude):
    x, small = image(), weights(seed=2) * np.float32(1e-3)
    small[:, 0, 0, 0] = 0.5  # of a channel that is almost nothing: int8 loses the others
    first = weights(kernel=1) * np.float32(magnitude)
    first[0] *= np.float32(1e-3)
    last = conv(conv(x, first, bias=None), small, bias=None)
    plain = conv(conv(x, first / np.float32(magnitude), bias=None), small, bias=None)
    found, expected = (
        [*calibrated(relay.transform.InferType()(module(x, each))).convolutions.values()][-1].snr
        for each in (last, plain)
    )
    assert expected < 40 and abs(found - expected) < 0.1


def test_numbers_too_small_for_a_step_stay_in_floating_point():
    x = image()
    last = conv(conv(x, weights() * np.float32(1e-38), bias=None), weights(seed=2), bias=None)
    mod = relay.transform.InferType()(module(x, last))
    assert tvm.ir.structural_equal(InInt8(calibrated(mod))(mod), mod)


def test_a_batch_that_is_not_finite_is_named():
    x = image(4, 5)
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    good, bad = np.ones((2, 1, 4, 5, CHANNELS), "float32")
    bad[0, 1, 2, 3] = np.nan
    with pytest.raises(CalibrationError, match=r"batch 2: .*not finite.*; leave it out"):
        calibrate(mod, [good, bad], InInt8(), target="llvm")


@pytest.mark.parametrize("shape, dtype", [((1, 6, 5, CHANNELS), "float32"), ((1, 4, 5, CHANNELS), "uint8")])
def test_a_batch_of_another_size_or_type_is_named(shape, dtype):
    x = image(4, 5)
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    good, bad = np.ones((1, 4, 5, CHANNELS), "float32"), np.ones(shape, dtype)
    with pytest.raises((TypeError, ValueError), match=r"batch 2: .* must be float32 \(1, 4, 5, 8\), not"):
        calibrate(mod, [good, bad], InInt8(), target="llvm")


def test_what_calibrate_refuses():
    x = image()
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    with pytest.raises(
        ValueError, match="method must be one of mse, entropy, percentile, maximum, not 'best'"
    ):
        calibrate(mod, [], InInt8(), method="best")
    with pytest.raises(ValueError, match="the pipeline has no InInt8: give such as detection_pipeline"):
        calibrate(mod, [], tvm.transform.Sequential([]))
    only_first = relay.transform.InferType()(module(x, conv(x)))
    with pytest.raises(CalibrationError, match="no convolution that can be computed in int8"):
        calibrate(only_first, [], InInt8())


def test_a_network_of_integers_is_to_be_written_otherwise():
    x = relay.var("x", shape=(1, 3, 8, 8), dtype="uint8")
    scale, zero = relay.const(0.1), relay.const(0)
    weight = relay.const(np.ones((4, 3, 3, 3), "int8"))
    y = relay.qnn.op.conv2d(x, weight, zero, zero, scale, scale, (3, 3), 4)
    with pytest.raises(CalibrationError, match=r"QLinearConv.*: write the network with .*QuantFormat\.QDQ"):
        calibrate(module(x, y), [], InInt8())


def test_batches_are_dicts_tuples_or_arrays():
    x = image(4, 5)
    mod = relay.transform.InferType()(module(x, conv(relu_conv(x), seed=2)))
    array = np.ones((1, 4, 5, CHANNELS), "float32")
    as_given = (batch for batch in ({"image": array}, (array,), array))  # also from a generator
    found = calibrate(mod, as_given, InInt8(), target="llvm", method="maximum")
    assert found.batches == 3 and next(iter(found.convolutions.values())).data == 1
    with pytest.raises(CalibrationError, match="there is no batch"):
        calibrate(mod, [], InInt8(), target="llvm")
