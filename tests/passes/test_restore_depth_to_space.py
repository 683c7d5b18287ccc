"""RestoreDepthToSpace: structure, numbers, refusals, and nothing more the second time."""

import pytest
import torch

import frontends
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import RestoreDepthToSpace

from tvm import relay

CRD, DCR = [0, 1, 4, 2, 5, 3], [0, 3, 4, 1, 5, 2]
UNSHUFFLE_CRD, UNSHUFFLE_DCR = [0, 1, 3, 5, 2, 4], [0, 3, 5, 1, 2, 4]


def shuffle(x, split, axes, result):
    return relay.reshape(relay.transpose(relay.reshape(x, split), axes), result)


def shuffled(shape, split, axes, result):
    x = relay.var("x", shape=shape)
    return module(x, shuffle(x, split, axes, result))


@pytest.mark.parametrize(
    "split, axes, mode",
    [((2, 3, 2, 2, 4, 5), CRD, "CRD"), ((2, 2, 2, 3, 4, 5), DCR, "DCR")],
)
def test_shuffle_becomes_depth_to_space(split, axes, mode):
    mod = shuffled((2, 12, 4, 5), split, axes, (2, 3, 8, 10))
    after = assert_same_numbers(RestoreDepthToSpace(), mod, numbers(2, 12, 4, 5))
    assert ops(after) == ["nn.depth_to_space"]
    attrs = after["main"].body.attrs
    assert (attrs.block_size, attrs.layout, attrs.mode) == (2, "NCHW", mode)
    assert_no_second_change(RestoreDepthToSpace(), after)


@pytest.mark.parametrize("channels, axes", [(3, UNSHUFFLE_DCR), (1, UNSHUFFLE_DCR), (1, UNSHUFFLE_CRD)])
def test_unshuffle_becomes_space_to_depth(channels, axes):
    shape = (2, channels, 6, 9)
    mod = shuffled(shape, (2, channels, 2, 3, 3, 3), axes, (2, channels * 9, 2, 3))
    after = assert_same_numbers(RestoreDepthToSpace(), mod, numbers(*shape))
    assert ops(after) == ["nn.space_to_depth"]
    assert_no_second_change(RestoreDepthToSpace(), after)


@pytest.mark.parametrize("groups", [1, 3])
def test_an_unshuffle_that_puts_the_place_after_the_channel(groups):
    """Its channels are reordered, but for a convolution that can take it in by its weights."""
    x = relay.var("x", shape=(2, 3, 6, 9))
    deep = shuffle(x, (2, 3, 2, 3, 3, 3), UNSHUFFLE_CRD, (2, 27, 2, 3))
    weight = relay.const(numbers(6, 27 // groups, 3, 3))
    mod = module(x, relay.nn.conv2d(deep, weight, padding=1, groups=groups))
    after, report = apply(RestoreDepthToSpace(), mod)
    if groups == 1:
        assert after.same_as(mod) and "this puts it after" in refusals(report)[0]
        return
    assert ops(after) == ["nn.space_to_depth", "take", "nn.conv2d"]
    assert_same_numbers(RestoreDepthToSpace(), mod, numbers(2, 3, 6, 9), rtol=1e-5, atol=1e-5)
    assert_no_second_change(RestoreDepthToSpace(), after)


@pytest.mark.parametrize("blocks", [2, 3])
def test_of_pytorch(blocks):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 2 * blocks**2, 3), torch.nn.PixelShuffle(blocks)).eval()
    x = torch.rand(1, 3, 6, 7)
    mod, _ = frontends.from_pytorch(network, x)
    after, report = apply(RestoreDepthToSpace(), mod)
    assert ops(after) == ["nn.conv2d", "nn.bias_add", "nn.depth_to_space"]
    assert [outcome.location for outcome in report.passes[0].rewrites] == ["aten::pixel_shuffle_0"]
    assert after["main"].body.span.source_name.name == "aten::pixel_shuffle_0"


@pytest.mark.parametrize(
    "mod, reason",
    [
        (shuffled((2, 12, 4, 5), (2, 3, 2, 2, 4, 5), [0, 1, 4, 3, 5, 2], (2, 3, 8, 10)), "no mode"),
        (shuffled((2, 12, 4, 5), (2, 2, 3, 2, 4, 5), CRD, (2, 2, 12, 10)), "block of 3x2 is not square"),
        (
            shuffled((2, 12, 4, 4), (2, 3, 2, 2, 4, 4), CRD, (2, 3, 4, 16)),
            "does not merge the block",
        ),
        (
            shuffled((2, 3, 4, 6), (2, 3, 2, 2, 2, 3), UNSHUFFLE_DCR, (2, 18, 2, 2)),
            "block of 2x3",
        ),
        (
            shuffled((2, 3, 4, 6), (2, 3, 2, 2, 3, 2), [0, 5, 3, 1, 2, 4], (2, 12, 2, 3)),
            "does not transpose",
        ),
        (shuffled((2, 3, 4, 6), (2, 3, 2, 2, 3, 2), UNSHUFFLE_DCR, (2, 6, 4, 3)), "into the channels"),
        (shuffled((relay.Any(), 12, 4, 5), (-1, 3, 2, 2, 4, 5), CRD, (-1, 3, 8, 10)), "the shape is dynamic"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(RestoreDepthToSpace(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]


@pytest.mark.parametrize(
    "windows",
    [
        shuffled((1, 16, 8, 6), (1, 2, 8, 2, 4, 6), [0, 1, 3, 2, 4, 5], (4, 8, 4, 6)),
        shuffled((4, 8, 4, 6), (1, 2, 2, 8, 4, 6), [0, 1, 3, 2, 4, 5], (1, 16, 8, 6)),
        shuffled((1, 6, 8, 8), (1, 6, 2, 4, 2, 4), [0, 2, 4, 1, 3, 5], (4, 6, 4, 4)),
    ],
    ids=["partition", "reverse", "partition of NCHW"],
)
def test_windows_of_attention_are_no_shuffles(windows):
    after, report = apply(RestoreDepthToSpace(), windows)
    assert after.same_as(windows) and not refusals(report)


def test_shared_intermediate_is_refused():
    x = relay.var("x", shape=(1, 4, 3, 3))
    moved = relay.transpose(relay.reshape(x, (1, 1, 2, 2, 3, 3)), CRD)
    mod = module(x, relay.Tuple([relay.reshape(moved, (1, 1, 6, 6)), relay.nn.relu(moved)]))
    after, report = apply(RestoreDepthToSpace(), mod)
    assert after.same_as(mod)
    assert refusals(report) == ["the reshaped or transposed tensor has other users"]


@pytest.mark.parametrize(
    "split, axes, result",
    [((2, 3, 4, 4, 5), [0, 2, 1, 3, 4], (2, 12, 4, 5)), ((2, 12, 20), [0, 2, 1], (2, 20, 12, 1))],
)
def test_other_reshapes_are_no_match(split, axes, result):
    after, report = apply(RestoreDepthToSpace(), shuffled((2, 12, 4, 5), split, axes, result))
    assert report.passes[0].matches == [] and ops(after) == ["reshape", "transpose", "reshape"]
