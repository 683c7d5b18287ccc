"""Projective warps, on LLVM and the emulated CUDA device: as the oracle, OpenCV and torch."""

import shutil

import cv2
import numpy as np
import pytest

import topi_ext
from tests.helpers import run
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.warps import random_images, rotations
from topi_ext.warp_affine.reference import warp_affine as affine_reference
from topi_ext.warp_perspective import reference

import tvm
from tvm import relay

NAN, INF = float("nan"), float("inf")
WIDE = "llvm -mattr=+sse4.1,+avx2,+fma"
SIZE, OUT = (21, 30), (19, 70)


def homographies(count, seed=0):
    """Turned and tilted; some have their horizon in the image, through centers of pixels."""
    rng = np.random.default_rng(seed)
    matrices = np.concatenate([rotations(count, SIZE, seed=seed), np.zeros((count, 1, 3))], 1)
    matrices[:, 2, :2], matrices[:, 2, 2] = rng.uniform(-0.004, 0.004, (count, 2)), 1
    matrices[1::3, 2] = [0.125, 0, -1]
    matrices[2::3, 2] = [0.03, -0.02, -0.3]
    return matrices


def function_of(data, matrix, dynamic=False, **options):
    shapes = [data.shape, matrix.shape]
    if dynamic:
        axes, any_ = options.get("layout", "NCHW"), relay.Any()
        shapes = [[n if axis == "C" else any_ for axis, n in zip(axes, data.shape)], (any_, 3, 3)]
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in zip(("data", "matrix"), shapes, (data, matrix))
    ]
    return relay.Function(variables, topi_ext.warp_perspective(*variables, OUT, **options))


@pytest.fixture(params=["llvm", WIDE, "cuda"])
def warp(request):
    """Runs the operator on a target."""

    def on_cpu(data, matrix, **options):
        mod = tvm.IRModule.from_expr(function_of(data, matrix, **options))
        return run(mod, data, matrix, target=request.param, device=tvm.cpu())[0]

    def on_cuda(data, matrix, dynamic=False, **options):
        function = function_of(data, matrix, dynamic, **options)
        return cuda.run_relay(function, data, matrix, executor="vm" if dynamic else "graph")[0]

    if request.param != "cuda":
        return on_cpu
    cuda = request.getfixturevalue("emulated_cuda")
    return on_cuda


@pytest.mark.parametrize("units", ["pixels", "centers", "corners"])
@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect_101"])
@pytest.mark.parametrize("layout, dtype", [("NCHW", "float32"), ("NHWC", "uint8")])
def test_as_the_reference(warp, units, border, layout, dtype):
    data, matrix = random_images(6, SIZE, layout=layout, dtype=dtype), homographies(6)
    if units != "pixels":
        matrix[:, :2] = (matrix[:, :2] - 10 * matrix[:, 2:]) / 10  # to about -1 to 1
    options = {"units": units, "border_mode": border, "layout": layout}
    expected = reference.warp_perspective(data, matrix, OUT, **options)
    found = warp(data, matrix, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(
        found.astype("float32"), expected, rtol=1e-5, atol=1e-3 if dtype == "float32" else 1
    )


def test_nearest_labels_of_unknown_number(warp):
    data, matrix = random_images(3, SIZE, 1, dtype="int32"), homographies(3)
    options = {"interpolation": "nearest", "border_value": 7}
    found = warp(data, matrix, dynamic=True, **options)
    np.testing.assert_array_equal(found, reference.warp_perspective(data, matrix, OUT, **options))


def test_an_affine_matrix_warps_as_by_warp_affine(warp):
    data, matrix = random_images(3, SIZE), rotations(3, SIZE)
    square = np.concatenate([matrix, np.tile([[[0, 0, 1.0]]], (3, 1, 1))], 1)
    np.testing.assert_array_equal(warp(data, square), affine_reference(data, matrix, OUT, inverse_map=True))


def test_no_matrix_at_all(warp):
    data, matrix = random_images(4, SIZE), homographies(4)
    matrix[0, 2, 2], matrix[1, 0, 0], matrix[2] = NAN, INF, 0
    found = warp(data, matrix, border_value=9)
    assert (found[:2] == 9).all() and (found[2] == data[2, :, :1, :1]).all()
    np.testing.assert_array_equal(found, reference.warp_perspective(data, matrix, OUT, border_value=9))


def test_the_reference_is_about_opencv():
    data, matrix = random_images(1, SIZE, dtype="float32"), homographies(1)[0]
    data = cv2.GaussianBlur(data[0].transpose(1, 2, 0), (0, 0), 3)
    expected = cv2.warpPerspective(data, matrix, OUT[::-1], flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    found = reference.warp_perspective(data[None], matrix, OUT, layout="NHWC")[0]
    assert np.abs(found - expected).mean() < 0.5


def test_what_is_refused():
    data, matrix = (relay.var(name, shape=shape) for name, shape in (("d", (1, 3, 8, 8)), ("m", (1, 2, 3))))
    with pytest.raises(ValueError, match="units must be one of pixels, centers, corners, not 'inches'"):
        topi_ext.warp_perspective(data, matrix, OUT, units="inches")
    with pytest.raises(ValueError, match="warp_perspective: border_mode must be one of"):
        topi_ext.warp_perspective(data, matrix, OUT, border_mode="none")
    mod = tvm.IRModule.from_expr(topi_ext.warp_perspective(data, matrix, OUT))
    with pytest.raises(tvm.TVMError, match="warp_perspective: matrix must have the shape"):
        relay.transform.InferType()(mod)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
def test_compiles_without_spills(emulated_cuda, tmp_path):
    data, matrix = random_images(1, SIZE, dtype="float32"), homographies(1).astype("float32")
    relay.build(tvm.IRModule.from_expr(function_of(data, matrix, units="corners")), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("units", ["pixels", "centers", "corners"])
def test_on_a_gpu(units):
    data, matrix = random_images(6, SIZE, dtype="float32"), homographies(6)
    library = relay.build(tvm.IRModule.from_expr(function_of(data, matrix, units=units)), "cuda")
    executor = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cuda()))
    executor.run(data=data, matrix=matrix)
    expected = reference.warp_perspective(data, matrix, OUT, units=units)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, rtol=1e-5, atol=1e-3)
