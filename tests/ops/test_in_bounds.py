"""TVM's operators that go by indices stay inside their tensors, and do as before where they were right."""

import numpy as np
import pytest
import torch
import torchvision

from tests.helpers import module, numbers
from tests.sanitizer import sanitized
from tvm_passes import runtime

from tvm import relay, te, topi

X = numbers(4, 5)
INSIDE = np.int64([0, 3, -1, 2, -4, 1])
OUTSIDE = np.int64([4, -5, 2**40, -(2**40), 2**31, 2**62])
NEAREST = np.int64([3, 0, 3, 0, 3, 3])


def indices(*shape):
    return relay.var("indices", shape=shape, dtype="int64")


def x(*shape):
    return relay.var("x", shape=shape or X.shape)


# A network of x and indices, and what NumPy makes of them where the indices are inside.
READERS = {
    "gather": (
        lambda x, i: relay.gather(x, 0, relay.broadcast_to(relay.expand_dims(i, 1), (6, 5))),
        lambda x, i: x[i],
    ),
    "gather_nd": (
        lambda x, i: relay.gather_nd(x, relay.stack([i, relay.const(np.arange(6) % 5, "int64")], 0)),
        lambda x, i: x[i, np.arange(6) % 5],
    ),
    "adv_index": (
        lambda x, i: relay.adv_index([x, i, relay.const(np.arange(6) % 5, "int64")]),
        lambda x, i: x[i, np.arange(6) % 5],
    ),
    "take": (lambda x, i: relay.take(x, i, 0), lambda x, i: x[i]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("length", [6, relay.Any()])
def test_what_reads(name, length):
    if name in ("gather", "gather_nd") and length != 6:
        pytest.skip("its network is static")
    build, expected = READERS[name]
    data, places = x(), indices(length)
    with sanitized() as sanitizer:
        model = runtime.compile(module(data, places, build(data, places)), "llvm")
        if name != "take":  # which takes those below 0 for 0
            np.testing.assert_array_equal(model(X, INSIDE), expected(X, INSIDE))
        np.testing.assert_array_equal(model(X, OUTSIDE), expected(X, NEAREST))
        sanitizer.check()


@pytest.mark.parametrize("name", ["gather_nd", "adv_index"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_indices_of_a_type_that_does_not_hold_the_length(name, dtype):
    long, places = numbers(300), np.array([0, 5, 127 if dtype == "int8" else 255, -1]).astype(dtype)
    data, rows = x(300), relay.var("indices", shape=(4,), dtype=dtype)
    taken = (
        relay.adv_index([data, rows])
        if name == "adv_index"
        else relay.gather_nd(data, relay.reshape(rows, (1, 4)))
    )
    model = runtime.compile(module(data, rows, taken), "llvm")
    np.testing.assert_array_equal(model(long, places), long[places])


def test_pairs_of_indices_into_what_is_concatenated():
    """As detectors decode boxes, and take those that an NMS of ONNX keeps, by image and box."""
    parts = [relay.var(name, shape=(2, 6, 2)) for name in "ab"]
    pairs = relay.var("pairs", shape=(2, 4), dtype="int64")
    taken = relay.gather_nd(relay.concatenate(parts, 2), pairs)
    model = runtime.compile(module(*parts, pairs, taken), "llvm")
    arrays, places = (
        [numbers(2, 6, 2, seed=seed) for seed in range(2)],
        np.int64([[0, 1, 1, 7], [5, 0, 9, 2]]),
    )
    expected = np.concatenate(arrays, 2)[np.minimum(places[0], 1), np.minimum(places[1], 5)]
    np.testing.assert_array_equal(model(*arrays, places), expected)


@pytest.mark.parametrize("reduction", ["update", "add", "mul", "min", "max", "mean"])
def test_what_writes(reduction):
    data, places, updates = x(), indices(4, 3), relay.var("updates", shape=(4, 3))
    scattered = relay.scatter_elements(data, places, updates, 1, reduction)
    inside = np.int64([[0, 4, -1], [1, 2, 3], [-5, 1, 2], [4, 3, 0]])
    with sanitized() as sanitizer:
        model = runtime.compile(module(data, places, updates, scattered), "llvm")
        found = model(X, inside, X[:, 1:4].copy())
        if reduction == "update":
            expected = X.copy()
            np.put_along_axis(expected, inside % 5, X[:, 1:4], 1)
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(model(X, np.full((4, 3), 2**40), X[:, 1:4].copy()), X)
        model(X, OUTSIDE[np.arange(12) % 6].reshape(4, 3), X[:, 1:4].copy())
        sanitizer.check()


@pytest.mark.parametrize("mode", ["update", "add"])
def test_what_writes_slices(mode):
    data, places, updates = x(), indices(1, 3), relay.var("updates", shape=(3, 5))
    with sanitized() as sanitizer:
        scattered = relay.scatter_nd(data, places, updates, mode)
        model = runtime.compile(module(data, places, updates, scattered), "llvm")
        expected = X.copy()
        expected[[2, 0, 3]] = X[:3] + (X[[2, 0, 3]] if mode == "add" else 0)
        np.testing.assert_allclose(model(X, np.int64([[2, 0, 3]]), X[:3].copy()), expected, rtol=1e-6)
        np.testing.assert_array_equal(model(X, np.int64([[4, -1, 2**40]]), X[:3].copy()), X)
        sanitizer.check()


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("length", [0, relay.Any()])
def test_rows_without_elements_are_added_up(name, length):
    data = relay.var("x", shape=(3, length, 2))
    with sanitized() as sanitizer:
        model = runtime.compile(module(data, getattr(relay, name)(data, 1)), "llvm")
        for count in [0] if length == 0 else [0, 4]:
            array = numbers(3, count, 2)
            np.testing.assert_allclose(model(array), getattr(np, name)(array, 1), rtol=1e-6)
        sanitizer.check()


@pytest.mark.parametrize("compute", [topi.cumsum, topi.cumprod])
def test_sums_of_rows_take_keywords(compute):
    x = te.placeholder((3, 4), "float32", "x")
    assert compute(x, axis=1, dtype="float64").dtype == "float64"


ROIS = np.float32([[0, 1, 2, 9, 7], [1, -3, -4, 4, 30], [1, 5, 5, 5, 5]])
WILD = np.float32(
    [[5, 0, 0, 4, 4], [-1, 0, 0, 4, 4], [np.nan] * 5, [0, -np.inf, 0, np.inf, 3e38], [1e30, 0, 0, 1, 1]]
)


@pytest.mark.parametrize("samples", [2, -1])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_regions(layout, samples):
    """As torchvision has them; of what has no place, zeros, and soon."""
    image = numbers(2, 3, 11, 13)
    data = image if layout == "NCHW" else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    variable, rois = x(*data.shape), relay.var("rois", shape=(relay.Any(), 5))
    pooled = relay.vision.roi_align(variable, rois, (2, 3), 0.5, samples, layout)
    with sanitized() as sanitizer:
        model = runtime.compile(module(variable, rois, pooled), "llvm")
        found = model(data, ROIS)
        found = found if layout == "NCHW" else found.transpose(0, 3, 1, 2)
        expected = torchvision.ops.roi_align(
            torch.from_numpy(image), torch.from_numpy(ROIS), (2, 3), 0.5, samples
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert not model(data, WILD).any()
        sanitizer.check()


@pytest.mark.parametrize("name", ["gather", "gather_nd", "adv_index"])
def test_on_cuda(emulated_cuda, name):
    build, expected = READERS[name]
    data, places = x(), indices(6)
    function = relay.Function([data, places], build(data, places))
    for given, wanted in ((INSIDE, INSIDE), (OUTSIDE, NEAREST)):
        (found,) = emulated_cuda.run_relay(function, X, given)
        np.testing.assert_array_equal(found, expected(X, wanted))


@pytest.mark.parametrize("shape", [(4, 5), (20,)])
@pytest.mark.parametrize("reduction", ["update", "add", "max"])
def test_what_writes_on_cuda(emulated_cuda, reduction, shape):
    data, places, updates = x(*shape), indices(*shape), relay.var("updates", shape=shape)
    scattered = relay.scatter_elements(data, places, updates, 0, reduction)
    function = relay.Function([data, places, updates], scattered)
    array, outside = X.reshape(shape), OUTSIDE[np.arange(20) % 6].reshape(shape)
    outside[abs(outside) < 20] = 20
    (found,) = emulated_cuda.run_relay(function, array, outside.copy(), array.copy())
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("mode", ["update", "add"])
def test_what_writes_slices_on_cuda(emulated_cuda, mode):
    data, places, updates = x(), indices(1, 3), relay.var("updates", shape=(3, 5))
    scattered = relay.Function([data, places, updates], relay.scatter_nd(data, places, updates, mode))
    outside = np.int64([[4, -1, 2**40]])
    (found,) = emulated_cuda.run_relay(scattered, X, outside, X[:3].copy())
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_regions_on_cuda(emulated_cuda, layout):
    image = numbers(2, 3, 11, 13)
    data = image if layout == "NCHW" else np.ascontiguousarray(image.transpose(0, 2, 3, 1))

    def pooled(rois):
        variables = x(*data.shape), relay.var("rois", shape=rois.shape)
        function = relay.Function(variables, relay.vision.roi_align(*variables, (2, 3), 0.5, -1, layout))
        (found,) = emulated_cuda.run_relay(function, data, rois)
        return found if layout == "NCHW" else found.transpose(0, 3, 1, 2)

    expected = torchvision.ops.roi_align(torch.from_numpy(image), torch.from_numpy(ROIS), (2, 3), 0.5)
    np.testing.assert_allclose(pooled(ROIS), expected, rtol=1e-4, atol=1e-5)
    assert not pooled(WILD).any()
