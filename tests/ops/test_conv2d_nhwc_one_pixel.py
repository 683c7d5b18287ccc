"""The convolution on CPUs where filters see one whole image: against NumPy, and what is left to others."""

from dataclasses import replace

import numpy as np
import pytest

import topi_ext
from tests.ops.convolutions import CLIP, LEAKY, Case, options
from tests.ops.test_conv2d_nhwc_onednn import executor_of, ran
from topi_ext.conv2d_nhwc import cpu_one_pixel, op
from topi_ext.conv2d_nhwc.problem import ACTIVATIONS

import tvm
from tvm import relay

TARGETS = [tvm.target.Target("llvm"), topi_ext.cpu_target()]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


ADDED = options(padding=0, activation="relu", final_activation=CLIP)


def case(size, channels, filters, **more):
    given = more.pop("options", {"padding": 0})
    return Case(size, channels, filters, kernel=size, dtype="float32", options=given, **more)


PLAIN = case((1, 1), 40, 12)
CASES = [
    PLAIN,
    *(case((1, 1), channels, filters) for channels, filters in [(1, 1), (3, 7), (16, 3), (23, 10), (64, 4)]),
    case((1, 1), 24, 9, bias="", residual=True, **ADDED),
    case((3, 2), 5, 6, **options(padding=0, activation="prelu")),  # as the head of a classifier does
    case((2, 2), 8, 5, **options(padding=(0, 0, 1, 1), strides=2)),
    case((1, 1), 1024, 130),  # by all threads
]


@pytest.mark.parametrize("target", TARGETS, ids=["llvm", "here"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_the_oracle(case, target):
    assert op.kernels_for(case.problem(), target) is cpu_one_pixel
    arrays = case.arrays()
    found = ran(executor_of(case.function(arrays), target), arrays)
    np.testing.assert_allclose(found, case.expected(arrays), **CLOSE)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS.keys() - {"none", "prelu"}))
def test_all_activations(activation):
    """Of vectors, and of what is left over."""
    given = {"leaky_relu": LEAKY, "clip": CLIP}.get(activation, activation)
    of_some = case((1, 1), 6, 7, **options(padding=0, activation=given))
    arrays = of_some.arrays()
    found = ran(executor_of(of_some.function(arrays), TARGETS[1]), arrays)
    np.testing.assert_allclose(found, of_some.expected(arrays), **CLOSE)


@pytest.mark.parametrize("given", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_goes_to_all_filters(given):
    of_some = replace(PLAIN, options={"padding": 0, "activation": "relu"})
    arrays = {**of_some.arrays(), "weight": np.ones((12, 1, 1, 40), "float32")}
    arrays["data"][0, 0, 0, 37] = given
    found = ran(executor_of(of_some.function(arrays), TARGETS[1]), arrays)
    np.testing.assert_array_equal(found, np.full((1, 1, 1, 12), np.maximum(given, np.float32(0))))


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 2},
        {"dtype": "float16"},
        {"options": {"padding": 0, "block_size": 2}},
        {"size": (1, 2)},
        {"options": {"padding": (1, 0, 0, 0), "strides": 2}},
        {"options": {"padding": 0, "groups": 4}},
    ],
    ids=str,
)
def test_what_is_left_to_others(other):
    problem = replace(PLAIN, **other).problem()
    assert op.kernels_for(problem, TARGETS[0]) is not cpu_one_pixel


def test_without_weights_that_are_known():
    """Unlike oneDNN's, the kernel packs nothing: weights that change are read as they are."""
    arrays = PLAIN.arrays()
    variables = [relay.var(name, shape=array.shape) for name, array in arrays.items()]
    call = topi_ext.conv2d_nhwc(*variables, weight_id="some")
    executor = executor_of(relay.Function(variables, call), TARGETS[1])
    for factor in (1, 2):
        arrays["weight"] = arrays["weight"] * np.float32(factor)
        np.testing.assert_allclose(ran(executor, arrays), PLAIN.expected(arrays), **CLOSE)
