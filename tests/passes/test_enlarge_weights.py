"""Weights that are too small for float16 are enlarged: structure, numbers, and where they must not be."""

import numpy as np
import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, run
from tvm_passes import FuseConv2dNHWC, InMixedPrecision

import tvm
from tvm import relay

SHAPE = 1, 4, 5, 8


def convolved(x, weights, channels=6, **options):
    options = {"data_layout": "NHWC", "kernel_layout": "HWIO", **options}
    return relay.nn.conv2d(
        x, relay.const(weights), channels=channels, kernel_size=(3, 3), padding=1, **options
    )


def tiny(factor):
    return numbers(3, 3, 8, 6) * np.float32(factor)


def graph(factor):
    x, residual = relay.var("x", shape=SHAPE), relay.var("residual", shape=(1, 4, 5, 6))
    y = relay.add(convolved(x, tiny(factor)), relay.const(numbers(1, 1, 1, 6, seed=2) * np.float32(factor)))
    return module(x, residual, relay.add(y, residual))


@pytest.mark.parametrize("factor", [1e-6, 1e-20])
def test_tiny_weights_are_computed_in_float16(factor):
    mod, data = graph(factor), numbers(*SHAPE)
    nothing = np.zeros((1, 4, 5, 6), "float32")  # so that what is added to it is seen
    passes = tvm.transform.Sequential([FuseConv2dNHWC(to_be="float16"), InMixedPrecision("float16")])
    after = passes(mod)
    (conv,) = (each for each in ops(after) if "conv2d" in each)
    assert conv == "topi_ext.conv2d_nhwc" and ops(after).count("multiply") == 1
    (expected,), (found,) = run(mod, data, nothing), run(after, data, nothing)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())
    before_half = assert_same_numbers(FuseConv2dNHWC(to_be="float16"), mod, data, nothing, rtol=1e-5, atol=0)
    assert_no_second_change(FuseConv2dNHWC(to_be="float16"), before_half)


def test_results_of_large_data_fit_into_float16():
    """They are as large as the data at most, though all weights have a sign, and so has the data."""
    x = relay.var("x", shape=SHAPE)
    mod, data = (
        module(x, convolved(x, np.full((3, 3, 8, 6), 5e-5, "float32"))),
        np.full(SHAPE, 4e4, "float32"),
    )
    passes = tvm.transform.Sequential([FuseConv2dNHWC(to_be="float16"), InMixedPrecision("float16")])
    after = assert_same_numbers(passes, mod, data, rtol=2e-3, atol=0)
    assert "topi_ext.conv2d_nhwc" in ops(after)


@pytest.mark.parametrize(
    "weights",
    {
        "zero": tiny(0),
        "ordinary": tiny(1e-2),
        "too large": tiny(1e7),
        "infinite": np.where(tiny(1) == tiny(1).max(), np.float32(np.inf), tiny(1e-6)),
        "not a number": np.where(tiny(1) == tiny(1).max(), np.float32(np.nan), tiny(1e-6)),
        "of no normal factor": tiny(1e-41),
    }.items(),
    ids=lambda each: each[0],
)
def test_other_weights_stay(weights):
    x = relay.var("x", shape=SHAPE)
    after, _ = apply(FuseConv2dNHWC(to_be="float16"), module(x, convolved(x, weights[1])))
    assert "multiply" not in ops(after)


def test_other_convolutions_stay():
    x, weights = relay.var("x", shape=(1, 8, 4, 5)), numbers(6, 8, 3, 3) * np.float32(1e-6)
    mod = module(x, convolved(x, weights, data_layout="NCHW", kernel_layout="OIHW"))
    assert ops(apply(FuseConv2dNHWC(to_be="float16"), mod)[0]) == ["nn.conv2d"]
    for to_be in (None, "bfloat16"):  # which has the range of float32
        assert "multiply" not in ops(apply(FuseConv2dNHWC(to_be=to_be), graph(1e-6))[0])
