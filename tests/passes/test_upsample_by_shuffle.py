"""UpsampleByShuffle: structure, numbers, refusals, and nothing more the second time."""

import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
)
from tvm_passes import UpsampleByShuffle

from tvm import relay

SHAPE = (2, 4, 3, 5)


def transposed(x, kernel, filters=6, **options):
    weight = relay.const(numbers(SHAPE[1], filters, *kernel, seed=1))
    options = {"strides": kernel, "kernel_size": kernel, "channels": filters, **options}
    return relay.nn.conv2d_transpose(x, weight, **options)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_one_convolution_and_a_shuffle(block):
    x = relay.var("x", shape=SHAPE)
    mod = module(x, transposed(x, (block, block)))
    after = assert_same_numbers(UpsampleByShuffle(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"][: 1 + (block > 1)]
    assert_no_second_change(UpsampleByShuffle(), after)


NOT_THESE = {
    "the kernels overlap, or leave gaps, or are not square": [
        {"kernel": (3, 3), "strides": (2, 2)},
        {"kernel": (2, 2), "strides": (3, 3)},
        {"kernel": (2, 3)},
    ],
    "the convolution is padded": [
        {"kernel": (2, 2), "padding": (1, 1)},
        {"kernel": (2, 2), "output_padding": (1, 1)},
    ],
    "the convolution is dilated or in groups": [{"kernel": (2, 2), "dilation": (2, 2)}],
    "the layouts are NCHW and OIHW, not NCHW and IOHW": [
        {"kernel": (2, 2), "kernel_layout": "OIHW", "filters": 4}
    ],
}


@pytest.mark.parametrize(
    "reason, options", [(reason, each) for reason in NOT_THESE for each in NOT_THESE[reason]]
)
def test_refusals(reason, options):
    x = relay.var("x", shape=SHAPE)
    after, report = apply(UpsampleByShuffle(), module(x, transposed(x, **options)))
    assert ops(after) == ["nn.conv2d_transpose"] and refusals(report) == [reason]


def test_weights_known_at_run_time_are_refused():
    x, w = relay.var("x", shape=SHAPE), relay.var("w", shape=(4, 6, 2, 2))
    call = relay.nn.conv2d_transpose(x, w, strides=(2, 2), kernel_size=(2, 2), channels=6)
    _, report = apply(UpsampleByShuffle(), module(x, w, call))
    assert refusals(report) == ["the weights of the convolution are not constant"]


def test_a_dynamic_picture_is_refused():
    x = relay.var("x", shape=(2, 4, relay.Any(), 5))
    _, report = apply(UpsampleByShuffle(), module(x, transposed(x, (2, 2))))
    assert refusals(report) == ["the shape is dynamic"]
