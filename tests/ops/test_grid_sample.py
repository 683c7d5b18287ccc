"""Samples of images at grids of points, as `topi_ext.corrections` has them, versus torch."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import module, numbers, run
from tests.ops.nvcc import assert_compiles_without_spills
from tvm_passes import ConvertToNHWC, InMixedPrecision

import tvm
from tvm import relay

WIDE = "llvm -mattr=+sse4.1,+avx2,+fma"
NAN, INF = float("nan"), float("inf")
METHODS, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
NO_PLACES = [[NAN, 0], [0, NAN], [NAN, NAN], [INF, 0], [-INF, 0], [0, INF], [INF, NAN], [0, -INF]]
FAR = [[1e20, 0], [0, -1e20], [3e9, 0], [2.0**31, -(2.0**31)], [-3e38, 3e38]]
CORNERS = [[-1, -1], [1, 1], [-1, 1], [1 - 1e-7, -1 - 1e-7]]


def points(height=5, width=11, batch=2):
    """Most of them in the image, as many beyond each border."""
    grid = np.random.default_rng(0).uniform(-1.6, 1.6, (batch, height, width, 2))
    return grid.astype("float32")


def sampled(data, grid, method="bilinear", padding="zeros", align_corners=False, layout="NCHW", relu=False):
    """A function that samples the data at a grid of torch's form."""
    variables = [
        relay.var(name, shape=array.shape, dtype=str(array.dtype))
        for name, array in zip(("data", "grid"), (data, grid))
    ]
    moved = relay.transpose(variables[1], [0, 3, 1, 2])
    result = relay.image.grid_sample(variables[0], moved, method, layout, padding, align_corners)
    return relay.Function(variables, relay.nn.relu(result) if relu else result)


def by_torch(data, grid, method="bilinear", padding="zeros", align_corners=False):
    tensors = [torch.from_numpy(array.astype("float32")) for array in (data, grid)]
    return F.grid_sample(*tensors, mode=method, padding_mode=padding, align_corners=align_corners).numpy()


@pytest.fixture(params=["llvm", WIDE, "cuda"])
def execute(request):
    """Runs a function on a target."""
    if request.param != "cuda":
        device = tvm.cpu()
        return lambda function, *arrays: run(
            tvm.IRModule.from_expr(function), *arrays, target=request.param, device=device
        )[0]
    cuda = request.getfixturevalue("emulated_cuda")
    return lambda function, *arrays: cuda.run_relay(function, *arrays)[0]


@pytest.mark.parametrize("size", [(5, 7), (1, 4)])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_as_torch(execute, method, padding, size):
    """Also where a point is no number, or too far away for an integer."""
    data, grid = numbers(2, 6, *size), points()
    listed = [*NO_PLACES, *FAR, *CORNERS]
    grid[0, :2].reshape(-1, 2)[: len(listed)] = listed
    for align_corners in (False, True):
        options = method, padding, align_corners
        found = execute(sampled(data, grid, *options), data, grid)
        np.testing.assert_allclose(found, by_torch(data, grid, *options), 1e-4, 1e-5)


@pytest.mark.parametrize("channels", [3, 6, 12])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_layouts_and_types(execute, layout, dtype, channels):
    """The grid stays float32, and so do places."""
    data, grid = numbers(2, channels, 6, 70, dtype=dtype), points()
    expected = np.maximum(by_torch(data, grid), 0)
    if layout == "NHWC":
        data, expected = np.moveaxis(data, 1, 3).copy(), np.moveaxis(expected, 1, 3)
    found = execute(sampled(data, grid, layout=layout, relu=True), data, grid)
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_of_unknown_size(emulated_cuda, layout):
    any_, image, points_ = relay.Any(), numbers(2, 3, 5, 7), points()
    order = [tuple("NCHW").index(axis) for axis in layout]
    shape = [3 if axis == "C" else any_ for axis in layout]
    data, grid = relay.var("data", shape=shape), relay.var("grid", shape=(any_, 2, any_, any_))
    function = relay.Function([data, grid], relay.image.grid_sample(data, grid, "bilinear", layout, "border"))
    arrays = image.transpose(order).copy(), np.moveaxis(points_, 3, 1).copy()
    expected = by_torch(image, points_, "bilinear", "border", True).transpose(order)
    for found in (
        run(tvm.IRModule.from_expr(function), *arrays)[0],
        emulated_cuda.run_relay(function, *arrays, executor="vm")[0],
    ):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_volumes_are_tvms_own(execute):
    data, grid = numbers(1, 2, 3, 4, 5), np.random.default_rng(0).uniform(-1, 1, (1, 2, 3, 4, 3))
    variables = [relay.var("data", shape=data.shape), relay.var("grid", shape=(1, 3, 2, 3, 4))]
    function = relay.Function(variables, relay.image.grid_sample(*variables, layout="NCDHW"))
    grid = grid.astype("float32")
    found = execute(function, data, np.moveaxis(grid, 4, 1).copy())
    np.testing.assert_allclose(found, by_torch(data, grid, align_corners=True), 1e-5, 1e-5)


def kernels(emulated_cuda, function):
    with tvm.transform.PassContext(opt_level=3):
        relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    return emulated_cuda.sources[-1]


def test_a_thread_computes_a_place_once(emulated_cuda):
    """Not again for each channel and pixel; and what computes the grid is not a part of it."""
    data, grid = relay.var("data", shape=(1, 8, 30, 40)), relay.var("grid", shape=(1, 2, 30, 40))
    result = relay.nn.relu(relay.image.grid_sample(data, relay.tanh(grid)))
    source = kernels(emulated_cuda, relay.Function([data, grid], result))
    (kernel,) = (part for part in source.split("__global__")[1:] if "grid_sample" in part and "{" in part)
    assert "max(" in kernel and "tanh" not in kernel  # the relu, but no grid
    assert kernel.count("p1[") == 2
    assert "double" not in kernel
    stores = [line for line in kernel.splitlines() if line.strip().startswith("T_relu[")]
    assert len(stores) == 1 and stores[0].split("] =")[0].endswith("+ ((int)threadIdx.x))")  # side by side


def masked(data, grid, layout="NCHW"):
    """What optical flow takes as the mask of a warp, from its sample, which it reads four times."""
    function = sampled(data, grid, layout=layout)
    sample, like = function.body, relay.zeros_like(function.body)
    kept = relay.where(relay.less(sample, relay.const(0.2, data.dtype)), like, sample)
    mask = relay.where(relay.greater(kept, like), relay.ones_like(sample), kept)
    return relay.Function(function.params, mask)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_reads_a_sample_often(execute, layout, dtype):
    data, grid = numbers(2, 6, 6, 17, dtype=dtype), points(width=19)
    sample = by_torch(data, grid)
    order = [tuple("NCHW").index(axis) for axis in layout]
    found = execute(masked(data.transpose(order).copy(), grid, layout), data.transpose(order).copy(), grid)
    is_sure = np.abs(sample - 0.2) > 1e-3  # on which side of the bound it is
    expected = np.where(sample < 0.2, 0, 1)
    np.testing.assert_array_equal(found.transpose(np.argsort(order))[is_sure], expected[is_sure])


def test_a_sample_that_is_read_often_is_computed_once(emulated_cuda):
    """Inlined, it was computed four times, and TVM simplified its conditions for half a minute on LLVM."""
    data, grid = numbers(1, 8, 20, 30), points(batch=1)
    parts = kernels(emulated_cuda, masked(data, grid)).split("__global__")
    (kernel,) = (part for part in parts if "grid_sample" in part and "{" in part)
    assert kernel.count("p0[") == 4  # the four pixels around a point


def test_channels_of_nhwc_are_read_at_once(emulated_cuda):
    data, grid = numbers(1, 20, 30, 8, dtype="float16"), points(batch=1)
    assert "(half4*)(p0" in kernels(emulated_cuda, sampled(data, grid, layout="NHWC"))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("method", METHODS)
def test_compiles_without_spills(emulated_cuda, tmp_path, method):
    data, grid = numbers(1, 8, 20, 30), points(batch=1)
    source = kernels(emulated_cuda, sampled(data, grid, method, "reflection"))
    assert_compiles_without_spills(source, tmp_path)


def warped_between_convolutions():
    image, flow = relay.var("image", shape=(1, 8, 12, 10)), relay.var("flow", shape=(1, 2, 12, 10))

    def convolved(data, seed):
        weight = relay.const(numbers(8, 8, 3, 3, seed=seed) / 9)
        return relay.nn.relu(relay.nn.conv2d(data, weight, padding=1, channels=8, kernel_size=(3, 3)))

    sample = relay.image.grid_sample(convolved(image, 1), flow, align_corners=False)
    return module(image, flow, convolved(sample, 2))


def test_stays_in_nhwc_and_half_precision_between_convolutions():
    """Only the image and the result change their layout, and the flow keeps layout and type."""
    before = warped_between_convolutions()
    after = InMixedPrecision()(ConvertToNHWC()(before))
    samples, transforms = [], []

    def look(node):
        if isinstance(node, relay.Call) and node.op.name == "image.grid_sample":
            samples.append(node)
        if isinstance(node, relay.Call) and node.op.name == "layout_transform":
            transforms.append(node)

    relay.analysis.post_order_visit(after["main"], look)
    (sample,) = samples
    assert str(sample.attrs.layout) == "NHWC" and sample.checked_type.dtype == "float16"
    assert sample.args[1].checked_type == relay.TensorType((1, 2, 12, 10))
    assert len(transforms) == 2
    arrays = numbers(1, 8, 12, 10), np.moveaxis(points(12, 10, 1), 3, 1).copy()
    np.testing.assert_allclose(run(after, *arrays)[0], run(before, *arrays)[0], 2e-2, 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_on_a_gpu(layout, method, padding):
    data, grid = numbers(2, 12, 60, 70), points(90, 110)
    grid[0, 0, :13] = [*NO_PLACES, *FAR]
    expected = by_torch(data, grid, method, padding)
    if layout == "NHWC":
        data, expected = np.moveaxis(data, 1, 3).copy(), np.moveaxis(expected, 1, 3)
    function = sampled(data, grid, method, padding, layout=layout)
    executor = tvm.contrib.graph_executor.GraphModule(
        relay.build(tvm.IRModule.from_expr(function), "cuda")["default"](tvm.cuda())
    )
    executor.run(data=data, grid=grid)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, 1e-4, 1e-4)
