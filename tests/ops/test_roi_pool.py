"""Pooling of regions in whole pixels, on LLVM and the emulated CUDA device."""

import shutil

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.regions import pyramid, regions
from topi_ext.roi_pool import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
POOLS = ["roi_pool", "ps_roi_pool"]


def function_of(pool, data, rois, dynamic=False, **options):
    any_ = relay.Any()
    shapes = [(any_, data.shape[1], any_, any_), (any_, 5)] if dynamic else [data.shape, rois.shape]
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in zip(("data", "rois"), shapes, (data, rois))
    ]
    return relay.Function(variables, getattr(topi_ext, pool)(*variables, **options))


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""

    def on_llvm(pool, data, rois, **options):
        function = function_of(pool, data, rois, **options)
        executable = relay.vm.compile(tvm.IRModule.from_expr(function), "llvm")
        machine = VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
        return machine.invoke("main", tvm.nd.array(data), tvm.nd.array(rois)).numpy()

    def on_cuda(pool, data, rois, dynamic=False, **options):
        function = function_of(pool, data, rois, dynamic, **options)
        return cuda.run_relay(function, data, rois, executor="vm" if dynamic else "graph")[0]

    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")
    return on_cuda


def inputs(count=30, channels=12, dtype="float32"):
    return pyramid(levels=1, channels=channels, dtype=dtype)[0], regions(count).astype(dtype)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_as_torchvision(run, pool, dtype, dynamic):
    data, rois = inputs(dtype=dtype)
    rois[:5, 3:] = rois[:5, [2, 1]]  # the wrong way round
    options = {"pooled_size": (2, 3), "spatial_scale": 0.25}
    of_torch = torchvision.ops.roi_pool if pool == "roi_pool" else torchvision.ops.ps_roi_pool
    wide = [torch.from_numpy(array.astype("float32")) for array in (data, rois)]
    expected = of_torch(*wide, (2, 3), 0.25).numpy().astype(dtype)
    tolerance = 1e-6 if dtype == "float32" else 2e-3
    for found in (
        run(pool, data, rois, dynamic=dynamic, **options),
        getattr(reference, pool)(data, rois, **options),
    ):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize("pool", POOLS)
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, NAN]),
            *[st.floats(width=32) | st.integers(-9, 30).map(lambda n: n / 2)] * 4,
        ),
        min_size=7,
        max_size=7,
    )
)
def test_any_region(compiled_pool, pool, rows):
    """The corners may be anything."""
    data, rois = pyramid(16, 20, channels=6, levels=1)[0], np.array(rows, "float32")
    options = {"pooled_size": (3, 2), "spatial_scale": 0.5}
    expected = getattr(reference, pool)(data, rois, **options)
    np.testing.assert_allclose(compiled_pool(pool, data, rois, options), expected, 1e-6, 1e-6)


@pytest.fixture(scope="module")
def compiled_pool():
    machines = {}

    def run(pool, data, rois, options):
        if pool not in machines:
            function = function_of(pool, data, rois, **options)
            executable = relay.vm.compile(tvm.IRModule.from_expr(function), "llvm")
            machines[pool] = VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
        return machines[pool].invoke("main", tvm.nd.array(data), tvm.nd.array(rois)).numpy()

    return run


@pytest.mark.parametrize("pool", POOLS)
def test_no_such_image_and_no_such_place(run, pool):
    data, rois = inputs(9)
    rois[1:6, 0] = [-1, 2, 1e9, NAN, INF]
    rois[6, 1], rois[7, 4] = NAN, INF
    rois[[0, 8], 1:] = [0, 0, 300, 200]
    found = run(pool, data, rois, pooled_size=1, spatial_scale=0.25)
    np.testing.assert_array_equal(found.any(axis=(1, 2, 3)), [1, 0, 0, 0, 0, 0, 0, 0, 1])


def test_nan_is_never_the_maximum(run):
    data = np.full((1, 1, 4, 4), NAN, "float32")
    data[0, 0, 2, 2] = -3
    rois = np.float32([[0, 0, 0, 3, 3]])
    found = run("roi_pool", data, rois, pooled_size=2, spatial_scale=1.0)
    assert found[0, 0, 1, 1] == -3


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("count", [0, 1])
def test_few_regions(run, pool, count):
    data, rois = inputs(count)
    options = {"pooled_size": 2, "spatial_scale": 0.25}
    expected = getattr(reference, pool)(data, rois, **options)
    np.testing.assert_allclose(run(pool, data, rois, dynamic=True, **options), expected, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        (((1, 4, 8), (9, 5)), "float32", "must have the shape \\(N, C, H, W\\)"),
        (((1, 4, 8, 8), (9, 4)), "float32", "rois must have the shape \\(R, 5\\)"),
        (((1, 4, 8, 8), (9, 5)), "int32", "data must be of type float32 or float16, not int32"),
        (((1, 4, 0, 8), (9, 5)), "float32", "data has no pixels"),
        (((1, 5, 8, 8), (9, 5)), "float32", "must have a multiple of 4 channels, not 5"),
    ],
)
def test_what_is_refused(shapes, dtype, message):
    variables = [relay.var(name, shape=shape, dtype=dtype) for name, shape in zip("dr", shapes)]
    pooled = topi_ext.ps_roi_pool(*variables, pooled_size=2, spatial_scale=1.0)
    with pytest.raises(tvm.TVMError, match=message):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, pooled)))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pooled_size": 0}, "pooled_size must be"), ({"spatial_scale": 0.0}, "spatial_scale must be above 0")],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        topi_ext.roi_pool(None, None, **{"pooled_size": 2, "spatial_scale": 1.0, **options})


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("pool", POOLS)
def test_compiles_without_spills(pool, emulated_cuda, tmp_path):
    function = function_of(pool, *inputs(), pooled_size=2, spatial_scale=0.25)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("pool", POOLS)
def test_on_a_gpu(pool):
    data, rois = inputs(300)
    options = {"pooled_size": (2, 3), "spatial_scale": 0.25}
    module = relay.build(tvm.IRModule.from_expr(function_of(pool, data, rois, **options)), "cuda")
    executor = tvm.contrib.graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.run(data=data, rois=rois)
    expected = getattr(reference, pool)(data, rois, **options)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, 1e-5, 1e-5)
