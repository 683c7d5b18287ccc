"""Rasterising, on LLVM and the emulated CUDA device: as OpenCV, and as the oracle, to the bit."""

import functools
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topi_ext
from tests import helpers
from tests.ops import drawn_by_cv2
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.rasterize import reference

import tvm
from tvm import relay

NAN, INF = float("nan"), float("inf")
PALETTE = [((17, 17, 31), "fill"), ((255, 217, 82), "line"), ((0, 90, 250), "fill"), ((255, 0, 0), "line")]
OPERATORS = {
    name: (getattr(topi_ext, name), getattr(reference, name))
    for name in ("rasterize_boxes", "rasterize_polygons", "rasterize_polylines", "rasterize_map")
}


def function_of(name, arrays, image_size, dynamic=False, **options):
    shapes = [array.shape for array in arrays]
    if dynamic:
        shapes = [(relay.Any(), *shape[1:]) for shape in shapes]
    variables = [
        relay.var(f"x{i}", shape=shape, dtype=str(array.dtype))
        for i, (shape, array) in enumerate(zip(shapes, arrays))
    ]
    return relay.Function(variables, OPERATORS[name][0](*variables, image_size, **options))


def on_llvm(name, arrays, *args, target="llvm", **options):
    mod = tvm.IRModule.from_expr(function_of(name, arrays, *args, **options))
    return helpers.run(mod, *arrays, target=target)[0]


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs an operator on a target."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(name, arrays, *args, dynamic=False, **options):
        function = function_of(name, arrays, *args, dynamic=dynamic, **options)
        return cuda.run_relay(function, *arrays, executor="vm" if dynamic else "graph")[0]

    return on_cuda


def assert_as_oracle(run, name, arrays, image_size, dynamic=False, **options):
    found = run(name, arrays, image_size, dynamic=dynamic, **options)
    expected = OPERATORS[name][1](*arrays, image_size, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    return found


# --- scenes


def cameras(samples, image_size, rng, scale=1.0):
    """Matrices that show what is around the origin, each turned and shifted in its own way."""
    angles, matrices = rng.uniform(-4, 4, samples), np.zeros((samples, 3, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(angles) * scale
    matrices[:, 0, 1], matrices[:, 1, 0] = -np.sin(angles) * scale, np.sin(angles) * scale
    matrices[:, :2, 2] = np.array(image_size[::-1]) * rng.uniform(0.3, 0.7, (samples, 2))
    matrices[:, 2, 2] = 1
    return matrices


def box_scenes(samples, layers, count, image_size, seed=0, spread=0.4):
    """Boxes of cars, more or less, within `spread` of the image's size from its centre."""
    rng = np.random.default_rng(seed)
    total = samples * layers * count
    centres = rng.uniform(-spread, spread, (total, 2)) * max(image_size)
    sizes, yaw = np.exp(rng.normal(2, 0.5, (total, 2))), rng.uniform(-4, 4, (total, 1))
    starts = (np.arange(samples)[:, None] * layers + np.arange(layers + 1)) * count
    return [np.hstack([centres, sizes, yaw]), starts.astype("int32"), cameras(samples, image_size, rng)]


def shape_scenes(samples, count, image_size, seed=0, spread=0.4, most=9):
    """Points and offsets of shapes with up to `most` points each, and matrices."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, most + 1, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    centres = np.repeat(rng.uniform(-spread, spread, (count, 2)), lengths, axis=0) * max(image_size)
    points = centres + rng.normal(0, 12, centres.shape) * rng.choice([0.2, 1, 3])
    return points, offsets, cameras(samples, image_size, rng)


def polygon_scenes(samples, layers, count, image_size, **options):
    points, offsets, matrices = shape_scenes(samples, samples * layers * count, image_size, **options)
    starts = (np.arange(samples)[:, None] * layers + np.arange(layers + 1)) * count
    return [points, offsets, starts, matrices]


def map_scenes(samples, count, image_size, of_sample=True, **options):
    points, offsets, matrices = shape_scenes(samples, count, image_size, **options)
    rng = np.random.default_rng(1)
    styles = rng.integers(-1, len(PALETTE) + 1, (samples, count) if of_sample else count)
    return [points, offsets, styles.astype("int32"), matrices]


# --- what OpenCV draws


@pytest.mark.parametrize("spread", [0.3, 0.9])
def test_150_scenes_of_boxes_as_opencv(spread):
    """The second half of the scenes is mostly outside the image."""
    scenes, image_size = box_scenes(150, 1, 30, (112, 160), spread=spread), (112, 160)
    found = on_llvm("rasterize_boxes", scenes, image_size, mode="parity", dtype="uint8")
    expected = drawn_by_cv2.boxes(*scenes, image_size)
    assert 0.02 < (expected > 0).mean() < 0.6
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_150_scenes_of_maps_as_opencv(spread):
    scenes, image_size = map_scenes(150, 60, (112, 160), spread=spread), (112, 160)
    options = {"palette": PALETTE, "background": (255, 255, 250)}
    found = on_llvm("rasterize_map", scenes, image_size, dtype="uint8", **options)
    expected = drawn_by_cv2.shapes(*scenes, image_size, **options)
    assert (expected != options["background"]).any(axis=3).mean() > 0.05
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("image_size", [(40, 50), (1, 9), (7, 1), (4, 4)])
def test_the_oracle_as_opencv(image_size):
    """Corners anywhere, on whole and half pixels too, and shapes of one and two points."""
    rng = np.random.default_rng(0)
    for seed in range(30):
        points, offsets, _ = shape_scenes(1, 12, (40, 50), seed=seed, spread=rng.choice([0.5, 20]))
        points = np.round(points * 2) / 2 if seed % 3 == 0 else points
        arrays = points, offsets, rng.integers(0, 4, 12).astype("int32"), np.eye(3)[None]
        options = {"palette": PALETTE, "background": (9, 99, 199)}
        found = reference.rasterize_map(*arrays, image_size, dtype="uint8", **options)
        np.testing.assert_array_equal(found, drawn_by_cv2.shapes(*arrays, image_size, **options))


def test_union_has_no_holes():
    boxes = np.array([[20, 20, 20, 10, 0.3], [22, 21, 20, 10, 0.5], [22, 21, 20, 10, 0.5]])
    arrays = boxes, np.array([[0, 3], [0, 1], [1, 2]], "int32"), np.eye(3)[None].repeat(3, axis=0)
    union, first, second = on_llvm("rasterize_boxes", arrays, (40, 40), dtype="uint8")[..., 0]
    parity = on_llvm("rasterize_boxes", arrays, (40, 40), dtype="uint8", mode="parity")[0, ..., 0]
    assert (union >= np.maximum(first, second)).all()
    assert (union[first == 255] == 255).all() and (union[second == 255] == 255).all()
    assert (parity[(first == 255) & (second == 0)] == 255).all()  # the last two boxes cancel each other
    assert (parity[(first == 0) & (second == 255)] < 255).any()


# --- what the oracle draws, on every target

KINDS = [
    ((40, 50), "parity", "NHWC", "float32"),
    ((64, 32), "union", "NCHW", "uint8"),
    ((33, 65), "parity", "NCHW", "float32"),
    ((32, 36), "union", "NHWC", "uint8"),
]


@pytest.mark.parametrize("image_size, mode, layout, dtype", KINDS)
def test_boxes(run, image_size, mode, layout, dtype):
    scenes = box_scenes(2, 3, 6, image_size)
    assert_as_oracle(run, "rasterize_boxes", scenes, image_size, mode=mode, layout=layout, dtype=dtype)


@pytest.mark.parametrize("image_size, mode, layout, dtype", KINDS[:2])
def test_polygons(run, image_size, mode, layout, dtype):
    scenes = polygon_scenes(2, 2, 5, image_size)
    assert_as_oracle(run, "rasterize_polygons", scenes, image_size, mode=mode, layout=layout, dtype=dtype)


def test_polylines(run):
    assert_as_oracle(run, "rasterize_polylines", polygon_scenes(2, 2, 5, (40, 50)), (40, 50))


@pytest.mark.parametrize("image_size, mode, layout, dtype", KINDS[:3])
def test_map(run, image_size, mode, layout, dtype):
    scenes = map_scenes(2, 40, image_size, of_sample=mode == "parity")
    options = {"palette": PALETTE, "background": (255, 255, 250), "layout": layout, "dtype": dtype}
    assert_as_oracle(run, "rasterize_map", scenes, image_size, **options)


@pytest.mark.parametrize("channels", [1, 5])
def test_map_of_other_channels(run, channels):
    palette = [(color[:1] * channels, kind) for color, kind in PALETTE]
    scenes = map_scenes(1, 20, (30, 30))
    assert_as_oracle(run, "rasterize_map", scenes, (30, 30), palette=palette, background=range(channels))


def test_other_types(run):
    boxes, layers, matrices = box_scenes(2, 2, 5, (32, 32))
    scenes = [boxes.astype("float32"), layers.astype("int64"), matrices.astype("float32")]
    assert_as_oracle(run, "rasterize_boxes", scenes, (32, 32))
    points, offsets, styles, matrices = map_scenes(2, 10, (32, 32))
    scenes = [points.astype("float32"), offsets.astype("int64"), styles.astype("int8"), matrices]
    assert_as_oracle(run, "rasterize_map", scenes, (32, 32), palette=PALETTE)


@pytest.mark.parametrize("samples, count", [(2, 3), (0, 3), (2, 0)])
@pytest.mark.parametrize("name", ["rasterize_boxes", "rasterize_map"])
def test_numbers_known_at_run_time(run, name, samples, count):
    if name == "rasterize_map":
        arrays, options = map_scenes(samples, count, (20, 20)), {"palette": PALETTE}
    else:
        arrays, options = box_scenes(samples, 2, count, (20, 20)), {}
    assert_as_oracle(run, name, arrays, (20, 20), dynamic=True, **options)


def test_lines_and_polygons_of_none(run):
    for name in ("rasterize_polygons", "rasterize_polylines"):
        arrays = polygon_scenes(2, 2, 0, (20, 20))
        assert not assert_as_oracle(run, name, arrays, (20, 20), dynamic=True).any()


def test_boxes_of_a_cosine_and_a_sine(run):
    boxes, layers, matrices = box_scenes(1, 1, 8, (32, 32))
    by_heading = np.hstack([boxes[:, :4], np.cos(boxes[:, 4:]), np.sin(boxes[:, 4:])])
    found = assert_as_oracle(run, "rasterize_boxes", [by_heading, layers, matrices], (32, 32))
    np.testing.assert_array_equal(found, reference.rasterize_boxes(boxes, layers, matrices, (32, 32)))


# --- many, none, and what is no place


def test_one_agent_none_and_100_frames(run):
    boxes, _, matrices = box_scenes(1, 1, 101, (33, 40))
    layers = np.concatenate([np.arange(102), [101] * 101])[None].astype("int32")  # the ego: nowhere
    found = assert_as_oracle(run, "rasterize_boxes", [boxes, layers, matrices], (33, 40))
    assert found.shape == (1, 33, 40, 202)
    assert not found[..., 101:].any()
    assert found[..., :101].any(axis=(0, 1, 2)).sum() > 60


@pytest.mark.parametrize("mode", ["union", "parity"])
def test_5000_agents(run, mode):
    scenes = box_scenes(1, 1, 5000, (40, 40), spread=3)
    assert_as_oracle(run, "rasterize_boxes", scenes, (40, 40), mode=mode)


def test_a_polygon_of_5000_corners(run):
    layers = np.array([[0, 3]], "int32")
    points = np.random.default_rng(0).normal(20, 15, (5000, 2))
    scenes = [points, np.array([0, 4000, 4990, 5000], "int32"), layers, np.eye(3)[None]]
    for mode in ("union", "parity"):
        assert_as_oracle(run, "rasterize_polygons", scenes, (40, 40), mode=mode)


def test_layers_may_share_boxes(run):
    boxes, _, matrices = box_scenes(3, 1, 4, (30, 30))
    layers = np.array([[0, 4, 8, 12], [8, 8, 9, 12], [0, 12, 12, 12]], "int64")
    assert_as_oracle(run, "rasterize_boxes", [boxes, layers, matrices], (30, 30))


def test_any_offsets_stay_in_bounds(run):
    points, offsets, layers, matrices = polygon_scenes(2, 2, 4, (30, 30))
    far = 2**31 - 1
    offsets = np.array([-5, 9, 3, far, 0, 5, -far, 99, 7, 7, 12, far, 1, 2, 3, 30, 60], "int32")
    layers = np.array([[-3, 99, 4], [5, 2, far]], "int32")
    run("rasterize_polygons", [points, offsets, layers, matrices], (30, 30))
    styles = np.array([0, 1, 2, 3] * 4, "int8")
    styles[5:7] = -128, 127
    run("rasterize_map", [points, offsets, styles, matrices], (30, 30), palette=PALETTE)


PLACES = [NAN, INF, -INF, 1e300, -1e300, 1e18, -1e9, 16383.5, -17000, 0, 10, 20.5]


@pytest.mark.parametrize("name", OPERATORS)
def test_any_places(run, name):
    """Far corners are moved to within 16383 pixels; shapes with one that is not finite are left out."""
    rng = np.random.default_rng(0)
    weights = np.array([1, 1, 1, 1, 1, 1, 1, 2, 2, 20, 20, 20])
    values = rng.choice(PLACES, (160, 5), p=weights / weights.sum())
    offsets, layers = np.arange(0, 161, 4).astype("int32"), np.array([[0, 20, 40]] * 5, "int32")
    with np.errstate(invalid="ignore"):
        matrices, options = np.eye(3) * np.array([1, NAN, INF, 1e308, 0])[:, None, None], {}
    arrays = [values[:, :2], offsets, layers, matrices]
    if name == "rasterize_boxes":
        arrays = [values, layers * 4, matrices]
    elif name == "rasterize_map":
        arrays[2], options = np.arange(40, dtype="int8") % 4, {"palette": PALETTE}
    found = assert_as_oracle(run, name, arrays, (36, 40), **options)
    assert len(np.unique(found[0])) > 3


SMALL = (20, 24)
PLACE = st.floats(-9, 40, width=32) | st.integers(-9, 40).map(float) | st.floats(-3e4, 3e4, width=32)


@functools.cache
def small(name, mode):
    arrays = polygon_scenes(1, 1, 3, SMALL)
    mod = tvm.IRModule.from_expr(function_of(name, arrays, SMALL, dynamic=True, mode=mode))
    return helpers.runner(mod)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.tuples(PLACE, PLACE), max_size=5), max_size=4), st.sampled_from(["union", "parity"])
)
def test_any_polygons(contours, mode):
    points = np.array([point for contour in contours for point in contour]).reshape(-1, 2)
    offsets = np.cumsum([0, *map(len, contours)]).astype("int32")
    arrays = points, offsets, np.array([[0, len(contours)]]), np.eye(3)[None]
    (found,) = small("rasterize_polygons", mode)(*arrays)
    np.testing.assert_array_equal(found, reference.rasterize_polygons(*arrays, SMALL, mode=mode))


# --- what is refused


@pytest.mark.parametrize(
    "name, shapes, dtypes, reason",
    [
        ("rasterize_boxes", [(9, 4), (2, 3), (2, 3, 3)], {}, r"boxes must have the shape \(N, 5 or 6\)"),
        ("rasterize_boxes", [(9, 5), (2, 3), (3, 3, 3)], {}, "layers of 2 samples, but matrices of 3"),
        ("rasterize_boxes", [(9, 5), (2, 1), (2, 3, 3)], {}, "at least 1: layers is"),
        ("rasterize_boxes", [(9, 5), (2, relay.Any()), (2, 3, 3)], {}, "must be known"),
        ("rasterize_boxes", [(9, 5), (2, 3), (3, 3)], {}, r"matrices must have the shape \(B, 3, 3\)"),
        (
            "rasterize_boxes",
            [(9, 5), (2, 3), (2, 3, 3)],
            {0: "float16"},
            "boxes must be of type float32 or float64",
        ),
        (
            "rasterize_boxes",
            [(9, 5), (2, 3), (2, 3, 3)],
            {1: "int8"},
            "layers must be of type int32 or int64",
        ),
        ("rasterize_polygons", [(9, 3), (4,), (2, 3), (2, 3, 3)], {}, r"points must have the shape \(P, 2\)"),
        (
            "rasterize_polygons",
            [(9, 2), (4, 1), (2, 3), (2, 3, 3)],
            {},
            r"offsets must have the shape \(N \+ 1,\)",
        ),
        ("rasterize_map", [(9, 2), (4,), (4,), (2, 3, 3)], {2: "int8"}, "a style for each shape: 4 for 3"),
        (
            "rasterize_map",
            [(9, 2), (4,), (3, 3), (2, 3, 3)],
            {2: "int8"},
            "styles of 3 samples, but matrices of 2",
        ),
        (
            "rasterize_map",
            [(9, 2), (4,), (3,), (2, 3, 3)],
            {2: "float32"},
            "styles must be of type int8 or int32",
        ),
    ],
)
def test_what_it_cannot_take_is_refused(name, shapes, dtypes, reason):
    floats = {0, len(shapes) - 1}
    variables = [
        relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32" if i in floats else "int32"))
        for i, s in enumerate(shapes)
    ]
    options = {"palette": PALETTE} if name == "rasterize_map" else {}
    call = OPERATORS[name][0](*variables, (20, 20), **options)
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"image_size": (0, 9)}, "images must be 1 to 16384 pixels high and wide, not 0x9"),
        ({"image_size": (9, 2**15)}, "images must be"),
        ({"layout": "CHW"}, "layout must be NHWC or NCHW, not CHW"),
        ({"dtype": "float16"}, "dtype must be float32 or uint8, not float16"),
        ({"palette": []}, "palette and background must have"),
        ({"palette": [((1, 2), "fill")]}, "the same number of channels"),
        ({"palette": [((1, 2, 256), "fill")]}, "numbers from 0 to 255"),
        ({"palette": [((1, 2, 3), "dots")]}, "a kind of style must be fill or line, not dots"),
    ],
)
def test_wrong_attributes_are_refused(options, reason):
    variables = [relay.var(name) for name in "abcd"]
    options = {"image_size": (20, 20), "palette": PALETTE, **options}
    with pytest.raises(ValueError, match=reason):
        topi_ext.rasterize_map(*variables, **options)
    if "palette" not in reason:
        with pytest.raises(ValueError, match="mode must be union or parity"):
            topi_ext.rasterize_boxes(*variables[:3], (20, 20), mode="xor")


@pytest.mark.parametrize("wrong", ["layers", "styles", "offsets"])
def test_numbers_that_differ_at_run_time_are_refused(wrong):
    name = "rasterize_boxes" if wrong == "layers" else "rasterize_map"
    arrays = box_scenes(2, 2, 3, (20, 20)) if wrong == "layers" else map_scenes(2, 5, (20, 20))
    place = {"layers": 1, "styles": 2, "offsets": 1}[wrong]
    arrays[place] = arrays[place][1:]
    options = {} if wrong == "layers" else {"palette": PALETTE}
    with pytest.raises(tvm.TVMError, match=r"differ in their number of samples|each shape must have a style"):
        on_llvm(name, arrays, (20, 20), dynamic=True, **options)


@pytest.mark.parametrize("flags", [(), ("-ffp-contract=fast", "-mfma")])
def test_corners_on_whole_pixels(emulated_cuda, flags):
    """The matrix has them as differences of large products; fused with the sum, these end just below."""
    emulated_cuda.flags = flags
    i, j = np.random.default_rng(0).integers(0, 8, (2, 60))
    points = 5.0 * np.column_stack([260 + i, 195 - j])
    offsets, layers = np.arange(0, 61, 3).astype("int32"), np.array([[0, 20]], "int32")
    matrices = np.array([[[0.6, -0.8, 0], [0, 1, -935], [0, 0, 1]]])
    arrays = [points, offsets, layers, matrices]
    expected = reference.rasterize_polylines(*arrays, (48, 64))
    assert expected.any()
    found = emulated_cuda.run_relay(function_of("rasterize_polylines", arrays, (48, 64)), *arrays)
    np.testing.assert_array_equal(*found, expected)
    options = {"target": "llvm -mattr=+fma"}
    np.testing.assert_array_equal(on_llvm("rasterize_polylines", arrays, (48, 64), **options), expected)


# --- the CUDA kernels themselves


def test_any_order_of_threads(emulated_cuda):
    for name, arrays, options in (
        ("rasterize_boxes", box_scenes(1, 2, 300, (40, 40)), {"mode": "parity"}),
        ("rasterize_map", map_scenes(1, 300, (40, 40)), {"palette": PALETTE}),
    ):
        function = function_of(name, arrays, (40, 40), **options)
        emulated_cuda.assert_same_in_any_order(
            lambda f=function, a=arrays: emulated_cuda.run_relay(f, *a), range(2)
        )


def test_no_races(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    arrays = box_scenes(1, 2, 300, (40, 40))
    emulated_cuda.run_relay(function_of("rasterize_boxes", arrays, (40, 40), mode="parity"), *arrays)
    arrays = map_scenes(1, 300, (40, 40))
    emulated_cuda.run_relay(function_of("rasterize_map", arrays, (40, 40), palette=PALETTE), *arrays)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("layout, dtype, vector", [("NCHW", "float32", "float4"), ("NHWC", "uint8", "uint")])
def test_compiles_with_few_spills(emulated_cuda, tmp_path, layout, dtype, vector):
    arrays, options = box_scenes(2, 22, 30, (224, 224)), {"layout": layout, "dtype": dtype}
    function = function_of("rasterize_boxes", arrays, (224, 224), mode="parity", **options)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert emulated_cuda.sources[-1].count(f"*({vector}*)(rasterize_masks") == 1
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=2, spilled=96)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_map_compiles_with_few_spills(emulated_cuda, tmp_path):
    arrays = map_scenes(2, 300, (224, 224))
    function = function_of("rasterize_map", arrays, (224, 224), palette=PALETTE)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=3, spilled=96)


def on_gpu(name, arrays, *args, dynamic=True, **options):
    mod = tvm.IRModule.from_expr(function_of(name, arrays, *args, dynamic=dynamic, **options))
    target = tvm.target.Target("cuda", host="llvm")
    return helpers.run(mod, *arrays, target=target, device=tvm.cuda(0))[0]


@pytest.mark.gpu
@pytest.mark.parametrize("layout, dtype", [("NHWC", "float32"), ("NCHW", "uint8")])
@pytest.mark.parametrize("image_size", [(224, 224), (131, 277)])
def test_on_gpu(image_size, layout, dtype):
    options = {"layout": layout, "dtype": dtype}
    for mode in ("parity", "union"):
        scenes = box_scenes(8, 22, 60, image_size)
        assert_as_oracle(on_gpu, "rasterize_boxes", scenes, image_size, mode=mode, **options)
    scenes = polygon_scenes(4, 3, 40, image_size)
    assert_as_oracle(on_gpu, "rasterize_polygons", scenes, image_size, mode="parity", **options)
    assert_as_oracle(on_gpu, "rasterize_polylines", scenes, image_size, **options)
    scenes = map_scenes(8, 2000, image_size, spread=2)
    assert_as_oracle(on_gpu, "rasterize_map", scenes, image_size, palette=PALETTE, **options)


@pytest.mark.gpu
def test_many_on_gpu():
    layers = np.linspace(0, 5000, 203).astype("int32")[None]
    boxes, _, matrices = box_scenes(1, 1, 5000, (200, 200), spread=2)
    assert_as_oracle(on_gpu, "rasterize_boxes", [boxes, layers, matrices], (200, 200))
    layers = np.array([[0, 5000, 5000]])
    for mode in ("union", "parity"):
        assert_as_oracle(on_gpu, "rasterize_boxes", [boxes, layers, matrices], (200, 200), mode=mode)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATORS)
def test_any_places_on_gpu(name):
    test_any_places(on_gpu, name)


@pytest.mark.gpu
def test_any_offsets_stay_in_bounds_on_gpu():
    test_any_offsets_stay_in_bounds(on_gpu)
