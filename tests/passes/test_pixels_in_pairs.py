"""PixelsInPairs: structure, numbers, refusals, and nothing more the second time."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import resnet

import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tests.helpers import convolution as layer
from tests.ops.cudnn_oracle import oracle  # noqa: F401  (a fixture)
from tests.passes.test_pipelines_compile import imported
from topi_ext.conv2d_nhwc import reference
from tvm_passes import FoldPreprocessing, PixelsInPairs, detection_pipeline, subpixel_pipeline
from tvm_passes.convolution import pixels_in_pairs
from tvm_passes.engine.graph import calls_of
from tvm_passes.quantize import calibrate

import tvm
from tvm import relay
from tvm.contrib import graph_executor

CONV = "topi_ext.conv2d_nhwc"
TARGET = "cuda -arch=sm_90 -libs=cudnn-frontend"
SHAPE = 2, 11, 14, 3
ARRAY = numbers(*SHAPE).astype("float16")
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


@pytest.fixture
def of_any_size(monkeypatch):
    """Also images that are too small to gain by it, and types that tensor cores do not multiply."""
    monkeypatch.setattr(pixels_in_pairs, "is_better", lambda problem, target: True)


def convolution(x, filters=8, kernel=(7, 7), dtype="float16", **options):
    channels = int(x.type_annotation.shape[3]) // options.get("groups", 1)
    weight = relay.const(numbers(filters, *kernel, channels).astype(dtype) / 9)
    options = {"strides": 2, "padding": (kernel[0] // 2, kernel[1] // 2), **options}
    return topi_ext.conv2d_nhwc(x, options.pop("weight", weight), **options)


def of(shape=SHAPE, dtype="float16", **options):
    x = relay.var("x", shape=shape, dtype=dtype)
    return module(x, convolution(x, dtype=dtype, **options))


def bias(filters=8):
    return relay.const(numbers(filters, seed=4))


def kernels(cuda):
    """The names of the kernels that were compiled last."""
    return set(re.findall(r"fused_(\w+)_kernel\(", cuda.sources[-1]))


# --- the same numbers


@pytest.mark.usefixtures("of_any_size")
@settings(max_examples=150, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 7)),
    padding=st.tuples(*[st.integers(0, 3)] * 4),
    channels=st.integers(1, 4),
    columns=st.integers(1, 6),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
)
def test_any_kernel_and_padding(kernel, padding, channels, columns, stride, dilation):
    """The reference finds exactly the same sums of integers, by the weights and attributes of either call."""
    rng, size = np.random.default_rng(0), (5, 2 * columns)
    weight = rng.integers(-9, 9, (2, *kernel, channels)).astype("float32")
    options = {"strides": (stride, 2), "padding": padding, "dilation": (dilation, 1)}
    if size[1] + padding[1] + padding[3] < kernel[1]:
        return
    array = rng.integers(-9, 9, (1, *size, channels)).astype("float32")
    expected = reference.conv2d_nhwc(array, weight, **options)
    after, _ = apply(PixelsInPairs(), of(array.shape, "float32", weight=relay.const(weight), **options))
    (call,) = calls_of(after, CONV)
    options = {name: tuple(map(int, call.attrs[name])) for name in options}
    assert (options["strides"] == (stride, 1) and "nn.pad" in ops(after)) or channels == 4
    pixels = np.pad(array, [(0, 0)] * 3 + [(0, 4 - channels)])
    pairs = pixels.reshape(1, size[0], columns, 8)
    np.testing.assert_array_equal(
        reference.conv2d_nhwc(pairs, call.args[1].data.numpy(), **options), expected
    )


OPTIONS = {
    "bias": {"bias": bias(), "activation": "relu"},
    "three columns": {"kernel": (3, 3), "bias": bias(), "block_size": 2, "activation": ("leaky_relu", 0.1)},
    "four channels": {"shape": (1, 6, 8, 4), "kernel": (2, 6), "padding": (0, 1, 1, 3)},
    "slope": {"kernel": (4, 4), "activation": "prelu", "slope": relay.const(numbers(8, seed=3))},
}


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_on_llvm(options):
    before = of(**options)
    array = numbers(*options.get("shape", SHAPE)).astype("float16")
    after = assert_same_numbers(PixelsInPairs(), before, array, **CLOSE)
    (call,) = calls_of(after, CONV)
    assert [int(stride) for stride in call.attrs["strides"]] == [2, 1]
    assert int(call.args[1].checked_type.shape[3]) == 8
    assert_no_second_change(PixelsInPairs(), after)


@pytest.mark.usefixtures("of_any_size")
def test_a_residual():
    x, more = relay.var("x", shape=SHAPE), relay.var("more", shape=(2, 6, 7, 8))
    y = convolution(x, dtype="float32", residual=more, final_activation="relu")
    arrays = numbers(*SHAPE), numbers(2, 6, 7, 8, seed=1)
    after = assert_same_numbers(PixelsInPairs(), module(x, more, y), *arrays, rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.pad", "reshape", CONV]


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("options", [{"kernel": (3, 3)}, {"out_dtype": "int8", "out_scale": 50.0}])
def test_by_our_kernel(emulated_cuda, options):
    mod = of(bias=bias(), activation="relu", **options)
    after, _ = apply(PixelsInPairs(), mod)
    found, expected = emulated_cuda.run_relay(after, ARRAY), run(mod, ARRAY)
    tolerance = {"atol": 1} if "out_dtype" in options else CLOSE
    np.testing.assert_allclose(found[0].astype("float32"), expected[0].astype("float32"), **tolerance)


@pytest.mark.usefixtures("small_by_cudnn")
def test_by_cudnn(emulated_cuda, oracle):  # noqa: F811
    """One kernel makes the image of four channels, from one of planes in float32, and none makes pairs."""
    emulated_cuda.target = tvm.target.Target(TARGET, host="llvm")
    x = relay.var("x", shape=(2, 3, 11, 14))
    image = relay.cast(relay.layout_transform(x, "NCHW", "NHWC"), "float16")
    weight = relay.const(numbers(64, 7, 7, 3).astype("float16") / 9)
    mod = module(x, topi_ext.conv2d_nhwc(image, weight, bias(64), strides=2, padding=3, activation="relu"))
    after, _ = apply(PixelsInPairs(TARGET), mod)
    array = numbers(2, 3, 11, 14)
    found, expected = emulated_cuda.run_relay(after, array), run(mod, array)
    np.testing.assert_allclose(found[0], expected[0], **CLOSE)
    (problem,) = oracle
    assert (problem.size, problem.channels, problem.kernel) == ((11, 7), 8, (7, 4))
    assert (problem.strides, problem.padding) == ((2, 1), (3, 2, 3, 1))
    assert kernels(emulated_cuda) == {"layout_transform_cast_nn_pad_reshape"}


@pytest.mark.usefixtures("of_any_size")
def test_preprocessing_writes_the_channel_of_zeros():
    """No kernel makes the pairs of what it writes."""
    camera = relay.var("camera", shape=(1, 9, 13, 3), dtype="uint8")
    options = {"mean": [1, 2, 3], "std": [40, 50, 60], "layout": "NHWC"}
    x = topi_ext.preprocess(camera, (10, 12), (10, 14), dtype="float16", **options)
    weight = relay.const(numbers(8, 7, 7, 3).astype("float16") / 9)
    mod = module(camera, topi_ext.conv2d_nhwc(x, weight, strides=2, padding=3))
    array = np.random.default_rng(0).integers(0, 256, (1, 9, 13, 3), "uint8")
    passes = tvm.transform.Sequential([PixelsInPairs(), FoldPreprocessing()])
    after, _ = apply(passes, mod)
    assert ops(after) == ["topi_ext.preprocess", "reshape", CONV]
    library = relay.build(after, "llvm")
    nodes = json.loads(library.get_graph_json())["nodes"]
    called = [node["attrs"]["func_name"] for node in nodes if node["op"] == "tvm_op"]
    fused = "tvmgen_default_fused_topi_ext"
    assert called == [f"{fused}_preprocess", "__nop", f"{fused}_conv2d_nhwc"]
    compiled = graph_executor.GraphModule(library["default"](tvm.cpu()))
    compiled.run(camera=array)
    np.testing.assert_allclose(compiled.get_output(0).numpy(), run(mod, array)[0], **CLOSE)


@pytest.mark.usefixtures("of_any_size")
def test_two_convolutions_of_one_image():
    x = relay.var("x", shape=SHAPE)
    y = [convolution(x, kernel=(size, size), dtype="float32") for size in (3, 7)]
    mod = module(x, relay.Tuple(y))
    after = assert_same_numbers(PixelsInPairs(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["nn.pad", "reshape", CONV, CONV]


# --- where it is not done


def with_weight():
    x = relay.var("x", shape=SHAPE, dtype="float16")
    weight = relay.var("weight", shape=(8, 7, 7, 3), dtype="float16")
    return module(x, weight, convolution(x, weight=weight))


REFUSALS = {
    "the 13 columns of the image are no pairs": partial(of, (1, 11, 13, 3)),
    "the kernel is dilated: its taps are not neighbouring pixels": partial(of, kernel=(3, 3), dilation=2),
    "the weight is not constant": with_weight,
}


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    mod = REFUSALS[reason]()
    after, report = apply(PixelsInPairs(), mod)
    assert after.same_as(mod) and refusals(report) == [reason]


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(
    "options",
    [{"strides": 1}, {"strides": (2, 1)}, {"shape": (1, 8, 8, 5)}, {"shape": (1, 8, 8, 4), "groups": 4}],
)
def test_no_candidates(options):
    mod = of(**options)
    after, report = apply(PixelsInPairs(), mod)
    assert after.same_as(mod) and not refusals(report)


LARGE = 1, 800, 1344, 3


@pytest.mark.parametrize(
    "target, options",
    [
        (TARGET, {"dtype": "float32"}),
        (TARGET, {"kernel": (1, 2), "padding": 0}),
        ("cuda -arch=sm_70 -libs=cudnn-frontend", {}),
        ("llvm", {}),
        (None, {}),
    ],
)
def test_what_gains_nothing(target, options):
    mod = of(LARGE, **options)
    after, report = apply(PixelsInPairs(target), mod)
    assert after.same_as(mod) and not refusals(report)


@pytest.mark.parametrize(
    "shape, options, padding",
    [
        (LARGE, {"filters": 64}, [3, 2, 3, 1]),
        ((1, 640, 640, 3), {"filters": 16, "kernel": (3, 3)}, [1, 1, 1, 0]),
        ((1, 640, 640, 3), {"filters": 12, "out_dtype": "int8"}, [3, 2, 3, 1]),
    ],
)
@pytest.mark.parametrize("target", [TARGET, "cuda -arch=sm_90"])
def test_what_gains(target, shape, options, padding):
    (call,) = calls_of(apply(PixelsInPairs(target), of(shape, **options))[0], CONV)
    assert [int(side) for side in call.attrs["padding"]] == padding


# --- in the pipelines


@pytest.fixture(scope="module")
def network():
    """The first layers of a ResNet, on a large image."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]).eval()
    return imported(nn.Sequential(*[*model.children()][:5]), torch.rand(1, 3, 256, 320))


def first_channels(mod):
    return int(calls_of(relay.transform.InferType()(mod), CONV)[0].args[0].checked_type.shape[3])


@pytest.mark.parametrize("pipeline", [detection_pipeline, subpixel_pipeline])
def test_the_first_convolution_of_a_resnet(network, pipeline):
    assert first_channels(pipeline(TARGET)(network)) == 8
    assert first_channels(pipeline("cuda -arch=sm_90")(network)) == 8
    assert not calls_of(pipeline("llvm")(network), CONV)


def test_in_int8_it_fits_a_calibration():
    """The first convolution reads float16, and it is the one of pairs that rounds to int8 for the second."""
    x = relay.var("x", shape=(1, 3, 12, 16))
    y = relay.nn.relu(layer(x, 16, 3, 7, strides=2))
    mod, array = module(x, layer(y, 16, 16)), numbers(1, 3, 12, 16)
    calibration = calibrate(mod, [array], subpixel_pipeline(TARGET, "int8"))
    after = relay.transform.InferType()(subpixel_pipeline(TARGET, calibration=calibration)(mod))
    first, second = calls_of(after, CONV)
    assert [int(extent) for extent in first.args[1].checked_type.shape] == [16, 7, 4, 8]
    assert first.args[0].checked_type.dtype == "float16"
    assert first.checked_type.dtype == second.args[0].checked_type.dtype == "int8"
    (expected,), (found,) = run(mod, array), run(after, array)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
