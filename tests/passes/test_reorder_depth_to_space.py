"""ReorderDepthToSpace: structure, numbers, refusals, and nothing more the second time."""

import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    per_channel,
    refusals,
)
from tvm_passes import ReorderDepthToSpace

from tvm import relay

SHAPE = (1, 5, 6, 7)


def image(shape=SHAPE, name="x"):
    return relay.var(name, shape=shape)


def shuffle(x, block=2, layout="NCHW", mode="CRD"):
    return relay.nn.depth_to_space(x, block, layout, mode)


def modes(mod):
    found = []
    relay.analysis.post_order_visit(
        mod["main"],
        lambda node: (
            found.append(str(node.attrs.mode))
            if getattr(getattr(node, "op", None), "name", "") == "nn.depth_to_space"
            else None
        ),
    )
    return found


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize(
    "between",
    [
        lambda y, count: y,
        lambda y, count: relay.nn.bias_add(y, per_channel(count, rank=1)),
        lambda y, count: relay.nn.leaky_relu(relay.add(per_channel(count), y), 0.1),
        lambda y, count: relay.nn.prelu(relay.add(y, per_channel(count)), per_channel(count, 3, rank=1)),
        lambda y, count: relay.clip(relay.multiply(y, relay.const(2.0)), -1.0, 1.0),
    ],
)
def test_the_weights_take_the_order(block, between):
    x, count = image(), 3 * block**2
    mod = module(x, shuffle(between(convolution(x, count, 5), count), block))
    after = assert_same_numbers(ReorderDepthToSpace(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert modes(after) == ["DCR"] and ops(after) == ops(mod)
    assert_no_second_change(ReorderDepthToSpace(), after)


def test_both_sides_of_a_sum():
    x = image()
    y = relay.add(convolution(x, 12, 5), convolution(x, 12, 5, kernel=1, seed=5))
    after = assert_same_numbers(
        ReorderDepthToSpace(), module(x, shuffle(y)), numbers(*SHAPE), rtol=1e-5, atol=1e-5
    )
    assert modes(after) == ["DCR"]


def test_a_weight_for_each_channel_made_by_a_convolution():
    x = image()
    mean = relay.nn.global_avg_pool2d(x)
    y = relay.multiply(convolution(x, 12, 5), relay.sigmoid(convolution(mean, 12, 5, kernel=1, seed=5)))
    after = assert_same_numbers(
        ReorderDepthToSpace(), module(x, shuffle(y)), numbers(*SHAPE), rtol=1e-5, atol=1e-5
    )
    assert modes(after) == ["DCR"]


def test_a_weight_for_each_pixel_stays():
    x, weight = image(), image((1, 1, 6, 7), "weight")
    mod = module(x, weight, shuffle(relay.multiply(convolution(x, 12, 5), weight)))
    after = assert_same_numbers(
        ReorderDepthToSpace(), mod, numbers(*SHAPE), numbers(1, 1, 6, 7), rtol=1e-5, atol=1e-5
    )
    assert modes(after) == ["DCR"]


def test_in_nhwc():
    x = image((1, 6, 7, 5))
    y = convolution(x, 12, 5, data_layout="NHWC", kernel_layout="HWIO")
    y = relay.add(y, relay.const(numbers(12)))
    mod = module(x, shuffle(y, layout="NHWC"))
    after = assert_same_numbers(ReorderDepthToSpace(), mod, numbers(1, 6, 7, 5), rtol=1e-5, atol=1e-5)
    assert modes(after) == ["DCR"]


def test_to_one_channel_the_modes_are_the_same():
    x = image((1, 4, 6, 7))
    after = assert_same_numbers(ReorderDepthToSpace(), module(x, shuffle(x)), numbers(1, 4, 6, 7))
    assert modes(after) == ["DCR"]


def of(make, shape=SHAPE):
    x = image(shape)
    return module(x, *(lambda made: made if isinstance(made, tuple) else (made,))(make(x)))


def two_users(x):
    y = convolution(x, 12, 5)
    return relay.Tuple([shuffle(y), relay.nn.relu(y)])


def variable_weights(x):
    weight = relay.var("w", shape=(12, 5, 3, 3))
    return weight, shuffle(relay.nn.conv2d(x, weight, padding=1, channels=12, kernel_size=(3, 3)))


@pytest.mark.parametrize(
    "mod, reason",
    [
        (of(lambda x: shuffle(convolution(x, 13, 5))), "drops some of the 13"),
        (of(two_users), "nn.conv2d has other users"),
        (of(variable_weights), "not constant"),
        (of(shuffle, (1, 12, 4, 4)), "come from outside"),
        (of(lambda x: shuffle(relay.nn.softmax(x, axis=1)), (1, 12, 4, 4)), "come from nn.softmax"),
        (
            of(
                lambda x: shuffle(relay.nn.conv2d(x, relay.const(numbers(12, 2, 1, 1)), groups=2)),
                (1, 4, 4, 4),
            ),
            "is grouped",
        ),
        (
            of(lambda x: shuffle(relay.add(convolution(x, 12, 5), relay.const(numbers(12, 6, 7))))),
            "not per-channel",
        ),
        (of(lambda x: shuffle(convolution(x, 12, 5)), (relay.Any(), 5, 6, 7)), "the shape is dynamic"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(ReorderDepthToSpace(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]
