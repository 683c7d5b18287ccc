"""Moving points by matrices, on LLVM and the emulated CUDA device: as l5kit and the oracle."""

import shutil

import numpy as np
import pytest

import topi_ext
from tests import helpers
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.transform_points import reference

import tvm
from tvm import relay


def function_of(arrays, dynamic=False):
    shapes = [(relay.Any(), *array.shape[1:]) if dynamic else array.shape for array in arrays]
    variables = [
        relay.var(f"x{i}", shape=shape, dtype=str(array.dtype))
        for i, (shape, array) in enumerate(zip(shapes, arrays))
    ]
    return relay.Function(variables, topi_ext.transform_points(*variables))


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return lambda *arrays, **options: helpers.run(
            tvm.IRModule.from_expr(function_of(arrays, **options)), *arrays
        )[0]
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(*arrays, dynamic=False):
        executor = "vm" if dynamic else "graph"
        return cuda.run_relay(function_of(arrays, dynamic), *arrays, executor=executor)[0]

    return on_cuda


def inputs(points_shape, matrix_shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in (points_shape, matrix_shape)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "points_shape, matrix_shape",
    [((50, 2), (3, 3)), ((7, 3), (4, 4)), ((3, 5, 2), (3, 3)), ((3, 300, 3), (3, 4, 4)), ((0, 2), (3, 3))],
)
def test_as_the_oracle(run, points_shape, matrix_shape, dtype):
    arrays = inputs(points_shape, matrix_shape, dtype)
    found, expected = run(*arrays), reference.transform_points(*arrays)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "float32" else 1e-12, atol=1e-7)


@pytest.mark.parametrize("offsets_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_samples_of_different_lengths(run, offsets_dtype, dynamic):
    points, matrix = inputs((60, 2), (5, 3, 3))
    offsets = np.array([0, 7, 7, 30, 30, 60], offsets_dtype)
    found = run(points, matrix, offsets, dynamic=dynamic)
    each = [reference.transform_points(points[a:b], m) for a, b, m in zip(offsets, offsets[1:], matrix)]
    np.testing.assert_allclose(found, np.concatenate(each), rtol=1e-12)
    np.testing.assert_allclose(reference.transform_points(points, matrix, offsets), found, rtol=1e-12)


def test_any_offsets_stay_in_bounds(run):
    points, matrix = inputs((40, 3), (3, 4, 4))
    for offsets in ([0, 99, -5, 2], [7, 7, 7, 7], [-(2**31), 2**31 - 1, 0, 3]):
        assert np.isfinite(run(points, matrix, np.array(offsets, "int32"))).all()


def test_float32_is_rounded_once(run):
    """Two terms of a sum that are a million times larger than it."""
    points = np.array([[1234567.0, 7654321.0]], "float32")
    matrix = np.array([[1.25, 0, -1543208.5], [0, 1, -7654320.5], [0, 0, 1]], "float32")
    np.testing.assert_array_equal(run(points, matrix), [[0.25, 0.5]])


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(5, 4), (5, 5)], {}, "points must have the shape"),
        ([(2, 5, 2), (3, 3, 3)], {}, "points of 2 samples, but matrices of 3"),
        ([(5, 2), (4, 4)], {}, r"matrix must have the shape \(3, 3\)"),
        ([(5, 2), (2, 3, 3)], {}, r"matrix must have the shape \(3, 3\)"),
        ([(5, 2), (3, 3), (4,)], {2: "int32"}, r"matrix must have the shape \(B, 3, 3\)"),
        ([(5, 2), (3, 3, 3), (3,)], {2: "int32"}, "one more offset than matrices, at least one: 3 for 3"),
        ([(5, 2), (3, 3, 3), (4,)], {2: "uint8"}, "offsets must be of type int32 or int64, not uint8"),
        ([(5, 2), (3, 3)], {0: "float16"}, "points must be of type float32 or float64, not float16"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    function = relay.Function(variables, topi_ext.transform_points(*variables))
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(function))


def test_numbers_that_differ_at_run_time_are_refused():
    points, matrix = inputs((60, 2), (5, 3, 3))
    with pytest.raises(tvm.TVMError, match="one more offset than matrices"):
        arrays = points, matrix, np.array([0, 60], "int32")
        helpers.run(tvm.IRModule.from_expr(function_of(arrays, dynamic=True)), *arrays)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_compiles_without_spills(emulated_cuda, tmp_path):
    arrays = [*inputs((1000, 3), (8, 4, 4), "float32"), np.arange(9, dtype="int32")]
    relay.build(tvm.IRModule.from_expr(function_of(arrays)), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_gpu(dtype):
    points, matrix = inputs((100_000, 2), (128, 3, 3), dtype)
    offsets = np.sort(np.random.default_rng(1).integers(0, len(points), 129)).astype("int32")
    target = tvm.target.Target("cuda", host="llvm")
    mod = tvm.IRModule.from_expr(function_of([points, matrix, offsets], dynamic=True))
    (found,) = helpers.run(mod, points, matrix, offsets, target=target, device=tvm.cuda(0))
    expected = reference.transform_points(points, matrix, offsets)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "float32" else 1e-12, atol=1e-7)
