"""Multi-scale deformable attention, on LLVM and the emulated CUDA device: as torch's `grid_sample`."""

import functools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.deformable_attention import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
LEVELS = (5, 6, 2), (3, 3, 4), (1, 2, 1)


def inputs(items=3, queries=7, channels=8, levels=LEVELS, seed=0, reach=1.3):
    """Points on the maps and a little beyond them."""
    random = np.random.default_rng(seed)
    pixels, points = sum(level[0] * level[1] for level in levels), sum(level[2] for level in levels)
    value = random.standard_normal((items, pixels, channels))
    places = random.uniform(-reach, reach, (items, queries, points, 2))
    weights = random.random((items, queries, points))
    return [array.astype("float32") for array in (value, places, weights)]


def function_of(arrays, dynamic=False, levels=LEVELS, **options):
    """`dynamic`: without the numbers of items and queries."""
    variables = []
    for name, array in zip(("value", "points", "weights"), arrays):
        shape = list(array.shape)
        if dynamic:
            shape[: 1 if name == "value" else 2] = [relay.Any()] * (1 if name == "value" else 2)
        variables.append(relay.var(name, shape=shape, dtype=str(array.dtype)))
    return relay.Function(variables, topi_ext.deformable_attention(*variables, levels=levels, **options))


def compiled(function, target="llvm", device=None):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    machine = VirtualMachine(executable, device or tvm.cpu(), memory_cfg="naive")

    def call(*arrays):
        return machine.invoke("main", *(tvm.nd.array(a, device or tvm.cpu()) for a in arrays)).numpy()

    return call


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return lambda arrays, **options: compiled(function_of(arrays, **options))(*arrays)
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(arrays, **options):
        executor = "vm" if options.get("dynamic") else "graph"
        return cuda.run_relay(function_of(arrays, **options), *arrays, executor=executor)[0]

    return on_cuda


def by_torch(arrays, levels=LEVELS, align_corners=False):
    """As Deformable DETR spells it."""
    value, points, weights = (torch.from_numpy(array.astype("float32")) for array in arrays)
    total, pixel, point = 0, 0, 0
    for height, width, count in levels:
        map_ = value[:, pixel : pixel + height * width].transpose(1, 2).unflatten(2, (height, width))
        part = slice(point, point + count)
        samples = torch.nn.functional.grid_sample(map_, points[:, :, part], align_corners=align_corners)
        total = total + (samples * weights[:, None, :, part]).sum(-1)
        pixel, point = pixel + height * width, point + count
    return total.transpose(1, 2).numpy()


def assert_near(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# --- what torch answers


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 4, 6, 32])
def test_as_torch(run, channels, align_corners):
    arrays = inputs(channels=channels)
    expected = by_torch(arrays, align_corners=align_corners)
    assert_near(reference.deformable_attention(*arrays, levels=LEVELS, align_corners=align_corners), expected)
    assert_near(run(arrays, align_corners=align_corners), expected)


@pytest.mark.parametrize("levels", [((9, 7, 3),), ((1, 1, 1),), ((1, 9, 2), (9, 1, 2))])
def test_levels(run, levels):
    arrays = inputs(levels=levels)
    assert_near(run(arrays, levels=levels), by_torch(arrays, levels))


def test_points_on_pixels_and_borders(run):
    """-1 and 1 are the outer edges, half a pixel beyond the centres."""
    places = [-1, 1, 0, -0.5, 0.75, -1 - 1 / 4, 1 + 1 / 4, -1.2499, 1.2499, -1 / 4]
    points = np.stack(np.meshgrid(places, places), -1).astype("float32").reshape(1, -1, 1, 2)
    value = np.random.default_rng(0).random((1, 16, 4)).astype("float32")
    arrays = [value, points, np.ones(points.shape[:3], "float32")]
    assert_near(run(arrays, levels=((4, 4, 1),)), by_torch(arrays, ((4, 4, 1),)))


def test_half_precision(run):
    value, points, weights = inputs()
    arrays = [value.astype("float16"), points, weights]
    found = run(arrays)
    assert found.dtype == "float16"
    assert_near(found.astype("float32"), by_torch(arrays), 2e-3)


def test_all_in_half_precision(run):
    arrays = [array.astype("float16") for array in inputs()]
    assert_near(run(arrays).astype("float32"), by_torch(arrays), 2e-3)


# --- shapes, types, and what is no number


@pytest.mark.parametrize("items, queries", [(0, 3), (2, 0), (1, 1), (2, 100)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_items_and_queries(run, items, queries, dynamic):
    arrays = inputs(items, queries)
    assert_near(run(arrays, dynamic=dynamic), by_torch(arrays))


def test_points_nowhere_read_nothing(run):
    value, points, weights = inputs(1, 9)
    points[0, :8, :, 0] = np.array([NAN, -NAN, INF, -INF, 3e38, -3e38, 1e9, -1e9])[:, None]
    found = run([value, points, weights])
    assert not found[0, :8].any() and found[0, 8].any()
    np.testing.assert_allclose(
        found, reference.deformable_attention(value, points, weights, levels=LEVELS), rtol=1e-5, atol=1e-5
    )


def test_values_that_are_not_finite_stay_in_their_channel(run):
    value, points, weights = inputs(1, 50)
    value[0, 3, 2], value[0, 7, 5] = INF, NAN
    expected, found = by_torch([value, points, weights]), run([value, points, weights])
    assert not np.isfinite(expected[..., 2]).all() and np.isnan(expected[..., 5]).any()
    assert_near(found, expected)


@pytest.mark.parametrize(
    "levels, reason",
    [((), "levels must be"), (((0, 3, 1),), "all at least 1"), (((3, 3),), "of each level")],
)
def test_levels_that_it_cannot_take(levels, reason):
    with pytest.raises(ValueError, match=reason):
        topi_ext.deformable_attention(*[relay.var(name) for name in "vpw"], levels=levels)


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(2, 8, 4), (2, 5, 3, 2), (2, 5, 3)], {}, r"value must have the shape \(N, 9, C\) for these levels"),
        ([(9, 4), (2, 5, 3, 2), (2, 5, 3)], {}, "value must have the shape"),
        ([(2, 9, 0), (2, 5, 3, 2), (2, 5, 3)], {}, "a number of channels that is known and above 0"),
        ([(2, 9, 4), (2, 5, 4, 2), (2, 5, 3)], {}, r"points must have the shape \(N, Q, 3, 2\)"),
        ([(2, 9, 4), (2, 5, 3, 3), (2, 5, 3)], {}, "points must have the shape"),
        ([(2, 9, 4), (2, 5, 3, 2), (2, 5, 4)], {}, r"weights must have the shape \(N, Q, 3\)"),
        ([(2, 9, 4), (3, 5, 3, 2), (2, 5, 3)], {}, "must have the same N, not 2, 3, 2"),
        ([(2, 9, 4), (2, 5, 3, 2), (2, 6, 3)], {}, "points and weights must have the same Q, not 5, 6"),
        ([(2, 9, 4), (2, 5, 3, 2), (2, 5, 3)], {0: "float64"}, "value must be of type float32 or float16"),
        ([(2, 9, 4), (2, 5, 3, 2), (2, 5, 3)], {2: "int32"}, "weights must be of type"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.deformable_attention(*variables, levels=[(3, 3, 3)])
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


@pytest.mark.parametrize(
    "changed, reason",
    [(0, "value and points must have the same N"), (2, "points and weights must have the same N")],
)
def test_what_differs_at_run_time_is_refused(changed, reason):
    arrays = inputs()
    run = compiled(function_of(arrays, dynamic=True))
    arrays[changed] = arrays[changed][:2]
    with pytest.raises(tvm.TVMError, match=reason):
        run(*arrays)


# --- any points

PLACE = st.floats(-2, 2, width=32) | st.sampled_from([NAN, INF, -INF, -1, 1, 0, 3e38])


@functools.cache
def small():
    return compiled(function_of(inputs(1, 1, 2, ((3, 4, 1),)), dynamic=True, levels=((3, 4, 1),)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(PLACE, PLACE), max_size=5), st.integers(0, 9))
def test_any_points(places, seed):
    value, _, weights = inputs(1, len(places), 2, ((3, 4, 1),), seed)
    points = np.array(places, "float32").reshape(1, -1, 1, 2)
    expected = reference.deformable_attention(value, points, weights, levels=((3, 4, 1),))
    assert_near(small()(value, points, weights), expected)


# --- the CUDA kernel itself


def test_no_thread_depends_on_the_order_of_others(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    arrays = inputs(2, 3)
    emulated_cuda.assert_same_in_any_order(lambda: emulated_cuda.run_relay(function_of(arrays), *arrays))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_compiles_without_spills(emulated_cuda, tmp_path, dtype):
    levels = (100, 134, 4), (50, 67, 4), (25, 34, 4), (13, 17, 4)
    value, points, weights = inputs(8, 300, 32, levels)
    function = function_of([value.astype(dtype), points, weights], levels=levels)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels", [32, 6])
def test_on_gpu(dtype, channels):
    levels = (40, 50, 4), (20, 25, 4), (10, 13, 2)
    value, points, weights = inputs(16, 500, channels, levels)
    points[0, 0, 0] = NAN
    arrays = [value.astype(dtype), points, weights]
    target = tvm.target.Target("cuda", host="llvm")
    found = compiled(function_of(arrays, dynamic=True, levels=levels), target, tvm.cuda(0))(*arrays)
    expected = reference.deformable_attention(*arrays, levels=levels).astype("float32")
    assert_near(found.astype("float32"), expected, 2e-3 if dtype == "float16" else 1e-5)
