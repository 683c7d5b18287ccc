"""PixelsAsFilters: structure, numbers, refusals, and nothing more the second time."""

from functools import partial

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, refusals, run
from topi_ext.conv2d_nhwc.choose_plan import plan_for
from topi_ext.conv2d_nhwc.op import problem_of
from tvm_passes import PixelsAsFilters, subpixel_pipeline
from tvm_passes.convolution import pixels_as_filters
from tvm_passes.engine.graph import calls_of

import tvm
from tvm import relay

TARGET = "cuda -arch=sm_90"
SHAPE = 2, 12, 18, 5
ARRAY = numbers(*SHAPE).astype("float16")
LEAKY, CLIP = ("leaky_relu", 0.2), ("clip", -0.5, 0.5)


@pytest.fixture
def side(request, monkeypatch):
    """The side of the squares, also for images that are too small to gain by it."""
    monkeypatch.setattr(pixels_as_filters, "side_of_a_square", lambda problem, target: request.param)
    return request.param


def of_side(*sides):
    return pytest.mark.parametrize("side", sides, indirect=True)


def convolution(x, filters, kernel=(3, 3), dtype="float16", **options):
    weight = numbers(filters, *kernel, int(x.type_annotation.shape[3])) / 5
    options = {"padding": (kernel[0] // 2, kernel[1] // 2), **options}
    if options.get("activation") == "prelu":
        options["slope"] = relay.const(numbers(filters, seed=3).astype(dtype))
    return topi_ext.conv2d_nhwc(x, options.pop("weight", relay.const(weight.astype(dtype))), **options)


def of(filters, shape=SHAPE, **options):
    x = relay.var("x", shape=shape, dtype="float16")
    return module(x, convolution(x, filters, **options))


def bias(filters):
    return relay.const(numbers(filters, seed=4))


OPTIONS = {
    "plain": (3, {"filters": 3}),
    "bias": (2, {"filters": 3, "bias": bias(3), "kernel": (5, 5)}),
    "activations": (2, {"filters": 2, "bias": bias(2), "activation": LEAKY, "final_activation": CLIP}),
    "slope": (2, {"filters": 3, "activation": "prelu", "kernel": (4, 3), "padding": (1, 1, 2, 1)}),
    "unlike padding": (3, {"filters": 1, "kernel": (1, 5), "padding": (0, 4, 6, 0)}),
    "block": (2, {"filters": 12, "bias": bias(12), "block_size": 2, "activation": "prelu"}),
    "other block": (3, {"filters": 12, "bias": bias(12), "block_size": 2, "activation": "prelu"}),
    "large block": (2, {"filters": 18, "bias": bias(18), "block_size": 3, "activation": LEAKY}),
}


@pytest.mark.parametrize("side, options", OPTIONS.values(), ids=OPTIONS, indirect=["side"])
def test_the_same_numbers(side, options):
    before = of(**options)
    (conv,) = calls_of(before, "topi_ext.conv2d_nhwc")
    after = assert_same_numbers(PixelsAsFilters(TARGET), before, ARRAY, rtol=2e-3, atol=2e-3)
    (strided,) = calls_of(after, "topi_ext.conv2d_nhwc")
    filters, rows, columns, _ = map(int, strided.args[1].checked_type.shape)
    assert filters == options["filters"] * side**2
    assert (rows, columns) == tuple(extent + side - 1 for extent in options.get("kernel", (3, 3)))
    assert [*map(int, strided.attrs["strides"])] == [side, side]
    assert int(strided.attrs["block_size"]) == side * int(conv.attrs["block_size"])
    assert_no_second_change(PixelsAsFilters(TARGET), after)


@of_side(2)
@pytest.mark.parametrize("arch", [80, 90])
def test_on_the_emulated_device(emulated_cuda, side, arch):
    emulated_cuda.set_arch(arch)
    mod = of(12, bias=bias(12), block_size=2, kernel=(5, 5), activation="prelu")
    after, _ = apply(PixelsAsFilters(TARGET), mod)
    found, expected = emulated_cuda.run_relay(after, ARRAY), run(mod, ARRAY)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-3, atol=2e-3)


def with_residual():
    x = relay.var("x", shape=SHAPE, dtype="float16")
    more = relay.var("more", shape=(*SHAPE[:3], 3), dtype="float16")
    return module(x, more, convolution(x, 3, residual=more))


def with_argument(name, shape, **options):
    x = relay.var("x", shape=SHAPE, dtype="float16")
    given = relay.var(name, shape=shape, dtype="float16")
    return module(x, given, convolution(x, 3, **{name: given}, **options))


REFUSALS = {
    "the 11x18 pixels of the result are no squares of 2x2": partial(of, 3, padding=(1, 1, 0, 1)),
    "the 12x17 pixels of the result are no squares of 2x2": partial(of, 3, padding=(1, 0, 1, 1)),
    "the kernel is dilated: its windows are not shifted by whole taps": partial(of, 3, dilation=2, padding=2),
    "a residual is added, which depth to space does not allow": with_residual,
    "the weight is not constant": partial(with_argument, "weight", (3, 3, 3, 5)),
    "the bias is not constant": partial(with_argument, "bias", (3,)),
}


@of_side(2)
@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(side, reason):
    mod = REFUSALS[reason]()
    after, report = apply(PixelsAsFilters(TARGET), mod)
    assert after.same_as(mod) and refusals(report) == [reason]


@of_side(2)
@pytest.mark.parametrize("options", [{"strides": 2}, {"strides": (1, 2)}, {"groups": 5}])
def test_no_candidates(side, options):
    x = relay.var("x", shape=SHAPE, dtype="float16")
    weight = relay.const(np.ones((5, 3, 3, 5 // options.get("groups", 1)), "float16"))
    mod = module(x, convolution(x, 5, weight=weight, **options))
    after, report = apply(PixelsAsFilters(TARGET), mod)
    assert after.same_as(mod) and not refusals(report)


LARGE = 1, 256, 256, 64


@pytest.mark.parametrize("filters, kernel", [(1, (3, 3)), (12, (5, 5)), (8, (3, 5))])
def test_few_filters_of_many_pixels(filters, kernel):
    mod = of(filters, LARGE, kernel=kernel)
    after, _ = apply(PixelsAsFilters(TARGET), mod)
    (conv,) = calls_of(after, "topi_ext.conv2d_nhwc")
    assert int(conv.attrs["block_size"]) == 2
    problem = problem_of([argument.checked_type for argument in conv.args], conv.attrs)
    assert all(plan_for(problem, arch).fits for arch in (75, 80, 90))


@pytest.mark.parametrize(
    "filters, shape, options, target",
    [
        (13, LARGE, {}, TARGET),
        (3, (1, 256, 256, 32), {}, TARGET),
        (3, (1, 255, 256, 64), {}, TARGET),
        (3, LARGE, {"kernel": (1, 3), "padding": (0, 1)}, TARGET),
        (3, LARGE, {}, None),
        (3, LARGE, {}, "llvm"),
        (3, LARGE, {}, "cuda -arch=sm_70"),
    ],
)
def test_what_gains_nothing(filters, shape, options, target):
    mod = of(filters, shape, **options)
    after, report = apply(PixelsAsFilters(target), mod)
    assert after.same_as(mod) and not refusals(report)


@pytest.mark.parametrize("arch, side", [(75, 2), (80, 1), (90, 2)])
def test_windows_that_fit_into_shared_memory_or_never_did(arch, side):
    """With 80, only the convolution as it is loads the pixels of a tile once."""
    mod = relay.transform.InferType()(of(12, (1, 256, 256, 256), kernel=(5, 5)))
    (conv,) = calls_of(mod, "topi_ext.conv2d_nhwc")
    assert wanted_side(conv, arch) == side


def wanted_side(conv, arch):
    problem = problem_of([argument.checked_type for argument in conv.args], conv.attrs)
    return pixels_as_filters.side_of_a_square(problem, tvm.target.Target(f"cuda -arch=sm_{arch}"))


@pytest.mark.parametrize("arch, side", [(75, 1), (80, 2)])
def test_types_that_tensor_cores_multiply(arch, side):
    x = relay.var("x", shape=LARGE, dtype="bfloat16")
    weight = relay.cast(relay.const(np.ones((3, 3, 3, 64), "float32")), "bfloat16")
    mod = module(x, topi_ext.conv2d_nhwc(x, weight, padding=1))
    mod = relay.transform.FoldConstant()(relay.transform.InferType()(mod))
    (conv,) = calls_of(mod, "topi_ext.conv2d_nhwc")
    assert wanted_side(conv, arch) == side


def test_in_the_pipeline():
    """Of 11 filters, to which cuDNN would need five more, pixels are computed instead."""
    x = relay.var("x", shape=(1, 128, 256, 256))
    weight = relay.const(numbers(11, 128, 3, 3))
    mod = module(x, relay.nn.conv2d(x, weight, padding=1, channels=11, kernel_size=(3, 3)))
    (conv,) = calls_of(subpixel_pipeline(f"{TARGET} -libs=cudnn-frontend")(mod), "topi_ext.conv2d_nhwc")
    assert [int(extent) for extent in conv.args[1].checked_type.shape] == [44, 4, 4, 128]
