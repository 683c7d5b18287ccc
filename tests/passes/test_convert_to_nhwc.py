"""ConvertToNHWC: no transposes between convolutions, and equal numbers."""

import numpy as np
import pytest

from tests.helpers import (
    apply,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    per_channel,
    refusals,
)
from topi_ext import multiscale_roi_align
from tvm_passes import CombineTransposes, ConvertToNHWC, FoldIntoConvolutions
from tvm_passes.engine.graph import calls_of

import tvm
from tvm import relay

SHAPE = (1, 8, 6, 10)


def attention(y):
    mean = relay.nn.adaptive_avg_pool2d(y, (1, 1))
    return relay.multiply(y, relay.sigmoid(convolution(mean, 8, 8, kernel=1, seed=7)))


def attention_by_mean(y):
    mean = relay.mean(y, axis=[2, 3], keepdims=True)
    return relay.multiply(y, relay.sigmoid(convolution(mean, 8, 8, kernel=1, seed=7)))


def regions(y):
    rois = relay.const(np.float32([[0, 0, 0, 5, 5], [0, 1, 2, 9, 4], [0, 3, 3, 4, 4]]))
    maps, options = [y, relay.nn.max_pool2d(y, strides=(2, 2))], {"pooled_size": 2, "sampling_ratio": 2}
    return multiscale_roi_align(maps, rois, scales=[1.0, 0.5], min_level=2, **options)


BETWEEN = {
    "max pooling": lambda y: relay.nn.max_pool2d(y, (3, 3), (2, 2), padding=(1, 1)),
    "regions": regions,
    "bias": lambda y: relay.nn.bias_add(y, per_channel(8, rank=1)),
    "prelu": lambda y: relay.nn.prelu(y, per_channel(8, rank=1)),
    "leaky": lambda y: relay.nn.leaky_relu(y, 0.1),
    "clip": lambda y: relay.clip(y, -1.0, 1.0),
    "residual": lambda y: relay.add(y, convolution(y, 8, 8, seed=5)),
    "concatenate": lambda y: relay.concatenate([y, relay.nn.relu(y)], 1),
    "resize": lambda y: relay.image.resize2d(y, (12, 20), layout="NCHW"),
    "attention": attention,
    "attention by mean": attention_by_mean,
    "DCR": lambda y: relay.nn.depth_to_space(y, 2, "NCHW", "DCR"),
    "CRD": lambda y: relay.nn.depth_to_space(y, 2, "NCHW", "CRD"),
    "CRD and PReLU": lambda y: relay.nn.prelu(
        relay.nn.depth_to_space(y, 2, "NCHW", "CRD"), per_channel(2, rank=1)
    ),
    "space to depth": lambda y: relay.nn.space_to_depth(y, 2),
    "explicit transposes": lambda y: relay.transpose(
        relay.nn.relu(relay.transpose(y, [0, 2, 3, 1])), [0, 3, 1, 2]
    ),
}


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("name", BETWEEN)
def test_no_transpose_between_convolutions(name, opt_level):
    x = relay.var("x", shape=SHAPE)
    y = BETWEEN[name](convolution(x, 8, 8))
    channels = int(tvm.relay.transform.InferTypeLocal(y).shape[1])
    mod = module(x, convolution(y, 4, channels, seed=3))
    with tvm.transform.PassContext(opt_level=opt_level):
        after = CombineTransposes()(ConvertToNHWC()(mod))
    names = ops(after)
    first = names.index("nn.conv2d")
    last = len(names) - 1 - names[::-1].index("nn.conv2d")
    assert not {"layout_transform", "transpose"} & set(names[first:last])
    assert_same_numbers(ConvertToNHWC(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "to_be, weight, layouts",
    [
        ("float16", 1.0, ["NHWC"] * 3),
        (None, 1.0, ["NHWC", "NCHW", "NHWC"]),  # no tensor cores for it
        ("float16", 1e6, ["NHWC", "NCHW", "NHWC"]),  # out of the range, so it will stay float32
    ],
)
def test_groups_go_where_there_is_a_kernel(to_be, weight, layouts):
    x = relay.var("x", shape=SHAPE)
    grouped = relay.const(numbers(8, 4, 3, 3) * np.float32(weight))
    y = relay.nn.conv2d(convolution(x, 8, 8), grouped, padding=1, groups=2)
    mod = module(x, convolution(y, 8, 8, seed=3))
    after = ConvertToNHWC("cuda -arch=sm_90", to_be)(mod)
    assert [str(call.attrs.data_layout) for call in calls_of(after, "nn.conv2d")] == layouts


@pytest.mark.parametrize("target", [None, "llvm", "cuda -arch=sm_90"])
def test_one_channel_and_one_filter(target):
    """As of a grey image, which is blurred."""
    x = relay.var("x", shape=(1, 1, 6, 10))
    mod = module(x, convolution(x, 1, 1))
    after = assert_same_numbers(ConvertToNHWC(target), mod, numbers(1, 1, 6, 10), rtol=1e-5, atol=1e-6)
    (conv,) = calls_of(after, "nn.conv2d")
    assert (conv.attrs.data_layout, conv.attrs.kernel_layout) == ("NHWC", "HWIO")


def test_groups_whose_result_has_another_type_stay():
    """TVM may have no kernel for them in NHWC, and `FuseConv2dNHWC` refuses them."""
    x = relay.var("x", shape=SHAPE, dtype="float16")
    y = relay.nn.conv2d(
        x,
        relay.const(numbers(8, 4, 3, 3).astype("float16")),
        padding=1,
        groups=2,
        out_dtype="float32",
    )
    after = ConvertToNHWC("cuda -arch=sm_90")(module(x, y))
    assert [str(call.attrs.data_layout) for call in calls_of(after, "nn.conv2d")] == ["NCHW"]


def test_types_that_there_are_not():
    with pytest.raises(ValueError, match="to_be must be None or one of float16, bfloat16, not 'half'"):
        ConvertToNHWC("cuda -arch=sm_90", "half")


def constants(count, *names):
    return [relay.const(np.abs(numbers(count, seed=seed)) + 0.1) for seed, _ in enumerate(names)]


def test_batch_norm_is_folded_into_the_weights():
    x = relay.var("x", shape=SHAPE)
    norm = relay.nn.batch_norm(convolution(x, 8, 8), *constants(8, "gamma", "beta", "mean", "variance"))[0]
    mod = module(x, convolution(relay.nn.relu(norm), 4, 8, seed=3))
    after = assert_same_numbers(FoldIntoConvolutions(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["nn.conv2d", "add", "nn.relu", "nn.conv2d"]


@pytest.mark.parametrize("gamma, is_folded", [(0.0, False), (1e-41, False), (1e-6, False), (0.1, True)])
def test_factors_near_zero_stay_before_the_convolution(gamma, is_folded):
    """To move one past a summand divides the summand by it."""
    x = relay.var("x", shape=SHAPE)
    of_each = constants(SHAPE[1], "gamma", "beta", "mean", "variance")
    of_each[0] = relay.const(np.r_[np.float32(gamma), np.ones(SHAPE[1] - 1, "float32")])
    norm = relay.nn.relu(relay.nn.batch_norm(x, *of_each)[0])
    mod = module(x, convolution(norm, 4, SHAPE[1], seed=3))
    after = assert_same_numbers(FoldIntoConvolutions(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ("multiply" not in ops(after)) == is_folded


def test_factors_of_weights_that_are_not_bound_stay_before_the_convolution():
    """Any of them may be 0."""
    x, weight = relay.var("x", shape=SHAPE), relay.var("weight", shape=(4, 8, 3, 3))
    gamma, beta = (relay.var(name, shape=(8, 1, 1)) for name in ("gamma", "beta"))
    conv = relay.nn.conv2d(x * gamma + beta, weight, channels=4, kernel_size=(3, 3))
    mod = module(x, gamma, beta, weight, conv)
    arrays = numbers(*SHAPE), np.zeros((8, 1, 1), "float32"), numbers(8, 1, 1), numbers(4, 8, 3, 3)
    assert_same_numbers(FoldIntoConvolutions(), mod, *arrays, rtol=1e-4, atol=1e-5)
    _, report = apply(FoldIntoConvolutions(), mod)
    assert "may be 0: bind the weights to the module" in refusals(report)[0]


@pytest.mark.parametrize("dtype, out_dtype", [("float16", "float32"), ("int8", "int32")])
def test_factors_stay_beside_convolutions_of_two_types(dtype, out_dtype):
    """TVM's own passes multiply a weight with a factor of another type, or out of its own."""
    x = relay.var("x", shape=SHAPE, dtype=dtype)
    weight = relay.const(np.full((4, 8, 3, 3), 100, dtype))
    moved = relay.multiply(x, relay.const(np.full((8, 1, 1), 2, dtype)))
    conv = relay.nn.conv2d(moved, weight, channels=4, kernel_size=(3, 3), out_dtype=out_dtype)
    mod = module(x, relay.multiply(conv, relay.const(np.full((4, 1, 1), 2, out_dtype))))
    after, report = apply(FoldIntoConvolutions(), mod)
    assert ops(after) == ["multiply", "nn.conv2d", "multiply"]
    assert "a convolution is of integers, or its results have another type" in refusals(report)[0]


def test_factors_stay_before_convolutions_of_two_layouts():
    """As of a network in NHWC whose last layer was fully connected."""
    x = relay.var("x", shape=(1, 4, 4, 4))
    scaled = relay.multiply(relay.nn.relu(x), per_channel(4))
    in_nhwc = convolution(scaled, 4, 4, 1, data_layout="NHWC", kernel_layout="HWIO")
    mod = module(x, relay.Tuple([convolution(scaled, 4, 4, 1), in_nhwc]))
    after, report = apply(FoldIntoConvolutions(), mod)
    assert ops(after) == ops(mod)
    assert "convolutions of two layouts read the same data" in refusals(report)[0]


def test_factors_that_are_computed_stay_out_of_the_weights():
    x = relay.var("x", shape=SHAPE)
    mod = module(x, convolution(attention(relay.nn.relu(x)), 4, 8, seed=3))
    after = assert_same_numbers(FoldIntoConvolutions(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after).count("multiply") == 1
