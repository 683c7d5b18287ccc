"""InMixedPrecision: convolutions and what is between them are half, all else stays float32."""

import numpy as np
import pytest

from tests.helpers import assert_same_numbers, convolution, module, numbers, ops, per_channel, run
from topi_ext import multiscale_roi_align
from tvm_passes import InMixedPrecision
from tvm_passes.analysis.convolution import as_constant
from tvm_passes.engine.expressions import constant, op_name
from tvm_passes.engine.graph import Graph
from tvm_passes.quantize.numbers import quantized

import tvm
from tvm import relay

SHAPE = (1, 8, 6, 10)
IMAGE = relay.var("x", shape=SHAPE)


def dtypes(mod, dtype="float16"):
    """{operator: the types of the results of its calls} after the pass."""
    after = InMixedPrecision(dtype)(mod)
    found = {}
    for node in Graph(after["main"]).nodes:
        if op_name(node) and isinstance(node.checked_type, relay.TensorType):
            found.setdefault(op_name(node), set()).add(node.checked_type.dtype)
    before = relay.transform.InferType()(mod)["main"].checked_type
    assert after["main"].checked_type == before
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_between_convolutions_follows(dtype):
    y = relay.nn.space_to_depth(convolution(IMAGE, 8, 8), 2)
    y = relay.concatenate([relay.nn.relu(y), relay.nn.max_pool2d(y, (3, 3), padding=(1, 1))], 1)
    found = dtypes(module(IMAGE, convolution(y, 4, 64)), dtype)
    for name in ("nn.conv2d", "nn.relu", "nn.max_pool2d", "nn.space_to_depth", "concatenate"):
        assert found[name] == {dtype}


def test_parts_of_a_split_follow():
    parts = relay.split(convolution(IMAGE, 8, 8), 2, axis=1)
    found = dtypes(module(IMAGE, convolution(relay.multiply(parts[0], parts[1]), 4, 4)))
    assert found["multiply"] == {"float16"}


def test_a_split_that_is_read_as_a_tuple_keeps_no_convolution_in_float32():
    """Only its fields can be cast."""
    parts = relay.split(convolution(IMAGE, 8, 8), 2, axis=1)
    assert dtypes(module(IMAGE, parts.astuple()))["nn.conv2d"] == {"float16"}


def test_a_part_of_a_split_that_another_use_keeps_float32():
    parts = relay.split(convolution(IMAGE, 8, 8), 2, axis=1)
    mod = module(IMAGE, relay.Tuple([convolution(relay.nn.relu(parts[0]), 4, 4), relay.exp(parts[1])]))
    assert dtypes(mod)["exp"] == {"float32"}
    assert dtypes(mod)["nn.relu"] == {"float16"}


def test_scalars_between_stay_scalars():
    y = convolution(IMAGE, 8, 8)
    greatest = relay.expand_dims(relay.add(relay.max(y), relay.const(1.0)), 0, 4)
    found = dtypes(module(IMAGE, convolution(relay.multiply(y, greatest), 4, 8)))
    assert found["max"] == found["add"] == found["multiply"] == {"float16"}


@pytest.mark.parametrize(
    "give_float32",
    [
        lambda y: relay.cast(y, "float32"),
        lambda y: relay.full(relay.max(y), SHAPE, "float32"),
    ],
)
def test_what_gives_float32_by_its_attributes_does_so(give_float32):
    mod = module(IMAGE, convolution(give_float32(convolution(IMAGE, 8, 8)), 4, 8))
    calls = [node for node in Graph(InMixedPrecision()(mod)["main"]).nodes if op_name(node) == "nn.conv2d"]
    assert [arg.checked_type.dtype for call in calls for arg in call.args] == ["float16"] * 4


def filled(number, *shape):
    return relay.const(np.full(shape, number, "float32"))


def by_one(y, number):
    return relay.nn.conv2d(y, filled(number, 4, 8, 1, 1), channels=4, kernel_size=(1, 1))


def by_few(y, number):
    """A filter of each channel, divided by ones, and by one other number where the filter is 0."""
    divisors = np.array([1, number, 1, 1, 1, 1, 1, 1], "float32").reshape(-1, 1, 1)
    y = relay.multiply(y, relay.const((divisors == 1).astype("float32")))
    return convolution(relay.divide(y, relay.const(divisors)), 4, 8)


NOT_HALF = {
    "a large bias": lambda y: relay.add(convolution(y, 8, 8), filled(1e6, 8, 1, 1)),
    "large weights": lambda y: by_one(y, 1e5),
    "small weights": lambda y: by_one(y, 1e-9),
    "a small bound": lambda y: relay.log(relay.clip(by_one(y, -1.0), 1e-8, 1.0)),
    "a large bound": lambda y: by_one(relay.clip(y, 0.0, 1e9), 1.0),
    "a small divisor among others": lambda y: by_few(y, 1e-9),
    "a divisor that is not 0": lambda y: convolution(relay.divide(y, relay.add(y, relay.const(1e-9))), 4, 8),
}


@pytest.mark.parametrize("what", NOT_HALF)
def test_constants_that_half_precision_does_not_have(what):
    y = relay.nn.relu(convolution(IMAGE, 8, 8))
    mod = module(IMAGE, NOT_HALF[what](y))
    (expected,), (half,) = run(mod, numbers(*SHAPE)), run(InMixedPrecision()(mod), numbers(*SHAPE))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(half / scale, expected / scale, atol=5e-3)
    assert dtypes(mod)["nn.conv2d"] >= {"float16"}
    assert dtypes(mod, "bfloat16")["nn.conv2d"] == {"bfloat16"}


def test_sums_of_large_windows_are_float32():
    def pooled(pool, *size):
        (name,) = ops(module(IMAGE, pool(IMAGE, *size)))
        return dtypes(module(IMAGE, convolution(pool(convolution(IMAGE, 8, 8), *size), 4, 8)))[name]

    assert pooled(relay.nn.avg_pool2d, (3, 3)) == {"float16"}
    assert pooled(relay.nn.avg_pool2d, (5, 5)) == {"float32"}
    assert pooled(relay.nn.adaptive_avg_pool2d, (2, 2)) == {"float32"}
    # Only their result is rounded: they are summed in float32 as they are built.
    assert pooled(relay.nn.global_avg_pool2d) == pooled(relay.nn.adaptive_avg_pool2d, (1, 1)) == {"float16"}
    high = np.full((1, 8, 64, 64), 1000, "float16")  # whose sum float16 does not have
    x = relay.var("x", shape=high.shape, dtype="float16")
    for mean in (relay.nn.global_avg_pool2d(x), relay.nn.adaptive_avg_pool2d(x, (1, 1))):
        (found,) = run(module(x, mean), high)
        assert (found == 1000).all()


def test_an_unknown_type():
    with pytest.raises(ValueError, match="one of float16, bfloat16, not 'float8'"):
        InMixedPrecision("float8")


def test_bias_activation_and_residual_of_the_last_convolution_are_half():
    y = relay.nn.relu(relay.add(relay.add(convolution(IMAGE, 8, 8), per_channel(8)), IMAGE))
    found = dtypes(module(IMAGE, y))
    assert found["add"] == found["nn.relu"] == {"float16"}


def test_what_is_rounded_to_int8_is_half_before():
    """The rounding itself is in float32, of which a cast is part; another reader keeps all in float32."""
    pooled = relay.nn.max_pool2d(convolution(IMAGE, 8, 8), (3, 3), padding=(1, 1))
    rounded = quantized(pooled, 0.1)
    found = dtypes(module(IMAGE, rounded))
    assert found["nn.max_pool2d"] == {"float16"} and found["multiply"] == {"float32"}
    for other in (relay.exp(pooled), relay.round(pooled)):
        assert dtypes(module(IMAGE, relay.Tuple([rounded, other])))["nn.max_pool2d"] == {"float32"}


def test_what_comes_of_the_heads_is_float32():
    scores = relay.nn.bias_add(convolution(IMAGE, 4, 8), per_channel(4, rank=1))
    boxes = relay.multiply(relay.reshape(scores, (-1, 4)), relay.const(1000.0))
    found = dtypes(module(IMAGE, relay.add(boxes, relay.sigmoid(boxes))))
    assert found["nn.bias_add"] == found["reshape"] == {"float16"}
    assert found["multiply"] == found["sigmoid"] == found["add"] == {"float32"}


def test_what_only_moves_is_half_whoever_reads_it():
    """The numbers are the same, and there are half as many bytes."""
    rows = relay.transpose(relay.reshape(convolution(IMAGE, 8, 8), (2, 4, 60)), (0, 2, 1))
    parts = relay.split(relay.take(rows, relay.const(1), axis=0), 2, axis=1)
    moved = relay.concatenate([parts[1], parts[0]], 1)
    found = dtypes(module(IMAGE, relay.Tuple([relay.exp(moved), relay.sqrt(rows)])))
    for name in ("reshape", "transpose", "take", "concatenate"):
        assert found[name] == {"float16"}
    assert found["exp"] == found["sqrt"] == {"float32"}


def test_what_is_behind_something_moved_is_no_epilogue():
    """It may be a box: only next to a convolution, it is known to be part of it."""
    moved = relay.transpose(convolution(IMAGE, 8, 8), (0, 2, 3, 1))
    assert dtypes(module(IMAGE, relay.add(moved, relay.const(np.ones(8, "float32")))))["add"] == {"float32"}


def test_what_is_added_to_a_shuffled_image_is_half():
    y = relay.nn.depth_to_space(convolution(IMAGE, 8, 8), 2)
    image = relay.const(numbers(1, 2, 12, 20))
    assert dtypes(module(IMAGE, relay.add(y, image)))["add"] == {"float16"}


def test_float32_beside_what_is_moved_keeps_all_in_float32():
    joined = relay.concatenate([convolution(IMAGE, 8, 8), relay.exp(IMAGE)], 1)
    assert dtypes(module(IMAGE, joined))["concatenate"] == {"float32"}


def test_what_a_head_and_a_convolution_use_is_float32():
    y = relay.tanh(relay.reshape(convolution(IMAGE, 8, 8), SHAPE))
    found = dtypes(module(IMAGE, relay.Tuple([convolution(y, 4, 8), relay.exp(y)])))
    assert found["tanh"] == found["exp"] == {"float32"}


def test_a_transpose_that_others_read_is_one_kernel_with_the_cast():
    nhwc = relay.transpose(IMAGE, (0, 2, 3, 1))
    y = relay.nn.conv2d(
        nhwc,
        relay.const(numbers(1, 1, 8, 4)),
        channels=4,
        kernel_size=(1, 1),
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    after = InMixedPrecision()(module(IMAGE, relay.Tuple([y, relay.exp(nhwc)])))
    graph = Graph(after["main"])
    transposes = [node for node in graph.nodes if op_name(node) == "transpose"]
    assert sorted(op_name(user) for node in transposes for user in graph.users(node)) == ["cast", "exp"]
    assert len(transposes) == 2


def test_the_image_is_normalised_in_float32():
    normal = relay.divide(relay.subtract(IMAGE, per_channel(8)), relay.const(0.2))
    found = dtypes(module(IMAGE, convolution(normal, 4, 8)))
    assert found["subtract"] == found["divide"] == {"float32"}


def test_means_are_float32():
    y = convolution(IMAGE, 8, 8)
    mean = convolution(relay.mean(y, axis=[2, 3], keepdims=True), 8, 8, kernel=1)
    found = dtypes(module(IMAGE, convolution(relay.multiply(y, relay.sigmoid(mean)), 4, 8)))
    assert found["mean"] == {"float32"}
    assert found["sigmoid"] == found["multiply"] == {"float16"}


@pytest.mark.parametrize("pool", [relay.nn.global_avg_pool2d, relay.nn.adaptive_avg_pool2d])
def test_means_of_whole_images_are_rounded_once(pool):
    """They are summed in float32 from what a convolution gives, which no kernel needs to cast before."""
    y = convolution(IMAGE, 8, 8)
    size = () if pool is relay.nn.global_avg_pool2d else ([1],)
    mod = module(IMAGE, convolution(relay.multiply(y, convolution(pool(y, *size), 8, 8, kernel=1)), 4, 8))
    name = pool.__name__
    assert dtypes(mod)[f"nn.{name}"] == {"float16"}
    assert dtypes(mod, "bfloat16")[f"nn.{name}"] == {"float32"}
    assert_same_numbers(InMixedPrecision(), mod, numbers(*SHAPE), rtol=2e-2, atol=2e-2)


def test_means_of_parts_of_images_are_float32():
    y = convolution(relay.nn.adaptive_avg_pool2d(convolution(IMAGE, 8, 8), [2]), 4, 8)
    assert dtypes(module(IMAGE, y))["nn.adaptive_avg_pool2d"] == {"float32"}


def test_what_is_not_to_be_fused_is_half_too():
    y = convolution(relay.annotation.stop_fusion(convolution(IMAGE, 8, 8)), 4, 8)
    assert dtypes(module(IMAGE, y))["annotation.stop_fusion"] == {"float16"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_corners_of_regions_are_float32(dtype):
    rois = relay.var("rois", shape=(3, 5))
    corners = relay.add(rois, relay.const(0.25))
    features = convolution(IMAGE, 8, 8)
    regions = multiscale_roi_align([features], corners, pooled_size=2, scales=[1.0], sampling_ratio=2)
    mod = module(IMAGE, rois, convolution(regions, 4, 8))
    found = dtypes(mod, dtype)
    assert found["topi_ext.multiscale_roi_align"] == {"float16" if dtype == "float16" else "float32"}
    assert found["add"] == {"float32"}
    if dtype == "float16":
        arrays = numbers(*SHAPE), np.float32([[0, 0, 0, 5, 5], [0, 1, 2, 9, 4], [0, 3, 3, 4, 4]])
        (expected,), (half,) = run(mod, *arrays), run(InMixedPrecision()(mod), *arrays)
        np.testing.assert_allclose(half, expected, rtol=1e-2, atol=1e-2)


def test_a_wanted_type_is_half_too():
    mod = module(IMAGE, relay.nn.relu(convolution(IMAGE, 8, 8, out_dtype="float32")))
    assert dtypes(mod)["nn.relu"] == {"float16"}


def test_other_functions_of_the_module():
    mod = module(IMAGE, convolution(IMAGE, 8, 8))
    other = relay.var("y", shape=SHAPE)
    mod[relay.GlobalVar("second")] = relay.Function([other], convolution(other, 8, 8))
    after = InMixedPrecision()(mod)
    names = [op_name(node) for node in Graph(after["second"]).nodes if op_name(node)]
    assert names == ["cast", "nn.conv2d", "cast"]


def test_no_second_change():
    mod = module(IMAGE, relay.nn.relu(convolution(IMAGE, 8, 8)))
    once = InMixedPrecision()(mod)
    assert tvm.ir.structural_equal(InMixedPrecision()(once), once)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_constants_of_bfloat16_are_the_numbers_they_were(shape):
    number = np.full(shape, 3.0, "float32")
    np.testing.assert_array_equal(constant(as_constant(number, "bfloat16")), number)
