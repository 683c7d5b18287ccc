"""RoIAlign of pyramids and single maps, on LLVM and the emulated CUDA device."""

import functools
import shutil

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops.poolers import LevelMapper

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.regions import SCALES, by_torchvision, pyramid, regions
from topi_ext.roi_align import reference
from topi_ext.roi_align.levels import least_areas, level_of

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

TOLERANCE = {"float32": 5e-5, "float16": 5e-3}
FORMULA = {"canonical_size": 224, "canonical_level": 4, "min_level": 2, "eps": 1e-6, "eps_in_log2": False}
NAN, INF = float("nan"), float("inf")


def function_of(features, rois, dynamic=False, **options):
    """The pyramid's RoIAlign, or with `spatial_scale` that of its one map."""
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in (
            *((f"map{i}", _shape(map_, dynamic, options), map_) for i, map_ in enumerate(features)),
            ("rois", (relay.Any(), 5) if dynamic else rois.shape, rois),
        )
    ]
    if "spatial_scale" in options:
        return relay.Function(variables, topi_ext.roi_align(*variables, **options))
    return relay.Function(variables, topi_ext.multiscale_roi_align(variables[:-1], variables[-1], **options))


def _shape(map_, dynamic, options):
    channels = options.get("layout", "NCHW").index("C")
    return [relay.Any() if dynamic and axis != channels else n for axis, n in enumerate(map_.shape)]


def on_llvm(features, rois, **options):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function_of(features, rois, **options)), "llvm")
    machine = VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
    return machine.invoke("main", *map(tvm.nd.array, [*features, rois])).numpy()


def expected_of(features, rois, **options):
    if "spatial_scale" in options:
        return reference.roi_align(*features, rois, **options)
    return reference.multiscale_roi_align(features, rois, **options)


def assert_close(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    tolerance = TOLERANCE[str(found.dtype)]
    np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), tolerance, tolerance)


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(features, rois, dynamic=False, **options):
        function = function_of(features, rois, dynamic, **options)
        return cuda.run_relay(function, *features, rois, executor="vm" if dynamic else "graph")[0]

    return on_cuda


# --- what torchvision answers


@pytest.mark.parametrize("sampling_ratio", [2, 0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_as_torchvision(run, layout, dtype, sampling_ratio):
    features, rois = pyramid(dtype=dtype), regions(30)
    expected = by_torchvision([map_.astype("float32") for map_ in features], rois, (7, 5), sampling_ratio)
    expected = expected.numpy().astype(dtype)
    if layout == "NHWC":
        features = [np.ascontiguousarray(np.moveaxis(map_, 1, 3)) for map_ in features]
        expected = np.moveaxis(expected, 1, 3)
    options = {"pooled_size": (7, 5), "scales": SCALES, "sampling_ratio": sampling_ratio, "layout": layout}
    assert_close(run(features, rois, **options), expected)
    assert_close(expected_of(features, rois, **options), expected)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling_ratio", [3, -1])
def test_one_map_as_torchvision(run, sampling_ratio, aligned):
    (features,), rois = pyramid(levels=1), regions(30)
    rois[:5, 3:] = rois[:5, 1:3] + 0.5  # smaller than a pixel
    if sampling_ratio > 0 or not aligned:  # else torchvision fails
        rois[5:10, 1:] = rois[5:10, [3, 2, 1, 4]]  # the wrong way round: with a level they would be zero
    options = {"spatial_scale": 0.25, "sampling_ratio": sampling_ratio, "aligned": aligned}
    expected = torchvision.ops.roi_align(torch.from_numpy(features), torch.from_numpy(rois), 4, **options)
    assert_close(run([features], rois, pooled_size=4, **options), expected.numpy())
    assert_close(expected_of([features], rois, pooled_size=4, **options), expected.numpy())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sampling_ratio", [2, -1])
def test_channels_of_each_bin_as_torchvision(run, sampling_ratio, dynamic, layout):
    (features,), rois = pyramid(levels=1, channels=12), regions(30)
    tensors = torch.from_numpy(features), torch.from_numpy(rois)
    expected = torchvision.ops.ps_roi_align(*tensors, (2, 3), 0.25, sampling_ratio).numpy()
    options = {"pooled_size": (2, 3), "spatial_scale": 0.25, "sampling_ratio": sampling_ratio}
    options |= {"aligned": True, "by_position": True, "layout": layout}
    if layout == "NHWC":
        features, expected = (np.ascontiguousarray(np.moveaxis(each, 1, 3)) for each in (features, expected))
    assert_close(run([features], rois, dynamic=dynamic, **options), expected)
    assert_close(expected_of([features], rois, **options), expected)


def test_channels_that_do_not_suffice_for_the_bins():
    features, rois = pyramid(levels=1, channels=8), regions(3)
    options = {"pooled_size": 3, "spatial_scale": 0.25, "sampling_ratio": 2, "by_position": True}
    with pytest.raises(tvm.TVMError, match="must be a multiple of 9"):
        relay.transform.InferType()(tvm.IRModule.from_expr(function_of(features, rois, **options)))


# --- levels


BOUNDARIES = {1: 0, 111: 0, 112: 1, 223: 1, 224: 2, 447: 2, 448: 3, 9e9: 3}  # levels by side


def test_boundaries(run):
    """Each map holds its number."""
    features = [np.full((1, 4, 9, 9), number, "float32") for number in range(4)]
    rois = np.float32([[0, 0, 0, side, side] for side in BOUNDARIES])
    found = run(features, rois, pooled_size=1, scales=[1e-9] * 4, sampling_ratio=1)
    np.testing.assert_array_equal(found[:, 0, 0, 0], [*BOUNDARIES.values()])


def test_boundaries_to_the_bit(run):
    features = [np.full((1, 4, 9, 9), number, "float32") for number in range(4)]
    areas = np.float32(least_areas(4, **FORMULA))
    rois = np.zeros((6, 5), "float32")
    rois[:, 3], rois[:, 4] = np.concatenate([np.nextafter(areas, np.float32(0)), areas]), 1
    found = run(features, rois, pooled_size=1, scales=[1e-9] * 4, sampling_ratio=1)
    np.testing.assert_array_equal(found[:, 0, 0, 0], [0, 1, 2, 1, 2, 3])


@pytest.mark.parametrize("eps_in_log2", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0, 0.1])
def test_least_areas_are_where_the_formula_changes(eps, eps_in_log2):
    formula = {**FORMULA, "eps": eps, "eps_in_log2": eps_in_log2}
    for level, area in enumerate(np.float32(least_areas(4, **formula)), start=1):
        below = np.nextafter(area, np.float32(0))
        assert level_of(area, 4, **formula) == level
        assert level_of(below, 4, **formula) == level - 1


def test_levels_as_torchvision():
    """Around the boundaries its logarithm may round to the other side, but not further off than that."""
    sides = np.concatenate([np.linspace(0.1, 2000, 20_000), np.arange(1, 1200)]).astype("float32")
    boxes = np.stack([sides * 0, sides * 0, sides, sides], axis=1)
    expected = LevelMapper(2, 5)([torch.from_numpy(boxes)]).numpy()
    np.testing.assert_array_equal(level_of(sides * sides, 4, **FORMULA), expected)
    for area in np.float32(least_areas(4, **FORMULA)):
        near = area * np.float32(1) + np.arange(-40, 40, dtype="float32") * np.spacing(area)
        boxes = np.stack([near * 0, near * 0, near, near * 0 + 1], axis=1)
        different = LevelMapper(2, 5)([torch.from_numpy(boxes)]).numpy() != level_of(near, 4, **FORMULA)
        assert different.sum() <= 4


@pytest.mark.parametrize(
    "formula", [{"canonical_level": 3, "min_level": 3}, {"canonical_size": 50, "eps": 0.2}]
)
def test_other_formulas(run, formula):
    options = {"pooled_size": 2, "scales": SCALES, "sampling_ratio": 2, "eps_in_log2": True, **formula}
    features, rois = pyramid(), regions(30)
    expected = expected_of(features, rois, **options)
    assert_close(run(features, rois, **options), expected)
    assert not np.allclose(expected, expected_of(features, rois, **{**options, "eps": 1.0}))


def test_an_area_that_is_no_number_or_negative_has_no_level(run):
    """Their only sample is on the map, though."""
    features = [np.ones((1, 4, 9, 9), "float32")] * 2
    rois = np.float32([[0, -3e38, 4, 3e38, 4], [0, 6, 2, 2, 6], [0, 6, 4, 2, 4], [0, 6, 6, 2, 2]])
    found = run(features, rois, pooled_size=1, scales=[0.25, 0.125], sampling_ratio=1)
    np.testing.assert_array_equal(found[:, 0, 0, 0], [0, 0, 1, 1])


# --- shapes and types


@pytest.mark.parametrize("count", [0, 1, 17])
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_regions(run, count, dynamic):
    features, rois = pyramid(16, 24, channels=4, images=3), regions(count, images=3)
    options = {"pooled_size": 2, "scales": SCALES, "sampling_ratio": 0}
    assert_close(run(features, rois, dynamic=dynamic, **options), expected_of(features, rois, **options))


def test_half_precision_regions_and_an_odd_number_of_channels(run):
    features, rois = pyramid(channels=3, layout="NHWC"), regions(20).astype("float16")
    options = {"pooled_size": 3, "scales": SCALES, "sampling_ratio": 2, "layout": "NHWC"}
    assert_close(run(features, rois, **options), expected_of(features, rois, **options))


@pytest.mark.parametrize("count", [0, 12])
@pytest.mark.parametrize("options", [{"scales": SCALES}, {"spatial_scale": 0.5}], ids=["levels", "one level"])
def test_regions_without_an_index_are_of_the_first_image(run, count, options):
    features, rois = pyramid(images=2)[: len(options.get("scales", "1"))], regions(count)
    rois[:, 0] = 0
    options = {"pooled_size": 2, "sampling_ratio": 2, **options}
    expected = expected_of(features, rois, **options)
    assert_close(run(features, rois[:, 1:].copy(), **options), expected)
    assert_close(expected_of(features, rois[:, 1:], **options), expected)


def test_no_such_image(run):
    features, rois = pyramid(), regions(8)
    rois[1:6, 0] = [-1, 2, 1e9, NAN, INF]
    found = run(features, rois, pooled_size=2, scales=SCALES, sampling_ratio=2)
    np.testing.assert_array_equal(found.any(axis=(1, 2, 3)), [1, 0, 0, 0, 0, 0, 1, 1])


VALID = [(1, 4, 8, 8), (1, 4, 4, 4), (9, 5)]


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(1, 4, 8), *VALID[1:]], {}, "must have the shape"),
        ([(1, 5, 8, 8), *VALID[1:]], {}, "number of channels must be known, and the same for all"),
        ([(1, relay.Any(), 8, 8), *VALID[1:]], {}, "number of channels must be known"),
        ([(2, 4, 8, 8), *VALID[1:]], {}, "must have the same batch size"),
        ([(1, 4, 0, 8), *VALID[1:]], {}, "has no pixels"),
        ([*VALID[:2], (9, 3)], {}, r"rois must have the shape \(R, 5\) or \(R, 4\)"),
        (VALID, {0: "uint8", 1: "uint8"}, "feature maps must be of type float32, float16, int8, not uint8"),
        (VALID, {0: "float16"}, "must have the same type"),
        (VALID, {2: "int32"}, "rois must be of type"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.multiscale_roi_align(
        variables[:-1], variables[-1], pooled_size=2, scales=[1, 0.5], sampling_ratio=2
    )
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"layout": "CHWN"},
        {"pooled_size": 0},
        {"scales": [1]},
        {"scales": [1, -1]},
        {"canonical_size": 0},
        {"eps": -1},
        {"feature_scales": [1]},
        {"feature_scales": [1, 0]},
        {"out_scale": INF},
    ],
)
def test_wrong_attributes_are_refused(wrong):
    variables = [relay.var(f"x{i}", shape=shape) for i, shape in enumerate(VALID)]
    options = {"pooled_size": 2, "scales": [1, 0.5], "sampling_ratio": 2, **wrong}
    with pytest.raises(ValueError, match=f"roi_align: .*{next(iter(wrong)).rstrip('s')}"):
        topi_ext.multiscale_roi_align(variables[:2], variables[2], **options)


@pytest.mark.parametrize("name", ["roi_align", "multiscale_roi_align"])
def test_a_refusal_names_the_function_that_was_called(name):
    maps, rois = relay.var("maps", shape=(1, 4, 8)), relay.var("rois", shape=(5, 5))
    given = (maps, {"spatial_scale": 1}) if name == "roi_align" else ([maps], {"scales": [1]})
    call = getattr(topi_ext, name)(given[0], rois, pooled_size=2, sampling_ratio=2, **given[1])
    with pytest.raises(tvm.TVMError, match=f"topi_ext.{name}: feature maps must have the shape"):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([maps, rois], call)))


# --- int8

STEPS = [0.02, 0.05, 0.01, 0.03]  # of each map


def in_int8(features):
    """The features in steps."""
    return [np.rint(map_ / step).clip(-128, 127).astype("int8") for map_, step in zip(features, STEPS)]


@pytest.mark.parametrize(
    "channels, layout, out_dtype",
    [
        (32, "NHWC", "int8"),
        (32, "NHWC", "float16"),
        (8, "NHWC", "int8"),
        (3, "NHWC", "float32"),
        (4, "NCHW", "int8"),
    ],
)
def test_int8_features(run, channels, layout, out_dtype):
    features, rois = in_int8(pyramid(channels=channels, layout=layout)), regions(20)
    options = {"pooled_size": (3, 2), "scales": SCALES, "sampling_ratio": 2, "layout": layout}
    options |= {"feature_scales": STEPS, "out_dtype": out_dtype}
    if out_dtype == "int8":
        options["out_scale"] = 150.0
    found, expected = run(features, rois, **options), expected_of(features, rois, **options)
    if out_dtype == "int8":
        assert found.dtype == expected.dtype == np.int8
        assert {-128, 127} <= {*expected.ravel()} and (found == expected).mean() > 0.999  # but for ties
        assert np.abs(found.astype("int32") - expected).max() <= 1
    else:
        assert_close(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_result_in_int8_of_float_features(run, dtype):
    features, rois = pyramid(channels=8, levels=1, layout="NHWC", dtype=dtype), regions(20)
    options = {"pooled_size": 2, "spatial_scale": 0.25, "sampling_ratio": 0, "layout": "NHWC"}
    options |= {"out_scale": 40.0, "out_dtype": "int8"}
    found, expected = run(features, rois, **options), expected_of(features, rois, **options)
    assert found.dtype == expected.dtype == np.int8 and (found == expected).mean() > 0.999
    assert np.abs(found.astype("int32") - expected).max() <= 1


def test_ties_go_to_the_even_number(run):
    features, rois = np.arange(-4, 4, dtype="int8").reshape(1, 1, 1, 8), np.float32([[0, 0, 0, 1, 1]])
    options = {"pooled_size": 1, "spatial_scale": 1.0, "sampling_ratio": 1, "layout": "NHWC"}
    found = run([features], rois, out_scale=0.5, out_dtype="int8", **options)
    np.testing.assert_array_equal(found.ravel(), [-2, -2, -1, 0, 0, 0, 1, 2])


@pytest.mark.parametrize(
    "dtype, options, reason",
    [
        ("int8", {}, "int8 feature maps need an out_dtype"),
        ("int8", {"out_dtype": "int32"}, "out_dtype for int8 feature maps must be .*, not int32"),
        ("float32", {"out_dtype": "float16"}, "must be float32 or int8, not float16"),
        (
            "float32",
            {"feature_scales": [1, 0.5]},
            "feature scales are for int8 feature maps, not for float32",
        ),
    ],
)
def test_types_and_scales_that_do_not_fit_are_refused(dtype, options, reason):
    types = dtype, dtype, "float32"
    *features, rois = (relay.var(f"x{i}", shape=s, dtype=t) for i, (s, t) in enumerate(zip(VALID, types)))
    options = {"pooled_size": 2, "scales": [1, 0.5], "sampling_ratio": 2, **options}
    call = topi_ext.multiscale_roi_align(features, rois, **options)
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([*features, rois], call)))


# --- any regions

# All of these are powers of two, so that all targets round alike and a sample is on the map for all or none.
ANY_OPTIONS = st.fixed_dictionaries(
    {
        "pooled_size": st.sampled_from([(2, 4), (1, 1)]),
        "sampling_ratio": st.sampled_from([0, 2]),
        "aligned": st.booleans(),
        "layout": st.sampled_from(["NCHW", "NHWC"]),
    }
)
TAME = st.floats(-60, 90, width=32) | st.integers(-9, 40)
WILD = st.sampled_from([NAN, INF, -INF, 3e38, -3e38, 1e9, -1e9, 1e-40, 5e4, -5e4])


@functools.cache
def small_pyramid(layout):
    return pyramid(8, 12, channels=4, levels=2, layout=layout)


@functools.cache
def compiled(**options):
    features = small_pyramid(options["layout"])
    function = function_of(features, np.zeros((1, 5), "float32"), True, scales=[1, 0.5], **options)
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), "llvm")
    return VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")


@settings(max_examples=50, deadline=None)
@given(ANY_OPTIONS, st.lists(st.tuples(TAME, TAME, TAME, TAME), max_size=8), st.integers(0, 1))
def test_any_regions(options, corners, index):
    options["canonical_size"], options["min_level"] = 16.0, 4
    rois = np.array([[index, *corner] for corner in corners], "float32").reshape(-1, 5)
    features = small_pyramid(options["layout"])
    found = compiled(**options).invoke("main", *map(tvm.nd.array, [*features, rois])).numpy()
    assert_close(found, expected_of(features, rois, scales=[1, 0.5], **options))


@settings(max_examples=50, deadline=None)
@given(ANY_OPTIONS, st.lists(st.tuples(TAME | WILD, TAME | WILD, TAME | WILD, TAME | WILD), min_size=1))
def test_wild_regions_give_means_of_what_is_there(options, corners):
    """Far off, rounding decides which pixels; but no result is beyond all of them, or takes for ever."""
    options["canonical_size"], options["min_level"] = 16.0, 4
    rois = np.array([[0, *corner] for corner in corners], "float32")
    features = small_pyramid(options["layout"])
    found = compiled(**options).invoke("main", *map(tvm.nd.array, [*features, rois])).numpy()
    assert (np.abs(found) <= max(np.abs(map_).max() for map_ in features)).all()
    assert not found[~np.isfinite(rois).all(axis=1)].any()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_wild_regions_on_cuda(emulated_cuda, sampling_ratio, layout):
    values = np.array([NAN, INF, -INF, 3e38, -3e38, 1e9, -1e9, 0, 5, 9, -3], "float32")
    rois = np.random.default_rng(0).choice(values, (60, 5), p=[0.03] * 7 + [0.79 / 4] * 4)
    features = small_pyramid(layout)
    options = {"pooled_size": 2, "scales": [1, 0.5], "sampling_ratio": sampling_ratio, "layout": layout}
    (found,) = emulated_cuda.run_relay(function_of(features, rois, **options), *features, rois)
    assert_close(found, expected_of(features, rois, **options))


# --- the CUDA kernel itself


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize(
    "layout, dtype, vector",
    [
        ("NHWC", "float16", "uint4"),
        ("NHWC", "float32", "float4"),
        ("NCHW", "float32", ""),
        ("NHWC", "int8", "int4"),
    ],
)
def test_compiles_without_spills(emulated_cuda, tmp_path, layout, dtype, vector):
    features, rois = pyramid(channels=256, layout=layout, dtype=dtype), regions(9)
    options = {"pooled_size": 7, "scales": SCALES, "sampling_ratio": 2, "layout": layout}
    options |= {"out_dtype": "int8", "feature_scales": STEPS} if dtype == "int8" else {}
    relay.build(tvm.IRModule.from_expr(function_of(features, rois, **options)), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    assert f"*({vector}*)(p0" in source or not vector
    assert "__syncthreads" not in source
    assert_compiles_without_spills(source, tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("sampling_ratio", [2, 0])
def test_on_gpu(layout, dtype, sampling_ratio):
    features, rois = pyramid(200, 336, 256, 2, layout, dtype), regions(1000, 2, 800, 1344)
    options = {"pooled_size": 7, "scales": SCALES, "sampling_ratio": sampling_ratio, "layout": layout}
    function = function_of(features, rois, dynamic=True, **options)
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), tvm.target.Target("cuda", host="llvm"))
    machine = VirtualMachine(executable, tvm.cuda(0))
    found = machine.invoke("main", *(tvm.nd.array(array, tvm.cuda(0)) for array in [*features, rois]))
    found = found.numpy().astype("float32")
    if layout == "NHWC":
        features, found = [np.moveaxis(map_, 3, 1) for map_ in features], np.moveaxis(found, 3, 1)
    features = [np.ascontiguousarray(map_.astype("float32")) for map_ in features]
    expected = by_torchvision(features, rois, 7, sampling_ratio).numpy()
    tolerance = 10 * TOLERANCE[dtype]  # coordinates are larger than in the other tests
    np.testing.assert_allclose(found, expected, tolerance, tolerance)
