"""CombineTransposes: structure, numbers, and nothing more the second time."""

import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from tvm_passes import CombineTransposes

from tvm import relay

SHAPE = (2, 3, 4, 5)


def to_nhwc(x):
    return relay.layout_transform(x, "NCHW", "NHWC")


def to_nchw(x):
    return relay.layout_transform(x, "NHWC", "NCHW")


@pytest.mark.parametrize(
    "spell, left",
    [
        (lambda x: to_nchw(to_nhwc(x)), []),
        (lambda x: relay.transpose(to_nhwc(x), [0, 3, 1, 2]), []),
        (lambda x: to_nhwc(relay.transpose(x, [1, 0, 2, 3])), ["transpose"]),
        (lambda x: relay.transpose(relay.transpose(relay.transpose(x), [3, 2, 0, 1])), ["transpose"]),
        (lambda x: relay.transpose(to_nchw(to_nhwc(x)), [0, -1, 1, 2]), ["transpose"]),
    ],
)
def test_in_a_row(spell, left):
    x = relay.var("x", shape=SHAPE)
    after = assert_same_numbers(CombineTransposes(), module(x, relay.nn.relu(spell(x))), numbers(*SHAPE))
    assert ops(after) == [*left, "nn.relu"]
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize("shape, left", [((2, 1, 4, 5), "reshape"), ((2, 3, 1, 1), "reshape"), (SHAPE, None)])
def test_axes_of_extent_one(shape, left):
    x = relay.var("x", shape=shape)
    after = assert_same_numbers(CombineTransposes(), module(x, to_nhwc(x)), numbers(*shape))
    assert ops(after) == [left or "layout_transform"]


def test_an_empty_tensor():
    x = relay.var("x", shape=(1, 0, 5))
    mod = module(x, relay.transpose(x, [1, 0, 2]))
    after, _ = apply(CombineTransposes(), mod)
    assert after.same_as(mod)


def test_a_shared_inner_one_stays_for_its_user():
    x = relay.var("x", shape=SHAPE)
    y = to_nhwc(x)
    mod = module(x, relay.Tuple([relay.nn.relu(y), relay.nn.relu(to_nchw(y))]))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(*SHAPE))
    assert sorted(ops(after)) == ["layout_transform", "nn.relu", "nn.relu"]


def test_split_axes_are_no_match():
    x = relay.var("x", shape=(1, 8, 4, 5))
    blocked = relay.layout_transform(x, "NCHW", "NCHW4c")
    mod = module(x, relay.layout_transform(blocked, "NCHW4c", "NCHW"))
    after, report = apply(CombineTransposes(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []


def heads(x, parts, axes):
    """Behind a convolution in NHWC: back to NCHW, the channels split, and moved."""
    return relay.transpose(relay.reshape(to_nchw(x), parts), axes)


@pytest.mark.parametrize(
    "shape, parts, axes, transposes",
    [
        ((2, 4, 5, 12), (2, 3, 4, 4, 5), [0, 3, 4, 1, 2], 0),  # as in RetinaNet
        ((1, 4, 5, 12), (1, 3, 4, 4, 5), [0, 3, 4, 1, 2], 0),
        ((2, 4, 5, 12), (2, 4, 3, 4, 5), [0, 3, 4, 2, 1], 1),
        ((2, 4, 6, 12), (2, 12, 2, 2, 6), [0, 2, 3, 4, 1], 0),  # the rows are split
        ((2, 4, 5, 1), (2, 1, 1, 4, 5), [0, 3, 4, 1, 2], 0),
        ((2, 4, 5, 3), (2, 3, 4, 5, 1, 1), [0, 2, 5, 3, 4, 1], 0),
        ((1, 1, 1, 1), (1, 1, 1), [2, 1, 0], 0),
    ],
)
def test_across_a_split(shape, parts, axes, transposes):
    x = relay.var("x", shape=shape)
    mod = module(x, relay.nn.relu(heads(x, parts, axes)))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(*shape))
    assert ops(after).count("transpose") == transposes and "layout_transform" not in ops(after)
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize(
    "shape, parts, axes",
    [
        ((2, 4, 5, 12), (2, 12, 20), [0, 2, 1]),  # height and width become one axis
        ((2, 4, 6, 12), (2, 8, 6, 6), [0, 2, 3, 1]),  # so do parts of channels and height
    ],
)
def test_a_reshape_that_merges_is_no_match(shape, parts, axes):
    x = relay.var("x", shape=shape)
    mod = module(x, relay.nn.relu(heads(x, parts, axes)))
    after, report = apply(CombineTransposes(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []
