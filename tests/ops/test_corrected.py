"""Operators of TVM, as `topi_ext.corrections` has them, versus NumPy: those without a file of their own."""

import math
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import module, numbers, run
from tests.ops.corrected import computed, run_on
from tvm_passes import runtime

from tvm import relay


def test_negative_of_zero_has_the_other_sign():
    array = np.array([0, -0.0, 1, math.inf], "float32")
    np.testing.assert_array_equal(np.signbit(computed(relay.negative, array)), np.signbit(-array))
    np.testing.assert_array_equal(computed(relay.negative, np.array([0, 1, -128], "int8")), [0, -1, -128])


OF_FLOAT64 = """
import torch
from tests.helpers import module, run
import numpy as np
from tvm import relay

x = relay.var("x", shape=(64,), dtype="float64")
array = np.linspace(-3, 70000, 64)
(found,) = run(module(x, relay.cast(x, "float16")), array)
np.testing.assert_array_equal(found, torch.from_numpy(array).half().numpy())
"""


def test_float16_of_float64_where_torch_is_imported_first():
    subprocess.run([sys.executable, "-c", OF_FLOAT64], check=True, timeout=120)


@pytest.mark.parametrize(
    ("dtype", "between", "last"),
    [
        ("int8", "uint8", "int64"),
        ("int32", "float32", "int64"),
        ("int64", "float64", "int64"),
        ("int16", "float16", "int16"),
    ],
)
def test_casts_by_a_type_that_does_not_hold_every_number(dtype, between, last):
    """And by one that does, beside it."""
    info = np.iinfo(dtype)
    array = np.array([info.min // 3, -1, 5, info.max // 5], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    casts = [relay.cast(relay.cast(x, between), last), relay.cast(relay.cast(x, "int64"), last)]
    mod = module(x, relay.Tuple(casts))
    for found in (run(mod, array), [*runtime.compile(mod, "llvm")(array).values()]):
        np.testing.assert_array_equal(found[0], array.astype(between).astype(last))
        np.testing.assert_array_equal(found[1], array.astype("int64").astype(last))


@pytest.mark.parametrize("between", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    "dtype, last", [("float32", "float32"), ("float32", "float64"), ("float16", "float32")]
)
def test_a_cast_of_clipped_floats_to_integers_and_back(dtype, between, last):
    """As of pixels that a network rounds down: TVM drops both casts where the integers hold the bounds."""
    array = np.array([-3.7, 0.4, 1.7, 77.75, 200.5], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    mod = module(x, relay.cast(relay.cast(relay.clip(x, 0.0, 100.0), between), last))
    for found in (run(mod, array)[0], runtime.compile(mod, "llvm")(array)):
        np.testing.assert_array_equal(found, np.clip(array, 0, 100).astype(between).astype(last))


@pytest.mark.parametrize("name", ["acos", "acosh", "asin", "asinh", "atan", "atanh"])
def test_inverse_functions_of_float16(name):
    array = (np.linspace(1, 9, 50) if name == "acosh" else np.linspace(-0.99, 0.99, 50)).astype("float16")
    expected = getattr(np, f"arc{name[1:]}")(array.astype("float64"))
    np.testing.assert_allclose(computed(getattr(relay, name), array), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_trilu_in_a_fused_function(dtype, upper):
    array = np.arange(24, dtype="float32").reshape(2, 3, 4)
    triangle = (np.triu if upper else np.tril)(array, 1)
    found = computed(lambda x: relay.concatenate([relay.trilu(x, relay.const(1, dtype), upper), x], 0), array)
    np.testing.assert_array_equal(found, np.concatenate([triangle, array]))


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
def test_resize_in_the_layout_that_tvm_moves_behind_a_transpose(method):
    def function(x):
        pooled = relay.nn.avg_pool2d(relay.transpose(x, [3, 1, 2, 0]), (2, 2), (2, 2))
        return relay.image.resize2d(pooled, (5, 7), method=method)

    def apart(x):
        return relay.image.resize2d(x, (5, 7), method=method)

    array = np.random.default_rng(0).normal(size=(6, 3, 4, 4)).astype("float32")
    pooled = array.transpose(3, 1, 2, 0).reshape(4, 3, 2, 2, 3, 2).mean((3, 5))
    np.testing.assert_allclose(computed(function, array), computed(apart, pooled), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("axis", [2, -1])
def test_what_is_taken_of_a_reversed_shuffle(emulated_cuda, target, axis):
    array = numbers(1, 4, 4, 4)
    places = np.array([1, 0, 7, 3], "int32")
    x = relay.var("x", shape=array.shape)
    shuffled = relay.reshape(
        relay.transpose(relay.reshape(x, (1, 1, 2, 2, 4, 4)), [0, 1, 4, 2, 5, 3]), (1, 1, 8, 8)
    )
    taken = relay.take(relay.reverse(shuffled, axis), relay.const(places), axis, mode="fast")
    expected = array.reshape(1, 1, 2, 2, 4, 4).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 8, 8)
    expected = np.flip(expected, axis).take(places, axis)
    np.testing.assert_array_equal(run_on(target, emulated_cuda, module(x, taken), array), expected)


def fewer_indices(axis, reduction):
    """What to scatter where, and the result."""
    data, source = numbers(3, 4, 5), numbers(2, 3, 2, seed=1)
    places = np.argsort(numbers(2, 3, 2, seed=2), axis).astype("int64")
    expected = data.copy()
    for at in np.ndindex(places.shape):
        into = list(at)
        into[axis] = places[at]
        expected[tuple(into)] = source[at] + (expected[tuple(into)] if reduction == "add" else 0)
    return data, places, source, expected


@pytest.mark.parametrize("reduction", ["update", "add"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_scatter_of_fewer_indices_than_elements(emulated_cuda, target, axis, reduction):
    data, places, source, expected = fewer_indices(axis, reduction)
    x = relay.var("x", shape=data.shape)
    result = relay.scatter_elements(x, relay.const(places), relay.const(source), axis, reduction)
    found = run_on(target, emulated_cuda, module(x, result), data)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["update", "add"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_scatter_of_fewer_indices_than_elements_in_a_tensor_of_unknown_sizes(axis, reduction):
    data, places, source, expected = fewer_indices(axis, reduction)
    x = relay.var("x", shape=[relay.Any()] * 3)
    result = relay.scatter_elements(
        x, relay.const(np.where(places == 0, -data.shape[axis], places)), relay.const(source), axis, reduction
    )
    (found,) = run(module(x, result), data)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rows_taken_of_a_broadcast_tensor():
    """TVM's shape function of broadcast_to asked for numbers of what was fused with it."""
    x, mask = relay.var("x", shape=(4, 2)), relay.var("mask", shape=(12,), dtype="bool")
    wide = relay.reshape(relay.broadcast_to(relay.expand_dims(x, 1), (4, 3, 2)), (12, 2))
    taken = relay.take(wide, relay.squeeze(relay.argwhere(mask), [1]), axis=0)
    array, kept = numbers(4, 2), np.arange(12) % 5 == 1
    for each in kept, np.zeros(12, bool):
        (found,) = run(module(x, mask, relay.exp(taken)), array, each)
        np.testing.assert_allclose(found, np.exp(array.repeat(3, 0)[each]), rtol=1e-6)


def test_bitwise_not_of_unknown_sizes():
    x = relay.var("x", shape=[relay.Any()], dtype="int32")
    (found,) = run(module(x, relay.bitwise_not(x)), np.int32([0, 5, -7]))
    np.testing.assert_array_equal(found, [-1, -6, 6])


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_a_leaky_relu_of_float16_has_its_slope(emulated_cuda, target):
    array = numbers(64, dtype="float16")
    x = relay.var("x", shape=array.shape, dtype="float16")
    found = run_on(target, emulated_cuda, module(x, relay.nn.leaky_relu(x, 0.2)), array)
    wide = array.astype("float32")
    np.testing.assert_array_equal(found, np.where(wide > 0, wide, wide * np.float32(0.2)).astype("float16"))


@pytest.mark.parametrize("strides", [1, 2])
def test_pooling_of_bfloat16_on_cpus(strides):
    """Of numbers that bfloat16 has, in windows that overlap: computed in float32 where many do."""
    array = np.round(numbers(1, 9, 8, 16) * 8)
    x = relay.var("x", shape=array.shape)
    options = {"strides": strides, "padding": (2, 2), "layout": "NHWC"}
    pooled = relay.nn.max_pool2d(relay.cast(x, "bfloat16"), (5, 5), **options)
    found = run(module(x, relay.cast(pooled, "float32")), array)[0]
    wanted = run(module(x, relay.nn.max_pool2d(x, (5, 5), **options)), array)[0]
    np.testing.assert_array_equal(found, wanted)


def test_two_to_the_power_of_truths():
    array = np.array([True, False, True, True, False])

    def function(x):
        return relay.power(relay.const(2.0), relay.cast(x, "float32"))

    x = relay.var("x", shape=array.shape, dtype="bool")
    np.testing.assert_array_equal(run(module(x, function(x)), array)[0], np.where(array, 2, 1))
