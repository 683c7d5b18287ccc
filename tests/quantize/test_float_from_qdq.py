"""Networks that were quantized elsewhere: in float32 with clips, and again in int8 with the same bounds."""

import numpy as np
import pytest

import frontends
from frontends._quantized import quantized
from tests.helpers import apply, assert_no_second_change, module, numbers, ops, refusals, run
from tests.quantize.networks import (
    BETWEEN,
    CHANNELS,
    FIRST,
    LAST,
    ONNX_SHAPE,
    decibels,
    dtypes,
    image,
    integer_weights,
    relu_conv,
    write_quantized_network,
)
from tvm_passes import CombineTransposes, ConvertToNHWC, FloatFromQDQ, FuseConv2dNHWC, InInt8
from tvm_passes.engine.graph import calls_of
from tvm_passes.quantize import CalibrationError, calibration_of

import tvm
from tvm import relay


def to_int8(calibration=None):
    """The passes of the pipelines that matter here."""
    passes = FloatFromQDQ(), ConvertToNHWC(), CombineTransposes(), FuseConv2dNHWC(also_float32=True)
    return tvm.transform.Sequential([*passes, InInt8(calibration)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_network_of_onnx_runtime(tmp_path, dtype):
    path = tmp_path / "network.onnx"
    write_quantized_network(path, dtype)
    mod, _ = frontends.from_onnx(path)
    in_float, _ = apply(FloatFromQDQ(), mod)
    assert set(ops(in_float)) == {"nn.conv2d", "nn.bias_add", "clip", "add", "nn.max_pool2d"}
    assert_no_second_change(FloatFromQDQ(), in_float)
    calibration = calibration_of(mod, to_int8())
    observed = list(calibration.convolutions.values())
    steps = 127 if dtype == "int8" else 255 / 2
    assert [each.data for each in observed[1:]] == pytest.approx([steps * 0.02, steps * 0.04], rel=1e-5)
    after, _ = apply(to_int8(calibration), mod)
    assert dtypes(after) == [FIRST, BETWEEN, LAST] and "round" not in ops(after)
    for call, each in zip(calls_of(after, "topi_ext.conv2d_nhwc")[1:], (2, 3)):
        np.testing.assert_array_equal(call.args[1].data.numpy().transpose(0, 3, 1, 2), integer_weights(each))
    array = numbers(*ONNX_SHAPE)
    assert decibels(run(mod, array)[0], run(after, array)[0]) > 28


def round_trip(x, inverse, back, limits):
    """As PyTorch quantizes, to uint8 with the zero point 3, and dequantizes."""
    steps = quantized(x * relay.const(np.float32(inverse)), relay.const(3), "uint8", limits)
    return relay.qnn.op.dequantize(steps, relay.const(np.float32(back)), relay.const(3))


@pytest.mark.parametrize("limits", [(0, 255), (0, 127)])
def test_the_bounds_are_those_that_the_numbers_are_clipped_to(limits):
    x = image()
    clip = apply(FloatFromQDQ(), module(x, round_trip(x, 1 / 0.3, 0.3, limits)))[0]["main"].body
    assert clip.op.name == "clip"
    found = [clip.attrs.a_min, clip.attrs.a_max]
    assert found == pytest.approx([(end - 3) * 0.3 for end in limits], rel=1e-6)


@pytest.mark.parametrize("inverse", [0.0, 1 / 0.31, -1 / 0.3])
def test_another_inverse_is_refused(inverse):
    x = image()
    _, report = apply(FloatFromQDQ(), module(x, round_trip(x, inverse, 0.3, (0, 255))))
    assert len(refusals(report)) == 1


def test_a_scale_that_is_known_at_run_time_is_refused():
    x, scale = image(), relay.var("scale", shape=())
    steps = quantized(x / scale, relay.const(3), "uint8")
    mod = module(x, scale, relay.qnn.op.dequantize(steps, scale, relay.const(3)))
    reason = "the scale is not one for the whole tensor, known before"
    assert refusals(apply(FloatFromQDQ(), mod)[1]) == [reason]


def test_other_scales_are_refused():
    x = image()
    q = relay.qnn.op.quantize(x, relay.const(0.1), relay.const(3))
    y = relay.qnn.op.dequantize(q, relay.const(0.2), relay.const(3))
    after, report = apply(FloatFromQDQ(), module(x, y))
    assert ops(after) == ["qnn.quantize", "qnn.dequantize"]
    assert refusals(report) == ["the tensor is dequantized with another scale or zero point"]


def test_scales_of_channels_are_refused():
    x = image()
    scale, zero = (relay.const(np.full(CHANNELS, *each)) for each in ((0.1, "float32"), (0, "int32")))
    y = relay.qnn.op.dequantize(relay.qnn.op.quantize(x, scale, zero, axis=3), scale, zero, axis=3)
    assert refusals(apply(FloatFromQDQ(), module(x, y))[1]) == [
        "the scale is not one for the whole tensor, known before"
    ]


def test_a_clip_that_others_read_stays():
    x = image()
    inner = relay.clip(x, -1, 1)
    mod = module(x, relay.Tuple([relay.clip(inner, 0, 2), inner]))
    after, report = apply(FloatFromQDQ(), mod)
    assert ops(after).count("clip") == 2
    assert refusals(report) == ["the tensor between two clips has other users"]


def test_clips_that_do_not_overlap_stay():
    x = image()
    mod = module(x, relay.clip(relay.clip(x, 0, 1), 2, 3))
    assert apply(FloatFromQDQ(), mod)[0].same_as(mod)


@pytest.mark.parametrize("inner, outer", [((2, -2), (-1, 1)), ((-1, 1), (2, -2))])
def test_clips_whose_ends_are_swapped_stay(inner, outer):
    """All that they give is the upper end."""
    x = image()
    mod = module(x, relay.clip(relay.clip(x, *inner), *outer))
    assert apply(FloatFromQDQ(), mod)[0].same_as(mod)


def test_constants_are_dequantized():
    value = np.arange(-6, 6).reshape(3, 4).astype("int8")
    scales, zeros = np.float32([1, 2, 3]), np.int32([0, 1, -1])
    for scale, zero in ((scales, zeros), (np.float32(2), zeros), (scales, np.int32(1))):
        y = relay.qnn.op.dequantize(*map(relay.const, (value, scale, zero)), axis=0)
        after, _ = apply(FloatFromQDQ(), tvm.IRModule.from_expr(y))
        expected = (value.T.astype("int32") - zero) * scale
        np.testing.assert_array_equal(after["main"].body.data.numpy(), expected.T)


def test_a_network_without_bounds():
    x = image()
    with pytest.raises(CalibrationError, match="no bounds of what its convolutions read"):
        calibration_of(module(x, relu_conv(relu_conv(x), seed=2)), InInt8())
