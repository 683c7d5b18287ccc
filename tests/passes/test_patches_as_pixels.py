"""PatchesAsPixels: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import topi_ext
from tests.helpers import apply, assert_same_numbers, module, numbers, ops, refusals, run
from tests.passes.test_pipelines_compile import imported
from topi_ext.conv2d_nhwc import reference
from tvm_passes import PatchesAsPixels, detection_pipeline
from tvm_passes.convolution import patches_as_pixels
from tvm_passes.engine.graph import calls_of

from tvm import relay

CONV = "topi_ext.conv2d_nhwc"
TARGET = "cuda -arch=sm_90 -libs=cudnn-frontend"
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


@pytest.fixture
def of_any_type(monkeypatch):
    """Also types that tensor cores do not multiply, and as many channels as they take."""
    monkeypatch.setattr(patches_as_pixels, "is_better", lambda problem, target: True)


def of(shape=(2, 8, 12, 3), kernel=(4, 4), filters=8, dtype="float16", weight=None, **options):
    x = relay.var("x", shape=shape, dtype=dtype)
    if weight is None:
        channels = shape[3] // options.get("groups", 1)
        weight = relay.const(numbers(filters, *kernel, channels).astype(dtype) / 9)
    return module(x, topi_ext.conv2d_nhwc(x, weight, **{"strides": kernel, **options}))


@pytest.mark.usefixtures("of_any_type")
@settings(max_examples=60, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda kernel: max(kernel) > 1),
    patches=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    behind=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    channels=st.integers(1, 7),
)
def test_any_patches(kernel, patches, behind, channels):
    """The same sums of integers, to the bit, also where pixels are left behind the last patch."""
    rng = np.random.default_rng(0)
    size = [count * taps + min(more, taps - 1) for count, taps, more in zip(patches, kernel, behind)]
    array = rng.integers(-9, 9, (2, *size, channels)).astype("float32")
    weight = rng.integers(-9, 9, (3, *kernel, channels)).astype("float32")
    mod = of(array.shape, kernel, dtype="float32", weight=relay.const(weight))
    after, _ = apply(PatchesAsPixels(), mod)
    (call,) = calls_of(after, CONV)
    shape, filters = (tuple(map(int, argument.checked_type.shape)) for argument in call.args[:2])
    assert shape[:3] == (2, *patches) and shape[3] % 8 == 0 and filters == (3, 1, 1, shape[3])
    np.testing.assert_array_equal(run(after, array)[0], reference.conv2d_nhwc(array, weight, strides=kernel))


@pytest.mark.usefixtures("of_any_type")
def test_what_follows_in_the_kernel_stays():
    x, more = relay.var("x", shape=(1, 8, 12, 3)), relay.var("more", shape=(1, 2, 3, 8))
    weight, bias = relay.const(numbers(8, 4, 4, 3) / 9), relay.const(numbers(8, seed=4))
    options = {"strides": 4, "activation": "gelu", "final_activation": "relu"}
    mod = module(x, more, topi_ext.conv2d_nhwc(x, weight, bias, residual=more, **options))
    arrays = numbers(1, 8, 12, 3), numbers(1, 2, 3, 8, seed=1)
    after = assert_same_numbers(PatchesAsPixels(), mod, *arrays, rtol=1e-5, atol=1e-5)
    assert ops(after) == ["reshape", "transpose", "reshape", CONV]


@pytest.mark.usefixtures("of_any_type")
def test_two_convolutions_of_one_image():
    x = relay.var("x", shape=(1, 8, 8, 3))
    y = [topi_ext.conv2d_nhwc(x, relay.const(numbers(8, 4, 4, 3, seed=seed)), strides=4) for seed in (0, 1)]
    mod = module(x, relay.Tuple(y))
    after = assert_same_numbers(PatchesAsPixels(), mod, numbers(1, 8, 8, 3), rtol=1e-4, atol=1e-4)
    assert ops(after) == ["reshape", "transpose", "reshape", CONV, CONV]


def test_by_our_kernel(emulated_cuda):
    mod, array = of(kernel=(2, 2), activation="relu"), numbers(2, 8, 12, 3).astype("float16")
    after, _ = apply(PatchesAsPixels(TARGET), mod)
    assert "nn.pad" in ops(after)  # four channels of a pixel, sixteen of a patch
    (found,), (expected,) = emulated_cuda.run_relay(after, array), run(mod, array)
    np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), **CLOSE)


class Patches(nn.Module):
    """How a vision transformer begins."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 16, 8, stride=8), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.embed(x).flatten(2).transpose(1, 2))


def test_a_vision_transformer():
    torch.manual_seed(0)
    mod = imported(Patches().eval(), torch.rand(1, 3, 32, 24))
    after = detection_pipeline(TARGET)(mod)
    (call,) = calls_of(after, CONV)
    shapes = [tuple(map(int, argument.checked_type.shape)) for argument in call.args[:2]]
    assert shapes == [(1, 4, 3, 192), (16, 1, 1, 192)]


def with_weight():
    weight = relay.var("weight", shape=(8, 4, 4, 3), dtype="float16")
    x = relay.var("x", shape=(1, 8, 8, 3), dtype="float16")
    return module(x, weight, topi_ext.conv2d_nhwc(x, weight, strides=4))


REFUSALS = {
    "the image is padded: its patches do not begin at its first pixel": lambda: of(padding=1),
    "the kernel is dilated: its taps are no patch": lambda: of(kernel=(2, 2), dilation=2),
    "the weight is not constant": with_weight,
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    mod = REFUSALS[reason]()
    after, report = apply(PatchesAsPixels(TARGET), mod)
    assert after.same_as(mod) and refusals(report) == [reason]


@pytest.mark.parametrize(
    "target, options",
    [
        (TARGET, {"strides": 2}),
        (TARGET, {"kernel": (1, 1)}),
        (TARGET, {"shape": (1, 8, 8, 4), "groups": 4}),
        (TARGET, {"shape": (1, 8, 8, 8)}),
        (TARGET, {"dtype": "float32"}),
        ("cuda -arch=sm_70", {}),
        ("llvm", {}),
        (None, {}),
    ],
)
def test_no_candidates(target, options):
    mod = of(**options)
    after, report = apply(PatchesAsPixels(target), mod)
    assert after.same_as(mod) and not refusals(report)
