"""MoveDepthToSpace: structure, numbers, refusals, and nothing more the second time."""

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
from tvm_passes import MoveDepthToSpace

from tvm import relay


def moved(
    block=2, mode="DCR", channels=16, filters=3, size=(4, 5), layout="NCHW", producer=relay.sigmoid, **options
):
    """With the sigmoid in front, the shuffle is a kernel of its own."""
    shape = (1, channels * block**2, *size) if layout == "NCHW" else (1, *size, channels * block**2)
    x = relay.var("x", shape=shape)
    shuffled = relay.nn.depth_to_space(producer(x), block, layout, mode)
    mod = module(x, convolution(shuffled, filters, channels, **options))
    return mod, shape


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(
    "block, options",
    [
        (2, {}),
        (3, {}),
        (4, {"filters": 1}),
        (2, {"kernel": 1}),
        (2, {"kernel": 5}),
        (3, {"kernel": 5, "channels": 5, "filters": 2}),
        (2, {"kernel": 3, "dilation": 2, "padding": 2}),
        (3, {"kernel": 3, "dilation": 2, "padding": (1, 0, 3, 4)}),
        (2, {"kernel": 2, "padding": (1, 0, 0, 1)}),
        (2, {"kernel": 7, "padding": (6, 0, 0, 6)}),
        (2, {"size": (1, 1)}),
        (2, {"layout": "NHWC", "data_layout": "NHWC", "kernel_layout": "HWIO"}),
    ],
)
def test_the_shuffle_comes_last(mode, block, options):
    mod, shape = moved(block, mode, **options)
    after = assert_same_numbers(MoveDepthToSpace(), mod, numbers(*shape), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["sigmoid", "nn.conv2d", "nn.depth_to_space"]
    assert_no_second_change(MoveDepthToSpace(), after)


def test_weights_of_the_last_layer():
    mod, _ = moved()
    after, _ = apply(MoveDepthToSpace(), mod)
    conv = after["main"].body.args[0]
    assert tuple(conv.args[1].data.shape) == (12, 64, 3, 3)
    used = (conv.args[1].data.numpy() != 0).mean()
    assert used == 1 / 4  # 9 of the 36 pixels in 3x3 blocks are seen


def two_users():
    x = relay.var("x", shape=(1, 64, 4, 5))
    y = relay.nn.depth_to_space(x, 2)
    return module(x, relay.Tuple([convolution(y, 3, 16), y]))


def in_groups():
    x = relay.var("x", shape=(1, 64, 4, 5))
    y = relay.nn.depth_to_space(x, 2)
    return module(x, relay.nn.conv2d(y, relay.const(numbers(4, 4, 1, 1)), groups=4))


def of_65_channels():
    x = relay.var("x", shape=(1, 65, 4, 5))
    return module(x, convolution(relay.nn.depth_to_space(x, 2), 3, 16))


def dynamic():
    x = relay.var("x", shape=(relay.Any(), 64, 4, 5))
    return module(x, convolution(relay.nn.depth_to_space(x, 2), 3, 16))


@pytest.mark.parametrize(
    "mod, reason",
    [
        (two_users(), "has other users"),
        (in_groups(), "is grouped"),
        (of_65_channels(), "drops some of the 65"),
        (dynamic(), "the shape is dynamic"),
        (moved(strides=2)[0], "has strides"),
        (moved(padding=0)[0], "not as large as"),
        (moved(channels=64, filters=64)[0], "times as long"),
        (moved(producer=relay.nn.relu)[0], "1.0 times as long"),  # the shuffle costs nothing where it is
    ],
)
def test_refused(mod, reason):
    after, report = apply(MoveDepthToSpace(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]
