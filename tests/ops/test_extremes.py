"""Reductions to the greatest and smallest, as `topi_ext.corrections.extremes` has them, versus NumPy."""

import numpy as np
import pytest

from tests.helpers import module, run

from tvm import relay

NAMES = ("max", "min", "argmax", "argmin")


def rows(dtype):
    """One of the lowest number only, one of the greatest, and two mixed."""
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    lowest, highest = (limits.min, limits.max) if limits else (-np.inf, np.inf)
    return np.array([[lowest] * 3, [highest] * 3, [1, 3, 3], [lowest, 2, highest]], dtype)


def reductions(array, axis, keepdims=False):
    """A function of all four, and what NumPy gives."""
    x = relay.var("x", shape=array.shape, dtype=str(array.dtype))
    calls = [getattr(relay, name)(x, axis, keepdims) for name in NAMES]
    expected = [getattr(np, name)(array, axis, keepdims=keepdims) for name in NAMES]
    return relay.Function([x], relay.Tuple(calls)), expected


def assert_equal(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
        assert one.shape == np.shape(other)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "int64"])
def test_where_all_are_the_most_extreme(dtype, axis):
    function, expected = reductions(rows(dtype), axis, keepdims=axis == 1)
    assert_equal(run(function_module(function), rows(dtype)), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_on_cuda(emulated_cuda, dtype):
    function, expected = reductions(rows(dtype), 1)
    assert_equal(emulated_cuda.run_relay(function, rows(dtype)), expected)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_last_of_equals(name):
    array = rows("float32")
    x = relay.var("x", shape=array.shape)
    (found,) = run(module(x, getattr(relay, name)(x, 1, select_last_index=True)), array)
    np.testing.assert_array_equal(found, 2 - getattr(np, name)(array[:, ::-1], 1))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("shape", [(16,), (7, 80), (3, 5, 32), (2, 33)])
def test_places_in_rows_that_vectors_divide(shape, is_last):
    """With what is fused in front of them; all numbers occur several times in a row."""
    array = np.random.default_rng(0).integers(-3, 4, shape).astype("float32")
    array[..., 3] = np.inf
    x = relay.var("x", shape=shape)
    options = {"select_last_index": is_last}
    calls = [getattr(relay, name)(relay.negative(x), -1, False, **options) for name in ("argmax", "argmin")]
    results = run(module(x, relay.Tuple(calls)), array)
    for found, name in zip(results, ("argmax", "argmin")):
        expected = getattr(np, name)(-array[..., ::-1] if is_last else -array, -1)
        np.testing.assert_array_equal(found, shape[-1] - 1 - expected if is_last else expected)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_extremes_of_rows_that_vectors_divide(dtype, keepdims):
    """One of them is of the lowest number only, and the extremes are in all lanes."""
    array = np.random.default_rng(0).integers(-99, 100, (40, 80)).astype(dtype)
    array[0] = -np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).min
    for row in range(1, len(array)):
        array[row, 2 * row], array[row, 79 - row] = 100 + row, -100 - row
    function, expected = reductions(array, -1, keepdims)
    assert_equal(run(function_module(function), array), expected)


@pytest.mark.parametrize("length", [80, 37])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_the_extreme(dtype, length):
    array = with_nan(length, dtype)
    function, expected = reductions(array, 1)
    assert_equal(run(function_module(function), array), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_on_cuda(emulated_cuda, dtype):
    array = with_nan(80, dtype)
    function, expected = reductions(array, 1)
    assert_equal(emulated_cuda.run_relay(function, array), expected)


def test_nan_of_bfloat16():
    array = with_nan(80, "float32")
    x = relay.var("x", shape=array.shape)
    calls = [getattr(relay, name)(relay.cast(x, "bfloat16"), 1) for name in NAMES]
    calls[:2] = [relay.cast(call, "float32") for call in calls[:2]]
    found = run(module(x, relay.Tuple(calls)), array)
    assert_equal(found, [getattr(np, name)(array, 1) for name in NAMES])


def with_nan(length, dtype):
    """Rows with one or more of either sign, before and behind infinities; without any; and of zeros."""
    array = np.random.default_rng(0).integers(-99, 100, (6, length)).astype(dtype)
    array[0, length // 2] = np.nan
    array[1, [3, length - 1]] = -np.nan
    array[2, ::2] = np.nan
    array[:3, [0, 20]] = np.inf, -np.inf
    array[4] = 0.0
    array[4, 0] = -0.0
    array[5] = -np.inf
    return array


def test_several_axes_and_all_but_some():
    array = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    x = relay.var("x", shape=array.shape)
    results = relay.Tuple(
        [relay.max(x, [0, 2]), relay.min(x, [1], exclude=True), relay.max(x, [0, -1], True)]
    )
    expected = [array.max((0, 2)), array.min((0, 2)), array.max((0, 2), keepdims=True)]
    assert_equal(run(module(x, results), array), expected)


def function_module(function):
    return module(*function.params, function.body)
