"""SinkDepthToSpace: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    per_channel,
    refusals,
)
from tvm_passes import SinkDepthToSpace

from tvm import relay

SHAPE = (2, 12, 3, 5)  # of what is shuffled by 2 to (2, 3, 6, 10)


def image(shape=SHAPE, name="x"):
    return relay.var(name, shape=shape)


def shuffle(x, mode="CRD", layout="NCHW"):
    return relay.nn.depth_to_space(x, 2, layout, mode)


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
@pytest.mark.parametrize(
    "after, operator",
    [
        (relay.nn.relu, "nn.relu"),
        (lambda y: relay.clip(y, -0.5, 0.5), "clip"),
        (lambda y: relay.nn.prelu(y, per_channel(3, rank=1)), "nn.prelu"),
        (lambda y: relay.nn.bias_add(y, per_channel(3, rank=1)), "nn.bias_add"),
        (lambda y: per_channel(3) - y, "subtract"),
        (lambda y: relay.multiply(y, per_channel(3)), "multiply"),
        (lambda y: relay.add(y, relay.const(0.5)), "add"),
    ],
)
def test_the_operator_comes_before(mode, after, operator):
    x = image()
    mod = module(x, after(shuffle(x, mode)))
    sunk = assert_same_numbers(SinkDepthToSpace(), mod, numbers(*SHAPE))
    assert ops(sunk) == [operator, "nn.depth_to_space"]
    assert_no_second_change(SinkDepthToSpace(), sunk)


def test_in_nhwc():
    x = image((2, 3, 5, 12))
    bias = relay.const(numbers(3))
    mod = module(x, relay.nn.relu(relay.add(shuffle(x, "DCR", "NHWC"), bias)))
    sunk = assert_same_numbers(SinkDepthToSpace(), mod, numbers(2, 3, 5, 12))
    assert ops(sunk) == ["add", "nn.relu", "nn.depth_to_space"]


def test_two_shuffles_become_one():
    x, y = image(), image(name="y")
    mod = module(x, y, relay.add(shuffle(x), shuffle(y)))
    sunk = assert_same_numbers(SinkDepthToSpace(), mod, numbers(*SHAPE), numbers(*SHAPE, seed=1))
    assert ops(sunk) == ["add", "nn.depth_to_space"]


def test_of_unknown_batch():
    x = image((relay.Any(), *SHAPE[1:]))
    sunk, _ = apply(SinkDepthToSpace(), module(x, relay.nn.relu(shuffle(x))))  # TVM cannot run such a shuffle
    assert ops(sunk) == ["nn.relu", "nn.depth_to_space"]


def shared():
    x = image()
    y = shuffle(x)
    return module(x, relay.Tuple([relay.nn.relu(y), y]))


def plus(constant_shape):
    x = image()
    return module(x, relay.add(shuffle(x), relay.const(numbers(*constant_shape))))


def two(first, second):
    x, y = image(), image(name="y")
    return module(x, y, relay.add(shuffle(x, first), shuffle(y, second)))


def of_13_channels():
    x = image((1, 13, 3, 5))
    return module(x, relay.nn.prelu(shuffle(x), per_channel(3, rank=1)))


@pytest.mark.parametrize(
    "mod, reason",
    [
        (shared(), "has other users"),
        (plus((6, 10)), "not per-channel"),
        (plus((1, 1, 1, 1, 1)), "makes the tensor larger"),
        (two("CRD", "DCR"), "the two shuffles differ"),
        (of_13_channels(), "drops some of the 13"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(SinkDepthToSpace(), mod)
    assert after.same_as(mod)
    assert reason in refusals(report)[0]


def test_what_is_not_elementwise_is_no_match():
    x = image()
    mod = module(x, relay.nn.softmax(shuffle(x), axis=1))
    after, report = apply(SinkDepthToSpace(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []


def test_a_slope_of_one_channel_is_for_all_before_the_shuffle():
    x = image((1, 4, 3, 5))
    mod = module(x, relay.nn.prelu(shuffle(x), relay.const(np.float32([0.25]))))
    after = assert_same_numbers(SinkDepthToSpace(), mod, numbers(1, 4, 3, 5))
    assert ops(after) == ["nn.prelu", "nn.depth_to_space"]
