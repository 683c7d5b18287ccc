"""Keypoints of heatmaps, on LLVM and the emulated CUDA device: as torchvision and the oracle."""

import functools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection import roi_heads

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.objects import heatmaps
from topi_ext.heatmaps_to_keypoints import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
EPS = 1e-5  # of the greatest value in a heatmap


def function_of(maps, rois, dynamic=False):
    variables = [
        relay.var(name, shape=[relay.Any()] * array.ndim if dynamic else array.shape, dtype=str(array.dtype))
        for name, array in zip(("maps", "rois"), (maps, rois))
    ]
    return relay.Function(variables, topi_ext.heatmaps_to_keypoints(*variables).astuple())


def compiled(function, target="llvm", device=None):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    machine = VirtualMachine(executable, device or tvm.cpu(), memory_cfg="naive")

    def call(*arrays):
        tensors = (tvm.nd.array(array, device or tvm.cpu()) for array in arrays)
        return [result.numpy() for result in machine.invoke("main", *tensors)]

    return call


def on_llvm(maps, rois, **options):
    return compiled(function_of(maps, rois, **options))(maps, rois)


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(maps, rois, dynamic=False):
        function = function_of(maps, rois, dynamic)
        return cuda.run_relay(function, maps, rois, executor="vm" if dynamic else "graph")

    return on_cuda


def assert_right(found, maps, rois):
    """Each keypoint is where the scaled map is greatest, or as great but for rounding."""
    places, scores = found
    assert (places.dtype, scores.dtype) == ("float32", "float32")
    assert (places.shape, scores.shape) == ((*maps.shape[:2], 3), maps.shape[:2])
    for number, roi in enumerate(rois.astype("float32")):
        if not reference.is_somewhere(roi):
            assert not places[number].any() and not scores[number].any()
            continue
        scaled = reference.upsampled(maps[number], *reference.pixels(roi))
        for of_keypoint, place, score in zip(scaled, places[number], scores[number]):
            rounding = EPS * max(np.abs(of_keypoint).max(), 1e-30)
            assert abs(score - of_keypoint.max()) <= rounding
            greatest = np.flatnonzero(of_keypoint >= of_keypoint.max() - rounding)
            centres = np.stack(reference.centres(roi, greatest), axis=-1)
            assert np.isclose(place, centres, rtol=1e-5, atol=1e-3).all(axis=1).any()


def by_torchvision(maps, rois):
    return [
        result.numpy()
        for result in roi_heads.heatmaps_to_keypoints(torch.from_numpy(maps), torch.from_numpy(rois))
    ]


# --- what torchvision answers


@pytest.mark.parametrize("size", [(56, 56), (14, 9), (3, 2), (1, 1)])
def test_as_torchvision(run, size):
    maps, rois = heatmaps(6, 3, size)
    expected, found = by_torchvision(maps, rois), run(maps, rois)
    for results in (expected, found, reference.heatmaps_to_keypoints(maps, rois)):
        assert_right(results, maps, rois)
    if size != (1, 1):  # which is scaled to equal values but for rounding
        for wanted, result in zip(expected, found):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)


def test_sides_of_any_length(run):
    """Shorter than the heatmap, longer, whole numbers, none, and less than none."""
    sides = [0, 0.3, 1, 1.001, 7, 13.99, 14, 14.5, 31, 32, 33, 65, 100.25, -5]
    rois = np.array([[3.5, -2.25, 3.5 + across, -2.25 + 20] for across in sides], "float32")
    rois = np.concatenate([rois, rois[:, [1, 0, 3, 2]]])
    maps, _ = heatmaps(len(rois), 2, (14, 14))
    found = run(maps, rois)
    assert_right(found, maps, rois)
    for wanted, result in zip(by_torchvision(maps, rois), found):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)


def test_half_precision(run):
    maps, rois = (array.astype("float16") for array in heatmaps(4, 3, (14, 14)))
    assert_right(run(maps, rois), maps.astype("float32"), rois.astype("float32"))


def test_of_equal_values_the_first_is_taken(run):
    maps = np.zeros((2, 2, 5, 6), "float32")
    maps[1] = -3
    maps[:, 1, 2, 4] = 1  # scaled by 4, the greatest value is in four pixels
    rois = np.array([[10, 20, 34, 40]] * 2, "float32")
    places, _ = run(maps, rois)
    np.testing.assert_array_equal(places[:, 0], [[10.5, 20.5, 1]] * 2)
    np.testing.assert_array_equal(places[:, 1], [[10 + 17.5, 20 + 9.5, 1]] * 2)
    np.testing.assert_array_equal(places, by_torchvision(maps, rois)[0])


# --- shapes, types, and what is no number


@pytest.mark.parametrize("count, keypoints", [(0, 17), (1, 1), (5, 2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_objects(run, count, keypoints, dynamic):
    maps, rois = heatmaps(count, keypoints, (8, 9))
    assert_right(run(maps, rois, dynamic=dynamic), maps, rois)


def test_a_roi_of_no_place_has_no_keypoints(run):
    nowhere = [[NAN, 5, 25, 25], [5, 5, INF, 25], [-INF, 5, INF, 25], [5, 3e38, 25, 3.1e38], [5, 5, 25, -2e9]]
    rois = np.array([*nowhere, [5, 5, 25, 25]], "float32")
    places, scores = run(np.ones((len(rois), 1, 7, 7), "float32"), rois)
    assert not places[:-1].any() and not scores[:-1].any()
    assert places[-1, 0, 2] == 1 and abs(scores[-1, 0] - 1) < 1e-5


def test_the_sides_of_maps_are_bounded(run):
    rois = np.array([[-1e9, 0, 1e9, 3], [5, -7e5, 9, 7e5], [0, 0, 4097, 2]], "float32")
    assert [max(reference.pixels(roi)) for roi in rois] == [4096] * 3
    maps, _ = heatmaps(len(rois), 1, (9, 9))
    assert_right(run(maps, rois), maps, rois)


def test_the_largest_map():
    maps, _ = heatmaps(1, 1, (5, 7))
    rois = np.array([[-1e9, -1e9, 1e9, 1e9]], "float32")
    assert_right(on_llvm(maps, rois), maps, rois)


@pytest.mark.parametrize("value", [NAN, -NAN, INF, -INF])
def test_heatmaps_that_are_not_finite(run, value):
    """Where bicubic interpolation meets one, torch's pixels are NaN, the greatest of all."""
    maps, rois = heatmaps(3, 2, (8, 8))
    maps[1:, 1, 3, 5] = value
    expected, found = by_torchvision(maps, rois), run(maps, rois)
    assert np.isnan(expected[1][1:, 1]).any()
    for wanted, result in zip(expected, found):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(3, 7, 7), (3, 4)], {}, "maps must have the shape"),
        ([(3, 2, 0, 7), (3, 4)], {}, "K, H and W above 0"),
        ([(3, 0, 7, 7), (3, 4)], {}, "K, H and W above 0"),
        ([(3, 2, 7, 7), (3, 5)], {}, "rois must have the shape"),
        ([(3, 2, 7, 7), (2, 4)], {}, "the same number of objects, not 3 and 2"),
        ([(3, 2, 7, 7), (3, 4)], {0: "float64"}, "maps must be of type float32 or float16, not float64"),
        ([(3, 2, 7, 7), (3, 4)], {1: "int64"}, "rois must be of type"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.heatmaps_to_keypoints(*variables).astuple()
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


@pytest.mark.parametrize(
    "maps, rois, reason",
    [
        ((3, 2, 7, 7), (2, 4), "differ in their number of objects"),
        ((3, 2, 7, 7), (3, 5), "rois must have the shape"),
        ((3, 0, 7, 7), (3, 4), "K, H and W above 0"),
        ((3, 2, 7, 0), (3, 4), "K, H and W above 0"),
    ],
)
def test_what_differs_at_run_time_is_refused(maps, rois, reason):
    with pytest.raises(tvm.TVMError, match=reason):
        on_llvm(np.zeros(maps, "float32"), np.zeros(rois, "float32"), dynamic=True)


# --- any rois

CORNER = st.floats(-50, 80, width=32) | st.integers(-9, 40).map(float) | st.sampled_from([NAN, INF, 2e9])


@functools.cache
def small():
    return compiled(function_of(*heatmaps(1, 2, (4, 5)), dynamic=True))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CORNER, CORNER, CORNER, CORNER), max_size=4), st.integers(0, 9))
def test_any_rois(corners, seed):
    rois = np.array(corners, "float32").reshape(-1, 4)
    maps, _ = heatmaps(len(rois), 2, (4, 5), seed)
    assert_right(small()(maps, rois), maps, rois)


def test_any_rois_on_cuda(emulated_cuda):
    values = np.array([NAN, INF, -INF, 2e9, 0, 3.5, 8, -7, 13, 40], "float32")
    rois = np.random.default_rng(0).choice(values, (40, 4), p=[0.03] * 4 + [0.88 / 6] * 6)
    maps, _ = heatmaps(len(rois), 2, (5, 4))
    assert_right(emulated_cuda.run_relay(function_of(maps, rois), maps, rois), maps, rois)


# --- the CUDA kernel itself


def test_no_thread_depends_on_the_order_of_others(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    maps, rois = heatmaps(2, 2, (6, 6))
    function = function_of(maps, rois)
    emulated_cuda.assert_same_in_any_order(lambda: emulated_cuda.run_relay(function, maps, rois))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_compiles_without_spills(emulated_cuda, tmp_path, dtype):
    maps, rois = heatmaps(3, 17, (56, 56))
    relay.build(tvm.IRModule.from_expr(function_of(maps.astype(dtype), rois)), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1, spilled=32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_gpu(dtype):
    maps, rois = heatmaps(60, 17, (56, 56), image_size=(480, 640))
    maps, rois[0] = maps.astype(dtype), [0, 0, 5000, 5000]
    target = tvm.target.Target("cuda", host="llvm")
    found = compiled(function_of(maps, rois, dynamic=True), target, tvm.cuda(0))(maps, rois)
    assert_right(found, maps.astype("float32"), rois)
