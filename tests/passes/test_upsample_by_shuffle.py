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
from tvm_passes.engine.graph import Graph

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


@pytest.mark.parametrize("kernel", [(4, 4), (3, 3), (2, 3), (5, 4)])
@pytest.mark.parametrize("stride, padding", [(2, 1), (3, 0), (1, 1), (2, (1, 0, 2, 1)), (3, (0, 1))])
def test_kernels_that_overlap_or_leave_gaps(kernel, stride, padding):
    """Padded at the end until the result is as large as a shuffle gives."""
    x = relay.var("x", shape=SHAPE)
    options = {"strides": (stride, stride), "padding": padding}
    result = relay.transform.InferTypeLocal(transposed(x, kernel, **options))
    options["output_padding"] = [-int(length) % stride for length in result.shape[2:]]
    mod = module(x, transposed(x, kernel, **options))
    after = assert_same_numbers(UpsampleByShuffle(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"][: 1 + (stride > 1)]


def test_the_head_of_keypoint_rcnn():
    x = relay.var("x", shape=(2, 4, 7, 7))
    mod = module(x, transposed(x, (4, 4), strides=(2, 2), padding=(1, 1)))
    after = assert_same_numbers(UpsampleByShuffle(), mod, numbers(2, 4, 7, 7), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]
    assert list(map(int, Graph(after["main"]).nodes[-3].attrs.kernel_size)) == [3, 3]


NOT_THESE = {
    "the size of the result is not a multiple of the stride": [
        {"kernel": (3, 3), "strides": (2, 2)},
        {"kernel": (2, 2), "output_padding": (1, 1)},
    ],
    "the strides differ": [{"kernel": (2, 3)}],
    "the convolution would have to crop a border": [
        {"kernel": (1, 1), "padding": (1, 1)},
        {"kernel": (2, 2), "padding": (2, 2)},
    ],
    "the convolution is dilated or grouped": [{"kernel": (2, 2), "dilation": (2, 2)}],
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


@pytest.mark.parametrize("count", [0, 1, 3])
def test_images_whose_number_is_known_only_at_run_time(count):
    x = relay.var("x", shape=(relay.Any(), *SHAPE[1:]))
    mod = module(x, transposed(x, (2, 2), strides=(2, 2)))
    after = assert_same_numbers(UpsampleByShuffle(), mod, numbers(count, *SHAPE[1:]), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]


@pytest.mark.parametrize(
    "kernel, options", [((2, 2), {}), ((4, 3), {"strides": (2, 2), "padding": (1, 1, 1, 0)})]
)
def test_an_image_of_any_size(kernel, options):
    x = relay.var("x", shape=(2, 4, relay.Any(), relay.Any()))
    mod = module(x, transposed(x, kernel, **options))
    after = assert_same_numbers(UpsampleByShuffle(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "nn.depth_to_space"]
