"""Affine warps, on LLVM and the emulated CUDA device: as the oracle, OpenCV and torch."""

import functools
import shutil

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.warps import odd_matrices, random_images, rotations
from topi_ext.warp_affine import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
TYPES = [("uint8", "uint8"), ("uint8", "float16"), ("float32", "float32"), ("float16", "float16")]
BORDERS = {
    "constant": cv2.BORDER_CONSTANT,
    "replicate": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT,
    "reflect_101": cv2.BORDER_REFLECT_101,
}
INTERPOLATIONS = {"bilinear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
needs_opencv_4 = pytest.mark.skipif(
    not cv2.__version__.startswith("4."), reason="OpenCV 5 warps by other rules"
)
CONTRACTING = "llvm -mattr=+sse4.1,+avx2,+fma"


def function_of(data, matrix, out_size, dynamic=False, **options):
    axes = options.get("layout", "NCHW")
    shapes = [data.shape, matrix.shape]
    if dynamic:
        shapes[0] = [length if axis == "C" else relay.Any() for axis, length in zip(axes, data.shape)]
        shapes[1] = (relay.Any(), 2, 3)
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in zip(("data", "matrix"), shapes, (data, matrix))
    ]
    return relay.Function(variables, topi_ext.warp_affine(*variables, out_size, **options))


def compiled(function, target="llvm", device=None):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    device = device or tvm.cpu()
    machine = VirtualMachine(executable, device, memory_cfg="naive")
    return lambda *arrays: machine.invoke("main", *(tvm.nd.array(array, device) for array in arrays)).numpy()


def place_of(request, llvm):
    """A target and a device."""
    if request.param == "llvm":
        return llvm, tvm.cpu()
    cuda = request.getfixturevalue("emulated_cuda")
    cuda.flags = ("-ffp-contract=fast", "-mfma")
    return cuda.target, cuda.device


def runner(place):
    """Runs the operator there."""

    def run(data, matrix, *args, **options):
        return compiled(function_of(data, matrix, *args, **options), *place)(data, matrix)

    return run


@pytest.fixture(params=["llvm", "cuda"])
def place(request):
    return place_of(request, "llvm")


@pytest.fixture
def run(place):
    return runner(place)


@pytest.fixture(params=["llvm", "cuda"])
def run_contracting(request):
    """Runs the operator where there is a fused multiply-add, which the compiler uses if it may."""
    return runner(place_of(request, CONTRACTING))


def assert_exact(found, data, matrix, out_size, **options):
    """Assert that the result is that of the oracle, rounded once to its own type."""
    options["out_dtype"] = "float32"
    if data.dtype == "uint8" and options.get("mode") == "cv2_fixed":
        options["out_dtype"] = "uint8"
    expected = reference.warp_affine(data, matrix, out_size, **options)
    assert found.shape == expected.shape
    half_a_unit = {"uint8": 0.5, "float16": np.abs(expected) * 2.0**-11, "float32": 0}[str(found.dtype)]
    if options["out_dtype"] == "uint8" or options.get("interpolation") == "nearest":
        np.testing.assert_array_equal(found, expected.astype(found.dtype))
    else:
        assert (np.abs(found.astype("float64") - expected) <= half_a_unit + 1e-5 * 255).all()


def by_cv2(data, matrices, out_size, *, interpolation, border_mode, border_value, inverse_map):
    flags = INTERPOLATIONS[interpolation] | (cv2.WARP_INVERSE_MAP if inverse_map else 0)
    pairs = zip(data, matrices)
    warped = [
        cv2.warpAffine(
            image,
            matrix,
            out_size[::-1],
            flags=flags,
            borderMode=BORDERS[border_mode],
            borderValue=border_value,
        )
        for image, matrix in pairs
    ]
    return np.stack(warped).reshape(len(data), *out_size, data.shape[-1])


# --- what OpenCV answers


@needs_opencv_4
@pytest.mark.parametrize("border_mode", BORDERS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_as_opencv(run_contracting, dtype, interpolation, border_mode):
    """To the bit for uint8, also where its integers overflow."""
    channels, count = {"constant": 3, "replicate": 1, "reflect": 4, "reflect_101": 2}[border_mode], 25
    data = random_images(count, (40, 50), channels, "NHWC", dtype)
    options = {"interpolation": interpolation, "border_mode": border_mode}
    options["border_value"] = [7.4, 300.0, 91.5, -3.0][:channels]
    options["inverse_map"] = dtype == "float32"
    seed = list(BORDERS).index(border_mode) * 2 + list(INTERPOLATIONS).index(interpolation)
    matrices = odd_matrices(count, seed)
    found = run_contracting(data, matrices, (33, 70), mode="cv2_fixed", layout="NHWC", **options)
    expected = by_cv2(data, matrices, (33, 70), **options)
    if dtype == "uint8":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@needs_opencv_4
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_the_oracle_is_as_opencv(interpolation):
    data, matrices = random_images(200, (23, 31), 2, "NHWC"), odd_matrices(200, seed=99).astype("float32")
    for number, border_mode in enumerate(BORDERS):
        options = {"interpolation": interpolation, "border_mode": border_mode, "border_value": [80, 9]}
        options["inverse_map"] = number % 2 == 1
        found = reference.warp_affine(data, matrices, (40, 29), mode="cv2_fixed", layout="NHWC", **options)
        np.testing.assert_array_equal(found, by_cv2(data, matrices, (40, 29), **options))


# --- exact places


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype, out_dtype", TYPES)
@pytest.mark.parametrize("size, channels, border_mode", [((40, 64), 3, "constant"), ((37, 71), 1, "reflect")])
def test_as_the_oracle(run, dtype, out_dtype, layout, size, channels, border_mode):
    data = random_images(3, (48, 60), channels, layout, dtype)
    options = {"layout": layout, "border_mode": border_mode, "border_value": [9.0, 200.0, 31.0][:channels]}
    found = run(data, rotations(3, (48, 60)), size, out_dtype=out_dtype, **options)
    assert found.dtype == out_dtype
    assert_exact(found, data, rotations(3, (48, 60)), size, **options)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_labels(run, dtype, layout):
    data, matrices = random_images(2, (20, 30), 4, layout, dtype) * 10**7, rotations(2, (20, 30))
    options = {"layout": layout, "interpolation": "nearest", "border_value": -100}
    found = run(data, matrices, (24, 35), **options)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, reference.warp_affine(data, matrices, (24, 35), **options))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "channels, dtype", [(2, "uint8"), (4, "float16"), (5, "float32"), (6, "uint8"), (19, "uint8")]
)
def test_any_number_of_channels(run, channels, dtype, layout):
    data, matrices = random_images(2, (20, 30), channels, layout, dtype), rotations(2, (20, 30))
    options = {"layout": layout, "border_value": list(range(channels))}
    assert_exact(run(data, matrices, (24, 36), **options), data, matrices, (24, 36), **options)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("border_mode", BORDERS)
def test_odd_matrices(run_contracting, border_mode, interpolation):
    data, matrices = random_images(30, (40, 50), 3, "NHWC", "float32"), odd_matrices(30, seed=5)
    options = {"border_mode": border_mode, "interpolation": interpolation, "layout": "NHWC"}
    assert_exact(run_contracting(data, matrices, (33, 41), **options), data, matrices, (33, 41), **options)


@pytest.mark.parametrize(
    "mode, padding", [("constant", "zeros"), ("replicate", "border"), ("reflect_101", "reflection")]
)
def test_the_oracle_is_as_torch(mode, padding):
    """Its grid is in float64, and its places are relative: from -1 to 1."""
    (height, width), size = (40, 50), (33, 70)
    data, matrices = random_images(4, (height, width), dtype="float32"), rotations(4, (height, width), 180)

    def to_relative(height, width):
        return np.array([[2 / (width - 1), 0, -1], [0, 2 / (height - 1), -1], [0, 0, 1]])

    square = np.concatenate([matrices, np.tile([[[0, 0, 1]]], (4, 1, 1))], axis=1)
    theta = (to_relative(height, width) @ square @ np.linalg.inv(to_relative(*size)))[:, :2]
    grid = F.affine_grid(torch.from_numpy(theta), (4, 3, *size), align_corners=True)
    expected = F.grid_sample(torch.from_numpy(data).double(), grid, padding_mode=padding, align_corners=True)
    found = reference.warp_affine(data, matrices, size, inverse_map=True, border_mode=mode)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-4)


def test_half_a_pixel_beyond_the_border(run):
    """Floor, where truncation would take the second pixel for the first."""
    data = np.full((1, 1, 1, 4), 100, "float32")
    matrix = np.array([[1, 0, -2.25], [0, 1, 0]])
    found = run(data, matrix, (1, 8), inverse_map=True)
    np.testing.assert_array_equal(found.ravel(), [0, 0, 75, 100, 100, 100, 25, 0])


@pytest.mark.parametrize("mode", ["exact", "cv2_fixed"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_whole_steps_change_no_pixel(run, layout, mode):
    data = random_images(3, (20, 70), 3, layout)
    down, across = (layout.index(axis) for axis in "HW")
    matrices = np.array(
        [[[1, 0, 0], [0, 1, 0]], [[-1, 0, 69], [0, 1, 0]], [[1, 0, 5], [0, -1, 19]]], "float32"
    )
    found = run(data, matrices, (20, 70), mode=mode, layout=layout, border_value=3)
    np.testing.assert_array_equal(found[0], data[0])
    np.testing.assert_array_equal(found[1], np.flip(data[1], across - 1))
    moved = np.roll(np.flip(data[2], down - 1), 5, across - 1)
    moved[(slice(None), slice(None), slice(5)) if layout == "NCHW" else (slice(None), slice(5))] = 3
    np.testing.assert_array_equal(found[2], moved)


def test_far_places_keep_their_fractions(run_contracting):
    """At a hundred thousand pixels from the origin a float32 has steps of 1/128."""
    data, size = random_images(1, (2, 100), 1, dtype="float32"), (2, 100_300)
    matrix = np.array([[1 / 3, 0.001, -100_000.21 / 3], [0, 1, 0]])
    found = run_contracting(data, matrix, size, inverse_map=True)
    assert found[..., 100_003:100_290].all()
    assert_exact(found, data, matrix, size, inverse_map=True)


# --- maps of no place


@pytest.mark.parametrize("mode", ["exact", "cv2_fixed"])
@pytest.mark.parametrize(
    "inverse_map, border_mode", [(False, "constant"), (True, "reflect"), (False, "replicate")]
)
def test_a_map_that_is_no_number_gives_the_border_value(run, border_mode, inverse_map, mode):
    matrices = np.tile(np.eye(2, 3), (8, 1, 1))
    for matrix, (place, value) in zip(
        matrices,
        [((0, 0), NAN), ((1, 2), NAN), ((0, 1), INF), ((1, 1), -INF), ((0, 2), INF), ((0, 0), 1e200)],
    ):
        matrix[place] = value
    matrices[6] *= 1e-155  # so large is the inverse
    data = random_images(8, (20, 30), dtype="float32")
    options = {"mode": mode, "inverse_map": inverse_map, "border_mode": border_mode, "border_value": 55}
    found = run(data, matrices, (21, 33), **options)
    np.testing.assert_array_equal(found[:6], 55)
    if not inverse_map:
        np.testing.assert_array_equal(found[6], 55)
    assert_exact(found, data, matrices, (21, 33), **options)


def test_a_singular_matrix_takes_all_from_the_first_pixel(run):
    data = random_images(2, (20, 30))
    matrices = np.array([[[1, 2, 5], [2, 4, 7]], [[0, 0, 3], [0, 0, 3]]], "float32")
    found = run(data, matrices, (5, 6))
    np.testing.assert_array_equal(found, np.broadcast_to(data[:, :, :1, :1], found.shape))


VALUES = st.floats(-60, 60) | st.floats(width=32) | st.floats() | st.integers(-3, 3).map(float)


@functools.cache
def small(mode, interpolation, border_mode):
    data, matrices = random_images(1, (7, 9), 2, "NHWC"), np.zeros((1, 2, 3))
    options = {"mode": mode, "interpolation": interpolation, "border_mode": border_mode}
    return compiled(function_of(data, matrices, (8, 70), True, layout="NHWC", border_value=9, **options))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(VALUES, min_size=6, max_size=6),
    st.sampled_from(["exact", "cv2_fixed"]),
    st.sampled_from(list(INTERPOLATIONS)),
    st.sampled_from(["constant", "reflect"]),
)
def test_any_matrix(values, mode, interpolation, border_mode):
    data, matrix = random_images(1, (7, 9), 2, "NHWC"), np.array(values).reshape(1, 2, 3)
    found = small(mode, interpolation, border_mode)(data, matrix)
    options = {"mode": mode, "interpolation": interpolation, "border_mode": border_mode, "layout": "NHWC"}
    assert_exact(found, data, matrix, (8, 70), border_value=9, **options)


# --- shapes and types


@pytest.mark.parametrize(
    "layout, border_mode", [("NCHW", "reflect"), ("NHWC", "constant"), ("NHWC", "reflect_101")]
)
def test_smallest_images(place, border_mode, layout):
    matrices = rotations(2, (4, 4))
    options = {"border_mode": border_mode, "border_value": 9, "layout": layout}
    function = function_of(random_images(2, (1, 1), 3, layout), matrices, (3, 2), dynamic=True, **options)
    run_any = compiled(function, *place)
    for shape in ((1, 1), (1, 5), (7, 1), (2, 2)):
        data = random_images(2, shape, 3, layout)
        assert_exact(run_any(data, matrices), data, matrices, (3, 2), **options)


@pytest.mark.parametrize("layout, width", [("NCHW", 64), ("NHWC", 65)])
def test_shapes_known_at_run_time(place, layout, width):
    data, matrices = random_images(3, (20, 30), 3, layout), rotations(3, (20, 30)).astype("float32")
    run_any = compiled(function_of(data, matrices, (40, width), dynamic=True, layout=layout), *place)
    for count in (0, 3):
        found = run_any(data[:count], matrices[:count])
        assert_exact(found, data[:count], matrices[:count], (40, width), layout=layout)


def test_a_image_without_pixels_is_all_border(run):
    data, matrices = np.zeros((2, 0, 5, 3), "uint8"), rotations(2, (20, 30))
    for border_mode in ("constant", "reflect"):
        options = {"layout": "NHWC", "border_mode": border_mode, "border_value": 6}
        np.testing.assert_array_equal(run(data, matrices, (4, 70), dynamic=True, **options), 6)


def test_to_the_last_of_a_hundred_million_pixels():
    side = 10_000
    data = random_images(1, (side, side), 1)
    matrix = np.array([[-1, 0, side - 1], [0, -1, side - 1]], "float32")
    found = runner((CONTRACTING, tvm.cpu()))(data, matrix, (side, side))
    np.testing.assert_array_equal(found, data[..., ::-1, ::-1])


@pytest.mark.parametrize(
    "shapes, dtypes, options, reason",
    [
        ([(2, 3, 8), (2, 2, 3)], {}, {}, r"data must have the shape \(N, C, H, W\)"),
        ([(2, relay.Any(), 8, 8), (2, 2, 3)], {}, {}, "the number of channels must be known"),
        ([(2, 3, 0, 8), (2, 2, 3)], {}, {}, "takes images of 1 to 1000000000 pixels a side"),
        ([(2, 3, 40000, 8), (2, 2, 3)], {}, {"mode": "cv2_fixed"}, "of 1 to 32766 pixels a side"),
        ([(2, 3, 8, 8), (2, 3, 3)], {}, {}, r"matrix must have the shape \(N, 2, 3\) or \(2, 3\)"),
        ([(2, 3, 8, 8), (3, 2, 3)], {}, {}, "as many matrices as images: 3 matrices, 2 images"),
        (
            [(2, 3, 8, 8), (2, 2, 3)],
            {0: "int32"},
            {},
            "data must be of type uint8, float16, float32 for bilinear, not int32",
        ),
        ([(2, 3, 8, 8), (2, 2, 3)], {1: "float16"}, {}, "matrix must be of type float32 or float64"),
        (
            [(2, 3, 8, 8), (2, 2, 3)],
            {},
            {"out_dtype": "uint8"},
            "data of type float32 give no result of type uint8",
        ),
        ([(2, 3, 8, 8), (2, 2, 3)], {}, {"border_value": [1, 2]}, "one for each of 3 channels"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, options, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.warp_affine(*variables, (4, 6), **options)
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


def test_numbers_that_differ_at_run_time_are_refused(run):
    data, matrices = random_images(3, (20, 30)), rotations(2, (20, 30))
    with pytest.raises(tvm.TVMError, match="as many matrices as images"):
        run(data, matrices, (4, 6), dynamic=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"out_size": (0, 5)},
        {"out_size": (5,)},
        {"mode": "fast"},
        {"interpolation": "cubic"},
        {"border_mode": "wrap"},
        {"layout": "HWC"},
        {"out_dtype": "float64"},
    ],
)
def test_wrong_attributes_are_refused(wrong):
    variables = [relay.var("data", shape=(1, 3, 8, 8)), relay.var("matrix", shape=(2, 3))]
    with pytest.raises(ValueError, match="warp_affine: "):
        topi_ext.warp_affine(*variables, **{"out_size": (4, 6), **wrong})


# --- the CUDA kernel itself


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize(
    "dtype, out_dtype, layout, stores",
    [
        ("float32", "float32", "NCHW", "warp_affine[start"),
        ("uint8", "float16", "NCHW", "*(half2*)(warp_affine"),
        ("uint8", "uint8", "NHWC", "*(uint*)(warp_affine"),
    ],
)
def test_compiles_without_spills(emulated_cuda, tmp_path, dtype, out_dtype, layout, stores):
    data, matrices = random_images(1, (512, 512), 3, layout, dtype), rotations(1, (512, 512))
    function = function_of(data, matrices, (512, 512), layout=layout, out_dtype=out_dtype)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    assert source.count(stores) == 3 and "__syncthreads" not in source
    assert_compiles_without_spills(source, tmp_path, kernels=1)


@pytest.fixture
def run_on_gpu():
    return runner((tvm.target.Target("cuda", host="llvm"), tvm.cuda(0)))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype, out_dtype", TYPES)
def test_on_gpu(run_on_gpu, dtype, out_dtype, layout):
    data = random_images(8, (300, 401), 3, layout, dtype)
    matrices = np.concatenate([rotations(4, (300, 401)), odd_matrices(4)]).astype("float32")
    for size, dynamic in (((320, 512), False), ((299, 333), True)):
        found = run_on_gpu(data, matrices, size, dynamic=dynamic, layout=layout, out_dtype=out_dtype)
        assert found.dtype == out_dtype
        assert_exact(found, data, matrices, size, layout=layout)


@needs_opencv_4
@pytest.mark.gpu
@pytest.mark.parametrize("border_mode", BORDERS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_as_opencv_on_gpu(run_on_gpu, interpolation, border_mode):
    data, matrices = random_images(200, (40, 50), 3, "NHWC"), odd_matrices(200)
    options = {"interpolation": interpolation, "border_mode": border_mode, "border_value": [7, 30, 250]}
    found = run_on_gpu(data, matrices, (33, 70), mode="cv2_fixed", layout="NHWC", **options)
    np.testing.assert_array_equal(found, by_cv2(data, matrices, (33, 70), inverse_map=False, **options))


@pytest.mark.gpu
def test_more_elements_than_an_int32_counts_on_gpu(run_on_gpu):
    side = 27_000  # three channels of it are 2,187,000,000
    data = np.empty((1, side, side, 3), "uint8")
    data[:] = np.arange(side, dtype="uint16").astype("uint8")[None, :, None, None]
    data += np.arange(side, dtype="uint16").astype("uint8")[None, None, :, None]
    matrix = np.array([[-1, 0, side - 1], [0, -1, side - 1]], "float32")
    found = run_on_gpu(data, matrix, (side, side), layout="NHWC")
    assert np.array_equal(found, data[:, ::-1, ::-1])
