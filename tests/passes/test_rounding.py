"""How weights are rounded: to a neighbour each, so that the errors of a filter cancel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tests.helpers import module, numbers
from topi_ext import conv2d_nhwc
from tvm_passes import InMixedPrecision
from tvm_passes.analysis.convolution import as_constant
from tvm_passes.convolution.rounding import OF_PIXELS, neighbours, rounded_together
from tvm_passes.engine.expressions import constant, op_name
from tvm_passes.engine.graph import Graph

from tvm import relay

HALF = ("float16", "bfloat16")


def nearest(array, dtype):
    return constant(as_constant(array, dtype)).astype("float32")


def is_of(array, dtype):
    return np.array_equal(nearest(array, dtype), array)


@pytest.mark.parametrize("dtype", HALF)
@settings(max_examples=200, deadline=None)
@given(
    weights=arrays_of.arrays(
        "float32",
        arrays_of.array_shapes(min_dims=4, max_dims=4, min_side=0, max_side=4),
        elements=st.floats(-65504, 65504, width=32) | st.floats(-(2.0**-14), 2.0**-14, width=32),
    )
)
def test_each_weight_becomes_one_of_the_two_numbers_next_to_it(dtype, weights):
    rounded = rounded_together(weights, dtype)
    assert rounded.shape == weights.shape
    assert is_of(rounded, dtype)
    below, above = neighbours(weights, dtype)
    assert is_of(below, dtype) and is_of(above, dtype)
    assert (below <= weights).all() and (weights <= above).all()
    assert ((rounded == below) | (rounded == above)).all()
    near = nearest(weights, dtype)
    assert ((near == below) | (near == above)).all()  # so there is nothing between the two


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kernel", [1, 3])
def test_numbers_of_the_type_stay(dtype, kernel):
    weights = nearest(numbers(4, 5, kernel, kernel), dtype)
    weights[0, :2] = 0
    np.testing.assert_array_equal(rounded_together(weights, dtype), weights)


def errors(rounded, weights, rows):
    return (rounded.astype("float64") - weights).reshape(rows)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "shape, rows",
    [
        ((64, 32, 3, 3), (-1, 9)),
        ((8, 3, 7, 7), (-1, 49)),
        ((64, 256, 1, 1), (64, 256)),
        ((128, 1, 5, 5), (128, 25)),  # of each channel on its own
        ((300, 1200, 1, 1), (300, 1200)),  # more than are rounded at once
    ],
)
def test_errors_cancel_and_hardly_grow(shape, rows, dtype):
    weights = numbers(*shape)
    alone = errors(nearest(weights, dtype), weights, rows)
    together = errors(rounded_together(weights, dtype), weights, rows)
    assert (together.sum(1) ** 2).mean() < 0.15 * (alone.sum(1) ** 2).mean()
    assert (together**2).mean() < 1.15 * (alone**2).mean()


@pytest.mark.parametrize("dtype, exponents", [("float16", (-4, 12)), ("bfloat16", (-80, 120))])
@pytest.mark.parametrize("kernel", [1, 3])
def test_it_is_the_same_at_any_scale(dtype, exponents, kernel):
    weights = numbers(16, 40, kernel, kernel)
    weights[numbers(16, 40, kernel, kernel, seed=1) > 0.3] = 0  # what is exact cannot make up for others
    weights[np.abs(weights) < 2.0**-6] = 0.25  # small ones would be subnormal, and have fewer digits
    expected = rounded_together(weights, dtype)
    for exponent in exponents:
        scale = np.float32(2.0**exponent)
        np.testing.assert_array_equal(rounded_together(weights * scale, dtype), expected * scale)


def test_the_best_of_few_weights_is_nearly_found():
    weights = numbers(200, 1, 2, 3)
    flat = weights.reshape(200, 6)
    low, high = (each - flat.astype("float64") for each in neighbours(flat, "float16"))
    every = [np.where([choice >> bit & 1 for bit in range(6)], high, low) for choice in range(64)]

    def expected_square(error):
        """Of what a row adds, where what it is multiplied with has variance 1 and this correlation."""
        return (1 - OF_PIXELS) * (error**2).sum(1) + OF_PIXELS * error.sum(1) ** 2

    every_square = [expected_square(error) for error in every]
    found, near = (
        expected_square(errors(rounded, weights, (200, 6))).mean()
        for rounded in (rounded_together(weights, "float16"), nearest(weights, "float16"))
    )
    best = np.min(every_square, axis=0).mean()
    assert best <= found < best + 0.25 * (near - best)


def weights_in(mod):
    (call,) = [node for node in Graph(mod["main"]).nodes if op_name(node) not in (None, "cast")]
    return constant(call.args[1]).astype("float32")


X = relay.var("x", shape=(1, 6, 10, 8))  # NHWC
WEIGHTS = numbers(4, 8, 3, 3)


def by_stock(layout):
    weight = relay.const(WEIGHTS.transpose(["OIHW".index(axis) for axis in layout]))
    return relay.nn.conv2d(
        X, weight, channels=4, kernel_size=(3, 3), data_layout="NHWC", kernel_layout=layout
    )


@pytest.mark.parametrize(
    "result, order",
    [
        (by_stock("OIHW"), (0, 1, 2, 3)),
        (by_stock("HWIO"), (3, 2, 0, 1)),
        (by_stock("OHWI"), (0, 3, 1, 2)),
        (conv2d_nhwc(X, relay.const(WEIGHTS.transpose(0, 2, 3, 1))), (0, 3, 1, 2)),
    ],
    ids=["OIHW", "HWIO", "OHWI", "conv2d_nhwc"],
)
@pytest.mark.parametrize("dtype", HALF)
def test_the_weights_of_convolutions_are_rounded_together(result, order, dtype):
    found = weights_in(InMixedPrecision(dtype)(module(X, result)))
    np.testing.assert_array_equal(found.transpose(order), rounded_together(WEIGHTS, dtype))
    assert not is_of(WEIGHTS, dtype) and not np.array_equal(found.transpose(order), nearest(WEIGHTS, dtype))


def test_the_weights_of_matrix_products_are_rounded_together():
    x, weights = relay.var("x", shape=(3, 40)), numbers(5, 40)
    found = weights_in(InMixedPrecision()(module(x, relay.nn.dense(x, relay.const(weights)))))
    np.testing.assert_array_equal(
        found, rounded_together(weights.reshape(5, 40, 1, 1), "float16").reshape(5, 40)
    )


def test_a_constant_image_is_rounded_to_nearest():
    image, weight = numbers(1, 8, 6, 10), relay.var("weight", shape=(4, 8, 3, 3))
    result = relay.nn.conv2d(relay.const(image), weight, channels=4, kernel_size=(3, 3))
    mod = InMixedPrecision()(module(weight, result))
    (call,) = [node for node in Graph(mod["main"]).nodes if op_name(node) == "nn.conv2d"]
    np.testing.assert_array_equal(constant(call.args[0]), image.astype("float16"))


def test_weights_that_are_not_finite_stay_so():
    weights = WEIGHTS.copy()
    weights[1, 2, 0, 0], weights[2, 0, 1, 1] = np.inf, np.nan
    result = relay.nn.conv2d(
        X, relay.const(weights), channels=4, kernel_size=(3, 3), data_layout="NHWC", kernel_layout="OIHW"
    )
    np.testing.assert_array_equal(
        weights_in(InMixedPrecision()(module(X, result))), weights.astype("float16")
    )
