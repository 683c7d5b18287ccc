"""Reductions on CUDA by the corrected schedule, on the emulated device and, where there is one, on a GPU."""

import numpy as np
import pytest

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers

import tvm
from tvm import relay

CASES = [
    ((1, 9, 11, 5), (2,)),
    ((1, 9, 200, 40), (2,)),
    ((2, 70, 33), (1,)),
    ((1, 64, 64, 3), (1, 2)),
    ((2, 3, 7, 36), (3,)),
    ((5, 300), (1,)),
    ((3, 5, 40), (0, 2)),
    ((4, 1, 17, 1), (2,)),
    ((6, 2), (1,)),
    ((1, 500, 1, 3), (1, 2)),
    ((1, 200, 71, 5), (1, 2)),
    ((2, 3, 20003), (2,)),
    ((130, 131), (0, 1)),
]
REDUCED = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "variance": np.var}


def function_of(name, shape, axes, dtype="float32", keepdims=False):
    data = relay.var("data", shape=shape, dtype=dtype)
    wide = relay.cast(data, "float32") if dtype == "float16" else data
    result = getattr(relay, name)(wide, axis=list(axes), keepdims=keepdims)
    return relay.Function([data], relay.sqrt(relay.abs(result)))


def expected_of(name, data, axes, keepdims=False):
    return np.sqrt(np.abs(REDUCED[name](data.astype("float64"), axis=axes, keepdims=keepdims)))


@pytest.mark.parametrize("shape, axes", CASES)
@pytest.mark.parametrize("name", ["mean", "max"])
def test_reduced(emulated_cuda, name, shape, axes):
    data = numbers(*shape)
    (found,) = emulated_cuda.run_relay(function_of(name, shape, axes), data)
    np.testing.assert_allclose(found, expected_of(name, data, axes), 1e-4, 1e-4)


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_kinds(emulated_cuda, name, dtype):
    shape, axes = (2, 12, 30, 7), (1, 2)
    data = numbers(*shape, dtype=dtype)
    (found,) = emulated_cuda.run_relay(function_of(name, shape, axes, dtype, keepdims=True), data)
    np.testing.assert_allclose(found, expected_of(name, data, axes, keepdims=True), 1e-3, 1e-3)


def test_neighbouring_threads_read_neighbours(emulated_cuda):
    """Of a mean over pixels in NHWC; with TVM's own schedule they read lines of memory that are far apart."""
    relay.build(tvm.IRModule.from_expr(function_of("sum", (1, 64, 96, 32), (2,))), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    assert "p0[" in source and "threadIdx.x) * 32" not in source


def test_an_unknown_size_keeps_the_stock_schedule(emulated_cuda):
    data = relay.var("data", shape=(relay.Any(), 8, 5))
    function = relay.Function([data], relay.sum(data, axis=[1]))
    (found,) = emulated_cuda.run_relay(function, numbers(3, 8, 5), executor="vm")
    np.testing.assert_allclose(found, numbers(3, 8, 5).sum(1), 1e-5, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, axes", [*CASES, ((1, 540, 960, 64), (2,)), ((1, 200, 300, 36), (3,))])
@pytest.mark.parametrize("name", REDUCED)
def test_on_a_gpu(name, shape, axes):
    data = numbers(*shape)
    module = relay.build(tvm.IRModule.from_expr(function_of(name, shape, axes)), "cuda")
    executor = tvm.contrib.graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.run(data=data)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected_of(name, data, axes), 1e-3, 1e-3)
