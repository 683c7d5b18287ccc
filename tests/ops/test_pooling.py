"""Pooling on CUDA as it is corrected, on the emulated device and, where there is one, on a GPU."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers
from tests.ops.nvcc import assert_compiles_without_spills

import tvm
from tvm import relay

CASES = [
    ((1, 20, 21, 16), 3, 2, 1),
    ((2, 9, 8, 24), 5, 1, 2),
    ((1, 6, 7, 12), 2, 2, 0),
    ((1, 6, 7, 2), 3, 1, 1),
    ((1, 6, 7, 5), 3, 2, 1),
]
POOLS = {"max": relay.nn.max_pool2d, "avg": relay.nn.avg_pool2d}


def function_of(kind, shape, size, stride, padding, dtype, behind=lambda y: y):
    x = relay.var("x", shape=shape, dtype=dtype)
    options = {"strides": (stride, stride), "padding": (padding,) * 4, "layout": "NHWC"}
    return relay.Function([x], behind(POOLS[kind](x, (size, size), **options)))


def expected_of(kind, data, size, stride, padding):
    pool = getattr(functional, f"{kind}_pool2d")
    options = {"count_include_pad": False} if kind == "avg" else {}
    x = torch.from_numpy(data).double().permute(0, 3, 1, 2)
    return pool(x, size, stride, padding, **options).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("shape, size, stride, padding", CASES)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float16", 4e-3)])
def test_pooled(emulated_cuda, kind, shape, size, stride, padding, dtype, tolerance):
    data = numbers(*shape, dtype=dtype)
    (found,) = emulated_cuda.run_relay(function_of(kind, shape, size, stride, padding, dtype), data)
    np.testing.assert_allclose(found, expected_of(kind, data, size, stride, padding), tolerance, tolerance)


@pytest.mark.parametrize("shape, size, stride, padding", CASES)
def test_maxima_of_int8(emulated_cuda, tmp_path, shape, size, stride, padding):
    data = (numbers(*shape) * 40).astype("int8")
    (found,) = emulated_cuda.run_relay(function_of("max", shape, size, stride, padding, "int8"), data)
    np.testing.assert_array_equal(found, expected_of("max", data, size, stride, padding))
    if shutil.which("nvcc"):
        assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


def test_what_is_computed_beside_in_float32(emulated_cuda, tmp_path):
    """As a scaled branch of a network in half precision: vectors are as wide as its numbers."""
    shape = 1, 6, 8, 16
    x, other = (relay.var(name, shape=shape, dtype="float16") for name in ("x", "other"))
    scaled = other.astype("float32") * relay.const(np.float32(0.3)) + relay.const(np.full(16, 2, "float32"))
    pooled = relay.nn.avg_pool2d(x, (1, 1), layout="NHWC") + scaled.astype("float16")
    arrays = [numbers(*shape, dtype="float16", seed=seed) for seed in (1, 2)]
    (found,) = emulated_cuda.run_relay(relay.Function([x, other], pooled), *arrays)
    np.testing.assert_allclose(found, arrays[0] + arrays[1] * 0.3 + 2, 4e-3, 4e-3)
    if shutil.which("nvcc"):
        assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.parametrize("kind", POOLS)
def test_what_follows_is_fused(emulated_cuda, kind):
    data = numbers(1, 9, 8, 16)
    behind = lambda y: relay.nn.relu(y + relay.const(numbers(16)))  # noqa: E731
    (found,) = emulated_cuda.run_relay(function_of(kind, data.shape, 3, 2, 1, "float32", behind), data)
    expected = np.maximum(expected_of(kind, data, 3, 2, 1) + numbers(16), 0)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("kind", POOLS)
def test_reads_sixteen_bytes_at_a_time(emulated_cuda, kind, tmp_path):
    function = function_of(kind, (1, 400, 672, 64), 3, 2, 1, "float16")
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert "uint4*)(p0" in emulated_cuda.sources[-1]
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("shape, size, stride, padding", [*CASES, ((1, 400, 672, 64), 3, 2, 1)])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float16", 4e-3)])
def test_on_a_gpu(kind, shape, size, stride, padding, dtype, tolerance):
    data = numbers(*shape, dtype=dtype)
    function = function_of(kind, shape, size, stride, padding, dtype)
    module = relay.build(tvm.IRModule.from_expr(function), "cuda")
    executor = tvm.contrib.graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.run(x=data)
    expected = expected_of(kind, data, size, stride, padding)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, tolerance, tolerance)


# --- to one pixel

GLOBAL = {
    "adaptive": lambda x, layout: relay.nn.adaptive_avg_pool2d(x, (1, 1), layout=layout),
    "global": lambda x, layout: relay.nn.global_avg_pool2d(x, layout),
}
IMAGES = [(1, 40, 40, 120), (2, 7, 5, 33), (3, 1, 1, 8), (1, 95, 96, 3)]


def global_function(kind, shape, layout, dtype, behind=lambda y: y):
    x = relay.var("x", shape=shape, dtype=dtype)
    return relay.Function([x], behind(GLOBAL[kind](x, layout)))


def pixels_of(shape, layout, dtype):
    """Numbers whose sum is beyond what float16 can hold, and their means."""
    data = (numbers(*shape) + 100).astype(dtype)
    data = data if layout == "NHWC" else np.ascontiguousarray(data.transpose(0, 3, 1, 2))
    return data, data.astype("float64").mean(tuple(map(layout.index, "HW")), keepdims=True)


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_to_one_pixel(emulated_cuda, kind, layout, shape, dtype):
    data, expected = pixels_of(shape, layout, dtype)
    (found,) = emulated_cuda.run_relay(global_function(kind, data.shape, layout, dtype), data)
    assert found.dtype == data.dtype
    np.testing.assert_allclose(found, expected, 1e-3 if dtype == "float16" else 1e-6)


def test_to_one_pixel_with_what_follows(emulated_cuda):
    data, expected = pixels_of((2, 7, 5, 33), "NHWC", "float16")
    behind = lambda y: relay.cast(y, "float32") * relay.const(2.0)  # noqa: E731
    (found,) = emulated_cuda.run_relay(
        global_function("adaptive", data.shape, "NHWC", "float16", behind), data
    )
    np.testing.assert_allclose(found, expected * 2, 1e-3)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("layout, shape", [("NHWC", (1, 40, 40, 120)), ("NCHW", (1, 120, 40, 40))])
def test_to_one_pixel_is_one_kernel(emulated_cuda, layout, shape, tmp_path):
    function = global_function("adaptive", shape, layout, "float16")
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)
