"""SplitConcatenate: structure, numbers, refusals, and nothing more the second time."""

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
from tvm_passes import SplitConcatenate

from tvm import relay

CHANNELS = (3, 5, 8)


def images(layout="NCHW"):
    shapes = [(1, count, 6, 7) if layout == "NCHW" else (1, 6, 7, count) for count in CHANNELS]
    return [relay.var(f"x{i}", shape=shape) for i, shape in enumerate(shapes)], shapes


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("options", [{}, {"strides": 2, "kernel": 5}, {"dilation": 2, "padding": (2, 1)}])
def test_a_convolution_of_each_part(count, options):
    xs, shapes = (each[:count] for each in images())
    mod = module(*xs, convolution(relay.concatenate(xs, 1), 4, sum(CHANNELS[:count]), **options))
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    after = assert_same_numbers(SplitConcatenate(), mod, *arrays, rtol=1e-4, atol=1e-5)
    assert "concatenate" not in ops(after) and ops(after).count("nn.conv2d") == count
    assert_no_second_change(SplitConcatenate(), after)


def test_in_nhwc():
    xs, shapes = images("NHWC")
    y = convolution(relay.concatenate(xs, -1), 4, 16, data_layout="NHWC", kernel_layout="HWIO")
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    after = assert_same_numbers(SplitConcatenate(), module(*xs, y), *arrays, rtol=1e-4, atol=1e-5)
    assert "concatenate" not in ops(after)


def of_convolutions(counts=(16, 8), last=relay.nn.relu):
    """Results of convolutions, and `last` of the last one, concatenated for another convolution."""
    x = relay.var("x", shape=(1, 16, 6, 8))
    parts = [convolution(x, count, 16, seed=at) for at, count in enumerate(counts)]
    parts[-1] = last(parts[-1])
    return module(x, convolution(relay.concatenate(parts, 1), 8, sum(counts)))


def test_results_of_grouped_convolutions_on_a_gpu():
    """Which have no kernel that writes in place."""
    x = relay.var("x", shape=(1, 16, 6, 8))
    parts = [convolution(x, 16, 1, groups=16, seed=at) for at in range(2)]
    mod = module(x, convolution(relay.concatenate(parts, 1), 8, 32))
    after, _ = apply(SplitConcatenate("cuda -arch=sm_80"), mod)
    assert "concatenate" not in ops(after)


@pytest.mark.parametrize("target", ["llvm", None])
def test_results_of_convolutions_elsewhere(target):
    after, _ = apply(SplitConcatenate(target), of_convolutions())
    assert "concatenate" not in ops(after)


@pytest.mark.parametrize(
    "mod",
    [
        of_convolutions((16, 9)),  # which are not aligned
        of_convolutions(last=lambda y: relay.nn.max_pool2d(y, (3, 3), padding=1)),
        of_convolutions((16, 8), last=lambda y: relay.image.resize2d(y, (6, 8))),
    ],
)
def test_on_a_gpu_where_a_part_would_be_copied(mod):
    after, _ = apply(SplitConcatenate("cuda"), mod)
    assert "concatenate" not in ops(after)


@pytest.mark.parametrize("last", [relay.nn.relu, lambda y: y + y, lambda y: y * relay.const(0.2)])
def test_refused_on_a_gpu_where_convolutions_write_in_place(last):
    mod = of_convolutions(last=last)
    after, report = apply(SplitConcatenate("cuda"), mod)
    reason = "the convolutions before it can write the concatenated tensor in place"
    assert after.same_as(mod) and refusals(report) == [reason]


def of(make, axis=1):
    xs, _ = images()
    xs = xs if axis == 1 else [xs[2], xs[2]]
    return module(*dict.fromkeys(xs), make(relay.concatenate(xs, axis)))


def dynamic():
    x = relay.var("x", shape=(relay.Any(), 8, 6, 7))
    return module(x, convolution(relay.concatenate([x, x], 1), 4, 16))


def empty():
    x, nothing = relay.var("x", shape=(1, 8, 6, 7)), relay.var("y", shape=(1, 0, 6, 7))
    return module(x, nothing, convolution(relay.concatenate([x, nothing], 1), 4, 8))


@pytest.mark.parametrize(
    "mod, reason",
    [
        (empty(), "a part has no channels"),
        (of(lambda y: relay.Tuple([convolution(y, 4, 16), y])), "a user that is not a convolution"),
        (of(lambda y: convolution(y, 32, 16)), "times the memory"),
        (of(lambda y: convolution(y, 4, 8), axis=2), "not concatenated along the channels"),
        (of(lambda y: relay.nn.conv2d(y, relay.const(numbers(4, 8, 1, 1)), groups=2)), "is grouped"),
        (dynamic(), "dynamic"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(SplitConcatenate(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]
