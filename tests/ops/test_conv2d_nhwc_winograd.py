"""Winograd's algorithm on CPUs: versus NumPy, where it is taken, weights that change, threads."""

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.convolutions import CLIP, LEAKY, Case, options
from tests.ops.test_conv2d_nhwc_onednn import compiled, executor_of, of_any_batch, ran, ran_by_threads
from topi_ext._vector_math import vector_exp, vector_tanh
from topi_ext.conv2d_nhwc import onednn, winograd, winograd_transforms
from topi_ext.conv2d_nhwc.problem import AT_RUN_TIME

import tvm
from tvm import te

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed")


@pytest.fixture
def always(monkeypatch):
    """Winograd's algorithm wherever it can; the convolutions of this thread."""
    for name in ("TRANSFORM", "TRANSFORM_BY_AVX2", "CALLS", "READING", "READING_BY_INTEL"):
        monkeypatch.setattr(winograd, name, 0)
    monkeypatch.setattr(winograd, "GAIN", np.inf)
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    return thread


def of_float32(size, channels, filters, **given):
    fields = {name: given.pop(name) for name in ("batch", "bias", "residual", "kernel") if name in given}
    fields = {"bias": "float32", **fields}
    more = options(weight_id="of the case", **given)
    return Case(size, channels, filters, dtype="float32", **fields, **more)


def is_close(found, expected):
    """The error is relative to the largest result."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "case",
    [
        of_float32((4, 4), 8, 8),
        of_float32((1, 2), 16, 8, bias=None),
        of_float32((7, 9), 32, 16, batch=3, activation="relu"),
        of_float32((13, 21), 9, 19, activation=LEAKY, residual=True),  # vectors that overlap
        of_float32((6, 30), 48, 33, activation="silu", final_activation=CLIP, residual=True),
        of_float32((9, 8), 20, 24, activation="prelu"),
        of_float32((9, 8), 20, 24, activation="prelu", residual=True, final_activation="hard_swish"),
        of_float32((9, 8), 16, 24, activation="sigmoid", padding=(2, 0, 0, 3)),
        of_float32((8, 12), 16, 64, activation=CLIP, block_size=2, padding=0),
        of_float32((3, 3), 128, 16, batch=2, padding=0),
        *(of_float32((5, 6), 8, 8, activation=name) for name in ("tanh", "gelu_tanh", "mish", "hard_swish")),
    ],
    ids=str,
)
def test_as_the_oracle(always, case):
    arrays = case.arrays()
    is_close(ran(executor_of(case.function(arrays)), arrays), case.expected(arrays))
    (made,) = always.convolutions.values()
    of_bands = [convolution for convolution, *_ in getattr(made, "_bands", [[made]])]
    assert {type(each) for each in of_bands} == {winograd.Convolution}


def test_several_blocks(always, monkeypatch):
    """The last block repeats the last tile."""
    monkeypatch.setattr(winograd, "BLOCK_BYTES", 0)
    case = of_float32((21, 41), 16, 16, batch=2, activation="silu")
    arrays = case.arrays()
    is_close(ran(executor_of(case.function(arrays)), arrays), case.expected(arrays))
    (convolution,) = always.convolutions.values()
    first, tiles, every, *_ = convolution._blocks[-1]
    assert every == 2 * 6 * 11 < first + tiles and first > 0


def test_the_error_is_that_of_float32(always):
    case = of_float32((32, 32), 256, 64, bias=None)
    arrays = case.arrays()
    arrays["data"] = np.maximum(arrays["data"], 0)
    found, expected = ran(executor_of(case.function(arrays)), arrays), case.expected(arrays)
    assert np.abs(found - expected).max() < 4e-6 * np.abs(expected).max()


def test_weights_that_change(always):
    case = of_float32((8, 8), 16, 16)
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    for factor in (1, -2, 1):
        given = {**arrays, "weight": arrays["weight"] * np.float32(factor)}
        is_close(ran(executor, given), case.expected(given))


def test_batches_share_transformed_weights(always):
    run = compiled(of_any_batch(kernel=3, padding=1, weight_id="ones"))
    expected = None
    for count in (1, 2, 1, 5):
        found = run(np.ones((count, 5, 6, 8), "float32")).numpy()
        expected = found[:1] if expected is None else expected
        is_close(found, np.repeat(expected, count, 0))
    assert len(always.convolutions) == 3
    assert all(isinstance(each, winograd.Convolution) for each in always.convolutions.values())


def test_threads_have_their_own(monkeypatch, always):
    monkeypatch.setattr(onednn, "_of_thread", onednn._OfThread())  # of each thread
    for found, expected in ran_by_threads(of_float32((20, 20), 16, 32, activation="silu"), threads=3):
        is_close(found, expected)


# --- where it is taken

LARGE = of_float32((80, 80), 64, 64, activation="silu")


def problem_of(case, **changes):
    return replace(case.problem(), **changes)


@pytest.mark.parametrize(
    "case",
    [
        LARGE,
        of_float32((20, 20), 128, 128),
        of_float32((160, 160), 16, 16),
        of_float32((32, 40), 256, 819),
        of_float32((14, 14), 256, 256, batch=100),
    ],
    ids=str,
)
def test_taken(case, monkeypatch):
    monkeypatch.setattr(winograd.onednn, "has_avx512", lambda: True)
    assert winograd.is_better(case.problem())
    monkeypatch.setenv(winograd.SWITCH, "0")
    assert not winograd.is_better(case.problem())


@pytest.mark.parametrize(
    "size, channels, filters, is_better",
    [((180, 320), 64, 64, True), ((180, 320), 64, 32, False), ((160, 160), 16, 16, False)],
)
def test_taken_where_registers_are_few(size, channels, filters, is_better, monkeypatch):
    monkeypatch.setattr(winograd.onednn, "has_avx512", lambda: False)
    assert winograd.is_better(of_float32(size, channels, filters).problem()) == is_better


@pytest.mark.parametrize("is_of_intel", [False, True])
def test_taken_where_filters_are_read_quickly(is_of_intel, monkeypatch):
    monkeypatch.setattr(winograd.onednn, "has_avx512", lambda: True)
    monkeypatch.setattr(winograd.onednn, "is_of_intel", lambda: is_of_intel)
    assert winograd.is_better(of_float32((8, 10), 512, 512).problem()) != is_of_intel
    assert winograd.is_better(of_float32((16, 20), 256, 256).problem())


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(of_float32((5, 5), 512, 512)),  # reads more of the filters than it saves
        problem_of(of_float32((20, 20), 9, 8)),  # the calls take longer
        problem_of(of_float32((80, 80), 3, 64)),
        problem_of(of_float32((80, 80), 64, 64, strides=2)),
        problem_of(of_float32((80, 80), 64, 64, dilation=2)),
        problem_of(of_float32((80, 80), 64, 64, groups=2)),
        problem_of(of_float32((80, 80), 64, 64, kernel=(1, 1))),
        problem_of(of_float32((80, 80), 64, 64, activation="gelu")),
        problem_of(LARGE, weight_id=""),  # would be transformed in each call
        problem_of(LARGE, dtype="bfloat16"),  # too inaccurate
        problem_of(LARGE, bias="bfloat16"),
        problem_of(LARGE, batch=6000),  # 2 ** 31 elements and more
    ],
    ids=str,
)
def test_not_taken(problem):
    assert problem.batch != AT_RUN_TIME and not winograd.is_better(problem)


# --- pieces


def test_transforms_are_exact_in_fractions():
    """The algorithm in one dimension, on the kernels' own matrix for filters and the points."""
    points = winograd_transforms.POINTS
    rng = np.random.default_rng(0)
    data, weight = rng.standard_normal(6), rng.standard_normal(3)
    numbers = []
    for point in points:
        factors = np.poly1d([1.0])
        for other in points:
            factors *= np.poly1d([1.0, -float(other)]) if other != point else 1
        numbers.append(factors.coeffs[::-1] @ data[:5])
    everything = np.poly1d([float(point) for point in points], r=True)
    numbers.append(everything.coeffs[::-1] @ data)
    products = np.array(numbers) * (winograd_transforms.of_filters() @ weight)
    powers = np.array([[float(point) ** power for point in points] for power in range(4)])
    found = powers @ products[:5] + np.array([0, 0, 0, 1]) * products[5]
    np.testing.assert_allclose(found, [weight @ data[at : at + 3] for at in range(4)], rtol=1e-12)


def computed(function, x):
    given = te.placeholder(x.shape, name="x")
    result = te.compute(x.shape, lambda i: function(given[i]))
    run = tvm.build(te.create_schedule(result.op), [given, result], "llvm")
    arrays = [tvm.nd.array(x), tvm.nd.array(np.zeros_like(x))]
    run(*arrays)
    return arrays[1].numpy()


def test_vector_exp():
    x = np.concatenate([np.linspace(-110, 88.72, 100_001), [0.0, -0.0, 1e-30]]).astype("float32")
    expected = np.exp(x.astype("float64"))
    np.testing.assert_allclose(computed(vector_exp, x), expected, rtol=2e-7, atol=1e-45)
    found = computed(vector_exp, np.array([-np.inf, -200, -104, 88.73, 200, np.inf, np.nan], "float32"))
    np.testing.assert_array_equal(found, [0, 0, 0, np.inf, np.inf, np.inf, np.nan])


def test_vector_tanh():
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.logspace(-30, 0, 1000)]).astype("float32")
    np.testing.assert_allclose(computed(vector_tanh, x), np.tanh(x.astype("float64")), rtol=5e-7)
    found = computed(vector_tanh, np.array([-np.inf, np.inf, 0, np.nan], "float32"))
    np.testing.assert_allclose(found, [-1, 1, 0, np.nan], rtol=2e-7)
