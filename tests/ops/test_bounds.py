"""Maxima, minima and bounds of elements keep NaN, as in NumPy."""

import functools
import math

import numpy as np
import pytest

from tests.helpers import module, numbers
from tests.ops.corrected import computed, run_on

from tvm import relay


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_clip_to_bounds_that_cross_gives_the_upper(dtype):
    array = np.array([0, 1, 2, 255 if dtype == "uint8" else 1000], dtype)
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 200, 1), array), np.clip(array, 200, 1))
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 1, 200), array), np.clip(array, 1, 200))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_clip_keeps_nan(dtype):
    array = np.array([math.nan, -9, 0.5, 9, math.nan, math.inf, -math.inf, 1, math.nan], dtype)
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 0, 1), array), np.clip(array, 0, 1))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-math.inf, 1)])
def test_clip_on_cuda(emulated_cuda, dtype, bounds):
    array = np.array([math.nan, -9, 0.5, 9, math.nan, math.inf, -math.inf, 1, math.nan], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    (found,) = emulated_cuda.run_relay(relay.Function([x], relay.clip(x, *bounds)), array)
    np.testing.assert_array_equal(found, np.clip(array, *bounds))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [9, 64])
def test_relu_keeps_nan(emulated_cuda, target, dtype, count):
    special = np.array([math.nan, -9, 0.5, 9, -math.nan, math.inf, -math.inf, -0.0, math.nan], dtype)
    array = np.resize(special, count)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    found = run_on(target, emulated_cuda, module(x, relay.nn.relu(x)), array)
    np.testing.assert_array_equal(found, np.maximum(array, 0))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_two_keep_nan(emulated_cuda, target, dtype, name):
    special = [-9, 0.5, 9, 0] if dtype == "int32" else [math.nan, -9, 9, -math.nan, math.inf, -math.inf, -0.0]
    one, other = (each.astype(dtype) for each in np.meshgrid(special, np.resize(special, 64)))
    x, y = (relay.var(letter, shape=one.shape, dtype=dtype) for letter in "xy")
    expected = getattr(np, name)(one, other)
    of_two = getattr(relay, name)
    found = run_on(target, emulated_cuda, module(x, y, of_two(x, y)), one, other)
    np.testing.assert_array_equal(found, expected)
    zero = relay.const(0, dtype)
    for result in of_two(x, zero), of_two(zero, x):
        found = run_on(target, emulated_cuda, module(x, result), one)
        np.testing.assert_array_equal(found, getattr(np, name)(one, 0))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_a_chain_of_extremes_compiles_at_once(emulated_cuda, target, count=20):
    """In one kernel: where an operator mentioned its operands several times, its code would never end."""
    xs = [relay.var(f"x{number}", shape=(3, 40)) for number in range(count)]
    chain = functools.reduce(relay.maximum, xs[1:], xs[0])
    arrays = [numbers(3, 40, seed=number) for number in range(count)]
    arrays[2][0, 5] = math.nan
    found = run_on(target, emulated_cuda, module(*xs, chain), *arrays)
    np.testing.assert_array_equal(found, np.maximum.reduce(arrays))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("behind", [relay.nn.relu, lambda y: relay.clip(y, 0, 1)])
def test_bounds_behind_a_pooling_on_cuda(emulated_cuda, dtype, behind):
    """In vectors of many channels, of which TVM writes no comparisons of float16."""
    array = numbers(1, 4, 4, 16, dtype=dtype)
    array[0, 1, 1, 3] = math.nan
    x = relay.var("x", shape=array.shape, dtype=dtype)
    pooled = relay.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC")
    found = run_on("cuda", emulated_cuda, module(x, behind(pooled)), array)
    expected = array.reshape(1, 2, 2, 2, 2, 16).max((2, 4))
    most = math.inf if behind is relay.nn.relu else 1
    np.testing.assert_array_equal(found, np.clip(expected, 0, most))
