"""FoldSpaceToDepth: structure, numbers, refusals, and nothing more the second time."""

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
from tvm_passes import FoldSpaceToDepth

from tvm import relay

SHAPE = (1, 3, 12, 18)


def image(shape=SHAPE):
    return relay.var("x", shape=shape)


def unshuffle(x, block, axes=(0, 1, 3, 5, 2, 4)):
    batch, channels, height, width = SHAPE
    split = relay.reshape(x, (batch, channels, height // block, block, width // block, block))
    return relay.reshape(relay.transpose(split, axes), (batch, -1, height // block, width // block))


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("spell", [relay.nn.space_to_depth, unshuffle])
@pytest.mark.parametrize(
    "options", [{}, {"kernel": 1}, {"strides": 2}, {"padding": (1, 0, 2, 1)}, {"kernel": 2, "padding": 0}]
)
def test_the_stride_takes_it(block, spell, options):
    x = image()
    mod = module(x, convolution(spell(x, block), 4, 3 * block**2, **options))
    after = assert_same_numbers(FoldSpaceToDepth(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d"]
    assert_no_second_change(FoldSpaceToDepth(), after)


def test_in_nhwc():
    x = image((1, 12, 18, 3))
    y = relay.nn.space_to_depth(x, 2, "NHWC")
    mod = module(x, convolution(y, 4, 12, data_layout="NHWC", kernel_layout="HWIO"))
    after = assert_same_numbers(FoldSpaceToDepth(), mod, numbers(1, 12, 18, 3), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d"]


def test_for_two_convolutions():
    x = image()
    y = relay.nn.space_to_depth(x, 2)
    mod = module(x, relay.add(convolution(y, 4, 12), convolution(y, 4, 12, kernel=1)))
    after = assert_same_numbers(FoldSpaceToDepth(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.conv2d", "add"]


def with_other_user():
    x = image()
    y = relay.nn.space_to_depth(x, 2)
    return module(x, relay.Tuple([convolution(y, 4, 12), y]))


def one(make, shape=SHAPE):
    x = image(shape)
    return module(x, make(relay.nn.space_to_depth(x, 2)))


@pytest.mark.parametrize(
    "mod, reason",
    [
        (with_other_user(), "a user that is not a convolution"),
        (one(lambda y: convolution(y, 4, 12, dilation=2)), "is dilated"),
        (one(lambda y: convolution(y, 4, 12), (1, 3, 12, 17)), "drops some of the 17"),
        (one(lambda y: relay.nn.conv2d(y, relay.const(numbers(4, 6, 1, 1)), groups=2)), "is grouped"),
        (one(lambda y: convolution(y, 4, 12), (relay.Any(), 3, 12, 18)), "dynamic"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(FoldSpaceToDepth(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]


def test_other_reshapes_are_no_match():
    x = image()
    mod = module(x, convolution(unshuffle(x, 2, (0, 1, 5, 3, 2, 4)), 4, 12))
    after, report = apply(FoldSpaceToDepth(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []
