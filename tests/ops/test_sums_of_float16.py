"""Sums of float16 are as exact as the type, since they are accumulated in float32."""

import numpy as np
import pytest

from tests.helpers import module, numbers, run
from tests.ops.corrected import run_on

from tvm import relay


def relay_constant(*shape):
    """Numbers of 1/16 to 1, so that a sum of thousands is large, and exact in float32."""
    return relay.const((np.random.default_rng(1).integers(1, 17, shape) / 16).astype("float16"))


SUMS_OF_FLOAT16 = {
    "conv1d": ((1, 512, 6), lambda x: relay.nn.conv1d(x, relay_constant(4, 512, 3))),
    "conv2d": (
        (1, 512, 6, 6),
        lambda x: relay.nn.conv2d(x, relay_constant(4, 512, 3, 3), channels=4, kernel_size=(3, 3)),
    ),
    "conv2d grouped": (
        (1, 512, 6, 6),
        lambda x: relay.nn.conv2d(x, relay_constant(4, 256, 3, 3), groups=2, channels=4, kernel_size=(3, 3)),
    ),
    "conv2d depthwise": (
        (1, 4, 20, 20),
        lambda x: relay.nn.conv2d(
            x, relay_constant(4, 1, 17, 17), groups=4, channels=4, kernel_size=(17, 17)
        ),
    ),
    "conv2d NHWC": (
        (1, 6, 6, 512),
        lambda x: relay.nn.conv2d(x, relay_constant(3, 3, 512, 4), data_layout="NHWC", kernel_layout="HWIO"),
    ),
    "conv3d": ((1, 512, 3, 3, 3), lambda x: relay.nn.conv3d(x, relay_constant(4, 512, 2, 2, 2))),
    "conv1d transposed": (
        (1, 512, 6),
        lambda x: relay.nn.conv1d_transpose(x, relay_constant(512, 4, 3), channels=4, kernel_size=(3,)),
    ),
    "conv2d transposed": (
        (1, 512, 6, 6),
        lambda x: relay.nn.conv2d_transpose(x, relay_constant(512, 4, 3, 3), channels=4, kernel_size=(3, 3)),
    ),
    "conv3d transposed": (
        (1, 512, 3, 3, 3),
        lambda x: relay.nn.conv3d_transpose(
            x, relay_constant(512, 4, 2, 2, 2), channels=4, kernel_size=(2, 2, 2)
        ),
    ),
    "dense": ((3, 4096), lambda x: relay.nn.dense(x, relay_constant(5, 4096))),
    "matmul": ((3, 4096), lambda x: relay.nn.matmul(x, relay_constant(4096, 5))),
    "batch_matmul": ((2, 3, 4096), lambda x: relay.nn.batch_matmul(x, relay_constant(2, 5, 4096))),
    "sum": ((4, 4096), lambda x: relay.sum(x, 1)),
    "mean": ((4, 4096), lambda x: relay.mean(x, 1)),
    "variance": ((4, 4096), lambda x: relay.variance(x, 1)),
    "cumsum": ((4, 4096), lambda x: relay.cumsum(x, 1)),
    "global_avg_pool2d": ((1, 4, 64, 64), lambda x: relay.nn.global_avg_pool2d(x)),
    "avg_pool1d": ((1, 4, 4096), lambda x: relay.nn.avg_pool1d(x, (4096,))),
    "avg_pool2d": ((1, 4, 64, 64), lambda x: relay.nn.avg_pool2d(x, (64, 64))),
    "avg_pool3d": ((1, 4, 16, 16, 16), lambda x: relay.nn.avg_pool3d(x, (16, 16, 16))),
    "adaptive_avg_pool1d": ((1, 4, 4096), lambda x: relay.nn.adaptive_avg_pool1d(x, 1)),
    "adaptive_avg_pool3d": ((1, 4, 16, 16, 16), lambda x: relay.nn.adaptive_avg_pool3d(x, (1, 1, 1))),
}


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", SUMS_OF_FLOAT16)
def test_sums_of_float16_are_as_exact_as_the_type(emulated_cuda, target, name):
    shape, function = SUMS_OF_FLOAT16[name]
    array = (np.random.default_rng(0).integers(1, 17, shape) / 16).astype("float16")

    def outcome(dtype, target):
        x = relay.var("x", shape=shape, dtype="float16")
        mod = relay.transform.InferType()(module(x, function(x)))
        if dtype == "float32":
            mod = relay.transform.InferType()(widened(mod))
        return run_on(target, emulated_cuda, mod, array.astype(dtype))

    found, expected = outcome("float16", target), outcome("float32", "llvm")
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=1e-3)


AVERAGES_OF_FEW = {
    "1d": ((1, 4, 90), lambda x: relay.nn.avg_pool1d(x, (9,), (9,))),
    "2d": ((1, 6, 8, 8), lambda x: relay.nn.avg_pool2d(x, (3, 3), padding=(1, 1))),
    "2d in NHWC": ((1, 8, 8, 16), lambda x: relay.nn.avg_pool2d(x, (3, 3), layout="NHWC")),
    "2d of what is inside": (
        (1, 6, 8, 8),
        lambda x: relay.nn.avg_pool2d(x, (3, 3), padding=(1, 1), count_include_pad=False),
    ),
    "3d": ((1, 4, 6, 6, 6), lambda x: relay.nn.avg_pool3d(x, (2, 2, 2))),
}


@pytest.mark.parametrize("name", AVERAGES_OF_FEW)
def test_averages_of_few_float16_are_rounded_once(name):
    """Of numbers of both signs, most of which cancel out."""
    shape, function = AVERAGES_OF_FEW[name]
    array = numbers(*shape, dtype="float16")
    x, wide = (relay.var("x", shape=shape, dtype=dtype) for dtype in ("float16", "float32"))
    (found,) = run(module(x, function(x)), array)
    (expected,) = run(module(wide, function(wide)), array.astype("float32"))
    np.testing.assert_allclose(found, expected, rtol=2**-11, atol=2**-24)


def widened(mod):
    """The same module in float32."""

    class Widen(relay.ExprMutator):
        def visit_var(self, var):
            return self.variables.setdefault(var, relay.var(var.name_hint, shape=var.type_annotation.shape))

        def visit_constant(self, constant):
            return relay.const(constant.data.numpy().astype("float32"))

    widen = Widen()
    widen.variables = {}
    body = widen.visit(mod["main"].body)
    return module(*map(widen.visit, mod["main"].params), body)
