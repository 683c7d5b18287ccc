"""Exponential, hyperbolic tangent, error function: within their bounds in float32, exact in float64."""

import math

import numpy as np
import pytest

from tests.ops.corrected import computed

from tvm import relay


def test_erf_of_float64_is_as_exact_as_the_type():
    array = np.linspace(-2, 2, 100)
    expected = np.vectorize(math.erf)(array)
    np.testing.assert_allclose(computed(relay.erf, array), expected, rtol=1e-15, atol=1e-17)


@pytest.mark.parametrize("count", [7, 4096])
def test_erf_of_float32(count):
    """With and without vectors; NaN stays NaN."""
    array = np.linspace(-6, 6, count).astype("float32")
    array[:4] = math.nan, math.inf, -math.inf, -0.0
    expected = np.vectorize(math.erf)(array.astype("float64"))
    found = computed(relay.erf, array)
    np.testing.assert_allclose(found, expected, rtol=4e-7, atol=1e-12)
    assert np.signbit(found[3])


def test_exp_of_float64_is_as_exact_as_the_type():
    array = np.linspace(-20, 20, 100)
    np.testing.assert_allclose(computed(relay.exp, array), np.exp(array), rtol=1e-15)


@pytest.mark.parametrize("count", [7, 4096])
def test_exp_of_float32(count):
    """With and without vectors, from 0 to infinity; NaN stays NaN."""
    array = np.linspace(-110, 88.72, count).astype("float32")
    array[:5] = math.nan, math.inf, -math.inf, -0.0, 89
    with np.errstate(over="ignore"):
        expected = np.exp(array.astype("float64")).astype("float32")
    np.testing.assert_allclose(computed(relay.exp, array), expected, rtol=3e-7, atol=1e-44)


@pytest.mark.parametrize("count", [7, 4096])
def test_tanh_of_float32(count):
    """With and without vectors; NaN stays NaN, and so does the sign of 0."""
    array = np.linspace(-12, 12, count).astype("float32")
    array[:5] = np.nan, np.inf, -np.inf, -0.0, 1e-8
    found = computed(relay.tanh, array)
    np.testing.assert_allclose(found, np.tanh(array.astype("float64")), rtol=5e-7)
    assert np.signbit(found[3])


def test_tanh_of_what_is_computed_by_a_polynomial():
    array = np.linspace(-3, 3, 64).astype("float32")
    found = computed(lambda x: relay.tanh(relay.tanh(relay.exp(x))), array)
    np.testing.assert_allclose(found, np.tanh(np.tanh(np.exp(array.astype("float64")))), rtol=1e-6)


def test_nested_exponentials_compile():
    """Each names its operand often, which must not be written out anew each time."""
    array = np.linspace(-3, 1, 64).astype("float32")
    expected = array.astype("float64")
    for _ in range(6):
        expected = 1 / (1 + np.exp(-np.exp(-expected)))

    def function(x):
        for _ in range(6):
            x = relay.sigmoid(relay.exp(relay.negative(x)))
        return x

    np.testing.assert_allclose(computed(function, array), expected, rtol=1e-6)


def test_erf_of_float64_on_cuda(emulated_cuda):
    array = np.linspace(-2, 2, 100)
    x = relay.var("x", shape=array.shape, dtype="float64")
    (found,) = emulated_cuda.run_relay(relay.Function([x], relay.erf(x)), array)
    np.testing.assert_allclose(found, np.vectorize(math.erf)(array), rtol=1e-14, atol=1e-17)


def test_exponentials_of_what_is_long_or_has_branches():
    array = np.random.default_rng(0).standard_normal((1, 6, 6, 16)).astype("float32")
    expected = array

    def function(x):
        for _ in range(4):
            x = relay.nn.relu(relay.nn.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), 0.5))
        return relay.exp(relay.atan(x))

    for _ in range(4):
        expected = np.pad(expected, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=0.5).clip(0)
    np.testing.assert_allclose(computed(function, array), np.exp(np.arctan(expected)), rtol=1e-6)
