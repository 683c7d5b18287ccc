"""Softmax and log-softmax by the corrected computation: on CPUs, on the emulated device and on a GPU."""

import shutil

import numpy as np
import pytest
import torch

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import module, numbers, run
from tests.ops.nvcc import assert_compiles_without_spills

import tvm
from tvm import relay

TOLERANCES = {"float32": 2e-6, "float16": 1e-3}
OPERATORS = {"softmax": relay.nn.softmax, "log_softmax": relay.nn.log_softmax}
CASES = [
    ((1, 37, 91), -1),
    ((5, 7), 1),
    ((9,), 0),
    ((2, 3, 8400), 2),
    ((2, 33001), -1),
    ((3, 1), -1),
    ((2, 21, 5, 7), 1),
    ((1, 300, 1, 33), 1),
    ((4, 6, 8), 0),
    ((70, 64), -1),
]


def function_of(name, shape, axis, dtype="float32", behind=lambda y: y):
    data = relay.var("data", shape=shape, dtype=dtype)
    return relay.Function([data], behind(OPERATORS[name](data, axis)))


def expected_of(name, data, axis):
    return getattr(torch, name)(torch.from_numpy(data).double(), axis).numpy()


@pytest.mark.parametrize("shape, axis", CASES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax(emulated_cuda, name, shape, axis, dtype):
    data = (numbers(*shape) * 5).astype(dtype)
    (found,) = emulated_cuda.run_relay(function_of(name, shape, axis, dtype), data)
    assert found.dtype == data.dtype
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(found, expected_of(name, data, axis), tolerance * 2, tolerance)


def computed_on_cpus(name, shape, axis, data, **options):
    function = function_of(name, shape, axis, str(data.dtype), **options)
    return run(module(*function.params, function.body), data)[0]


@pytest.mark.parametrize("shape, axis", CASES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_on_cpus(name, shape, axis, dtype):
    data = (numbers(*shape) * 5).astype(dtype)
    found = computed_on_cpus(name, shape, axis, data)
    assert found.dtype == data.dtype
    # Lanes add up long rows, one number after the other; TVM's own adds up float16 in float16.
    tolerance = {"float32": 1e-5, "float16": 2e-2, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(found, expected_of(name, data, axis), tolerance * 2, tolerance)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_follows_on_cpus(name):
    data = numbers(200, 5, 30)
    found = computed_on_cpus(name, data.shape, -1, data, behind=lambda y: relay.nn.relu(y) * y)
    expected = expected_of(name, data, -1)
    np.testing.assert_allclose(found, np.maximum(expected, 0) * expected, 1e-5, 1e-6)


@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_of_rows_that_only_the_runtime_knows_on_cpus(name, rows):
    data = numbers(rows, 20)
    found = computed_on_cpus(name, (relay.Any(), 20), -1, data)
    np.testing.assert_allclose(found, expected_of(name, data, -1), 2e-6, 2e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_follows_is_fused(emulated_cuda, name):
    data = numbers(2, 5, 30)
    function = function_of(name, data.shape, -1, behind=lambda y: relay.cast(relay.nn.relu(y) * y, "float16"))
    (found,) = emulated_cuda.run_relay(function, data)
    expected = expected_of(name, data, -1)
    np.testing.assert_allclose(found, np.maximum(expected, 0) * expected, 1e-3, 1e-3)


@pytest.mark.parametrize("rows", [0, 1, 70])
def test_numbers_of_rows_that_only_the_runtime_knows(emulated_cuda, rows):
    data = numbers(rows, 20)
    function = function_of("softmax", (relay.Any(), 20), -1)
    (found,) = emulated_cuda.run_relay(function, data, executor="vm")
    np.testing.assert_allclose(found, expected_of("softmax", data, -1), 2e-6, 2e-6)


@pytest.mark.parametrize("shape, dtype", [((1, 3, relay.Any()), "float32"), ((1, 3, 20), "float64")])
def test_what_keeps_the_computation_of_tvm(emulated_cuda, shape, dtype):
    data = numbers(1, 3, 20, dtype=dtype)
    function = function_of("softmax", shape, -1, dtype)
    (found,) = emulated_cuda.run_relay(function, data, executor="vm")
    np.testing.assert_allclose(found, expected_of("softmax", data, -1), 2e-6, 2e-6)


def extreme_rows():
    data = numbers(6, 40)
    data[0], data[1, 3], data[2, 3], data[3, :39], data[4] = -np.inf, np.nan, np.inf, -np.inf, 1e30
    return data


@pytest.mark.parametrize("name", OPERATORS)
def test_extreme_rows_are_those_of_torch(emulated_cuda, name):
    data = extreme_rows()
    (found,) = emulated_cuda.run_relay(function_of(name, data.shape, -1), data)
    np.testing.assert_allclose(found, expected_of(name, data, -1), 2e-6, 2e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_extreme_rows_are_those_of_torch_on_cpus(name):
    data = extreme_rows()
    found = computed_on_cpus(name, data.shape, -1, data)
    np.testing.assert_allclose(found, expected_of(name, data, -1), 2e-6, 2e-6)


@pytest.mark.parametrize("shape, axis", [((1, 8732, 91), -1), ((8, 300, 8400), -1), ((1, 21, 520, 520), 1)])
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
def test_is_one_kernel_without_spills(emulated_cuda, shape, axis, tmp_path):
    function = function_of("softmax", shape, axis, "float16")
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, axis", [*CASES, ((1, 8732, 91), -1), ((8, 300, 8400), -1)])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(name, shape, axis, dtype):
    data = (numbers(*shape) * 5).astype(dtype)
    module = relay.build(tvm.IRModule.from_expr(function_of(name, shape, axis, dtype)), "cuda")
    executor = tvm.contrib.graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.run(data=data)
    tolerance = TOLERANCES[dtype]
    found, expected = executor.get_output(0).numpy(), expected_of(name, data, axis)
    np.testing.assert_allclose(found, expected, tolerance * 10, tolerance)
