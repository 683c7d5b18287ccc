"""Preprocessing, on LLVM and the emulated CUDA device: as the oracle and torch's own operators."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.preprocess import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
MEAN, STD = [123.675, 116.28, 103.53, 90.0], [58.395, 57.12, 57.375, 60.0]
TOLERANCE = {"rtol": 1e-5, "atol": 3e-6}
LAYOUTS = ("NCHW", "NHWC")


def images(height, width, count=1, channels=3, dtype="uint8", layout="NHWC", seed=0):
    """Noise, the hardest to resize rightly; between 0 and 1, or 0 and 255 for uint8."""
    shape = {"N": count, "H": height, "W": width, "C": channels}
    noise = np.random.default_rng(seed).random([shape[axis] for axis in layout], "float32")
    return (noise * 256).astype("uint8") if dtype == "uint8" else noise.astype(dtype)


def options_for(image, size, **options):
    """All options, with the mean and the deviation of images of this type."""
    layout = options.get("image_layout", "NHWC")
    channels, scale = image.shape[layout.index("C")], 1 if image.dtype == "uint8" else 1 / 255
    mean, std = ([value * scale for value in values[:channels]] for values in (MEAN, STD))
    return {"mean": mean, "std": std, "size": size, **options}


def function_of(image, dynamic=False, **options):
    shape = (relay.Any(), *image.shape[1:]) if dynamic else image.shape
    variable = relay.var("image", shape=shape, dtype=str(image.dtype))
    return relay.Function([variable], topi_ext.preprocess(variable, **options))


def on_llvm(image, dynamic=False, **options):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function_of(image, dynamic, **options)), "llvm")
    machine = VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
    return machine.invoke("main", tvm.nd.array(image)).numpy()


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(image, dynamic=False, **options):
        function = function_of(image, dynamic, **options)
        return cuda.run_relay(function, image, executor="vm" if dynamic else "graph")[0]

    return on_cuda


def assert_close(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def assert_right(run, image, size, **options):
    options = options_for(image, size, **options)
    assert_close(run(image, **options), reference.preprocess(image, **options))


def by_torch(image, size, padded_size, mean, std):
    """As torchvision's detectors do, but in float64, in which torch's places between pixels are exact too."""
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    planes = (torch.from_numpy(image).permute(0, 3, 1, 2).double() - mean) / std
    planes = functional.interpolate(planes, size, mode="bilinear", align_corners=False)
    (height, width), (padded_height, padded_width) = size, padded_size
    return functional.pad(planes, (0, padded_width - width, 0, padded_height - height)).float().numpy()


# --- what it answers


@pytest.mark.parametrize(
    "given, size, padded_size",
    [((37, 53), (20, 31), (32, 32)), ((21, 16), (50, 45), (50, 64)), ((90, 7), (31, 40), (31, 40))],
)
def test_as_torch(run, given, size, padded_size):
    image = images(*given, count=2)
    options = options_for(image, size, padded_size=padded_size)
    expected = by_torch(image, size, padded_size, options["mean"], options["std"])
    assert_close(run(image, **options), expected)
    assert_close(reference.preprocess(image, **options), expected)


@pytest.mark.parametrize("layout, channels", [("NCHW", 3), ("NHWC", 4)])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_of_several_tensors(request, target, layout, channels):
    arrays = [images(19, 23), images(30, 20, count=2, dtype="float32", seed=1), images(14, 32, seed=2)]
    options = options_for(arrays[0], (14, 32), padded_size=(15, 36), layout=layout, padded_channels=channels)
    options["dtype"] = "float16"
    variables = [relay.var(f"x{n}", shape=each.shape, dtype=str(each.dtype)) for n, each in enumerate(arrays)]
    function = relay.Function(variables, topi_ext.preprocess(variables, **options))
    if target == "cuda":
        (found,) = request.getfixturevalue("emulated_cuda").run_relay(function, *arrays)
    else:
        library = relay.vm.compile(tvm.IRModule.from_expr(function), "llvm")
        machine = VirtualMachine(library, tvm.cpu(), memory_cfg="naive")
        found = machine.invoke("main", *map(tvm.nd.array, arrays)).numpy()
    expected = reference.preprocess(arrays, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape) and len(found) == 4
    np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), rtol=2e-3, atol=2e-3)


def test_several_tensors_are_of_known_number():
    xs = [relay.var("x", shape=(relay.Any(), 4, 5, 3), dtype="uint8") for _ in range(2)]
    options = {"size": (4, 5), "mean": MEAN[:3], "std": STD[:3]}
    with pytest.raises(tvm.TVMError, match="N must be known of each"):
        relay.transform.InferType()(tvm.IRModule.from_expr(topi_ext.preprocess(xs, **options)))
    with pytest.raises(ValueError, match="1 to 32 tensors of images, not 0"):
        topi_ext.preprocess([], **options)


@pytest.mark.parametrize("image_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
def test_layouts_and_types(run, dtype, image_layout, layout):
    image = images(19, 23, count=2, dtype=dtype, layout=image_layout)
    layouts = {"image_layout": image_layout, "layout": layout}
    assert_right(run, image, (14, 32), padded_size=(15, 36), swap_channels=True, **layouts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padded_size", [(16, 20), (15, 21)])
def test_float16_is_rounded_once(run, layout, padded_size):
    image = images(19, 23)
    options = options_for(image, (13, 17), padded_size=padded_size, layout=layout)
    exact, half = (run(image, dtype=dtype, **options) for dtype in ("float32", "float16"))
    np.testing.assert_array_equal(half, exact.astype("float16"))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels(run, channels):
    image = images(9, 11, channels=channels)
    assert_right(run, image, (6, 8), layout="NHWC", swap_channels=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_of_zeros(run, channels, dtype, layout):
    image = images(9, 11, count=2, channels=channels)
    options = {"padded_size": (7, 9), "swap_channels": True, "layout": layout, "dtype": dtype}
    options = options_for(image, (6, 8), **options)
    found = run(image, padded_channels=4, **options)
    np.testing.assert_array_equal(np.moveaxis(found, layout.index("C"), 3)[..., channels:], 0)
    np.testing.assert_array_equal(found.take(range(channels), layout.index("C")), run(image, **options))
    expected = reference.preprocess(image, padded_channels=4, **options)
    assert found.shape == expected.shape and found.dtype == dtype
    np.testing.assert_allclose(found.astype("float32"), expected, rtol=1e-3, atol=1e-3)


# --- sizes


@pytest.mark.parametrize(
    "given, size",
    [
        ((1, 1), (1, 1)),
        ((1, 1), (3, 5)),
        ((6, 7), (1, 1)),
        ((1, 9), (4, 9)),
        ((9, 1), (9, 4)),
        ((2, 2), (7, 1)),
    ],
)
def test_small_sizes(run, given, size):
    assert_right(run, images(*given), size, padded_size=(size[0] + 2, size[1]))


@pytest.mark.parametrize("size", [(12, 18), (12, 7), (5, 18)])
def test_a_side_that_keeps_its_length(run, size):
    image = images(12, 18)
    assert_right(run, image, size, padded_size=(13, 21))
    if size == (12, 18):
        found = run(image, size=size, padded_size=(16, 18), mean=[0] * 3, std=[1] * 3)
        np.testing.assert_array_equal(found[:, :, :12].transpose(0, 2, 3, 1), image)
        assert not found[:, :, 12:].any()


@settings(max_examples=25, deadline=None)
@given(
    given=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    padding=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_any_sizes(given, size, padding):
    padded_size = tuple(map(sum, zip(size, padding)))
    assert_right(on_llvm, images(*given), size, padded_size=padded_size)


@pytest.mark.parametrize("given, size", [((1080, 1920), (750, 1333)), ((3, 16384), (2, 16383))])
def test_places_are_exact_in_long_images(given, size):
    assert_right(on_llvm, images(*given), size)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_number_of_images(run, count, dynamic, layout):
    image = images(8, 6, count=max(count, 1))[:count]
    options = options_for(image, (5, 7), padded_size=(8, 8), layout=layout)
    found = run(image, dynamic=dynamic, **options)
    assert_close(found, reference.preprocess(image, **options))


def test_what_is_not_finite_stays_where_it_is(run):
    image = images(16, 12, dtype="float32")
    image[0, 8, 5] = [NAN, INF, -INF]
    options = options_for(image, (11, 23))
    found = run(image, **options)
    far = np.isfinite(reference.preprocess(np.where(np.isfinite(image), image, 0), **options))
    near = ~np.isfinite(found)
    rows, columns = np.nonzero(near[0].any(axis=0))
    assert far.all() and near.any() and set(rows) <= set(range(4, 8)) and set(columns) <= set(range(7, 14))


# --- what it refuses


@pytest.mark.parametrize(
    "shape, dtype, reason",
    [
        ((1, 8, 6, 3), "int32", "image must be of type uint8, float32, float16, not int32"),
        ((8, 6, 3), "uint8", "image must have the shape"),
        ((1, 3, 8, 6), "uint8", "the 3 channels of mean and std in NHWC"),
        ((1, 8, relay.Any(), 3), "uint8", "height and width of image must be known"),
        ((1, 0, 6, 3), "uint8", "from 1 to 16384"),
        ((1, 8, 20000, 3), "uint8", "from 1 to 16384"),
    ],
)
def test_images_that_it_cannot_take_are_refused(shape, dtype, reason):
    variable = relay.var("image", shape=shape, dtype=dtype)
    call = topi_ext.preprocess(variable, (4, 5), mean=MEAN[:3], std=STD[:3])
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([variable], call)))


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"size": (0, 5)}, "size must be two numbers from 1 to"),
        ({"size": (20000, 5)}, "size must be two numbers from 1 to"),
        ({"padded_size": (3, 5)}, "smaller than size"),
        ({"mean": [1, 2]}, "a number for each of 1 to 4 channels"),
        ({"mean": [], "std": []}, "a number for each of 1 to 4 channels"),
        ({"mean": [0] * 5, "std": [1] * 5}, "a number for each of 1 to 4 channels"),
        ({"std": [1, 0, 1]}, "std not 0"),
        ({"mean": [1, NAN, 1]}, "must be finite"),
        ({"layout": "CHWN"}, "layout must be NCHW or NHWC"),
        ({"image_layout": "NCWH"}, "image_layout must be NCHW or NHWC"),
        ({"dtype": "uint8"}, "dtype must be float32 or float16"),
        ({"padded_channels": 5}, "padded_channels must be 4, or 3 as mean has, not 5"),
    ],
)
def test_wrong_options_are_refused(wrong, reason):
    options = {"size": (4, 5), "mean": MEAN[:3], "std": STD[:3], **wrong}
    with pytest.raises(ValueError, match=f"preprocess: .*{reason}"):
        topi_ext.preprocess(relay.var("image", shape=(1, 8, 6, 3), dtype="uint8"), **options)


# --- the CUDA kernel itself


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize(
    "layout, dtype, channels, stores",
    [
        ("NHWC", "float16", 3, "*(half2*)(preprocess"),
        ("NCHW", "float16", 3, "*(half2*)(preprocess"),
        ("NCHW", "float32", 3, ""),
        ("NHWC", "float16", 4, "*(half4*)(preprocess"),
        ("NHWC", "float32", 4, "*(float4*)(preprocess"),
    ],
)
def test_compiles_without_spills(emulated_cuda, tmp_path, layout, dtype, channels, stores):
    image = images(1080, 1920)
    result = {"layout": layout, "dtype": dtype, "padded_channels": channels}
    options = options_for(image, (750, 1333), padded_size=(768, 1344), **result)
    relay.build(tvm.IRModule.from_expr(function_of(image, **options)), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    assert stores in source and "__syncthreads" not in source
    assert_compiles_without_spills(source, tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("image_dtype, image_layout", [("uint8", "NHWC"), ("float32", "NCHW")])
@pytest.mark.parametrize("padded_size", [(768, 1344), (751, 1333)])
def test_on_gpu(padded_size, image_dtype, image_layout, layout, dtype):
    image = images(1080, 1920, count=2, dtype=image_dtype, layout=image_layout)
    layouts = {"image_layout": image_layout, "layout": layout}
    options = options_for(image, (750, 1333), padded_size=padded_size, **layouts)
    function = function_of(image, dynamic=True, dtype=dtype, **options)
    target = tvm.target.Target("cuda", host="llvm")
    machine = VirtualMachine(relay.vm.compile(tvm.IRModule.from_expr(function), target), tvm.cuda(0))
    found = machine.invoke("main", tvm.nd.array(image, tvm.cuda(0))).numpy()
    expected = reference.preprocess(image, **options)
    tolerance = TOLERANCE if dtype == "float32" else {"rtol": 1e-3, "atol": 1e-5}
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("float32"), expected, **tolerance)
