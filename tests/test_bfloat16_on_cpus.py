"""Operators of bfloat16 on LLVM, of which TVM has no code for vectors: they compile, and are right."""

import numpy as np
import pytest

import tvm_passes
from tests.helpers import numbers, run
from tests.models.super_resolution import channels_of, super_resolution_model
from tests.models.zoo import random_image
from topi_ext import cpu_target
from topi_ext.conv2d_nhwc import onednn

import tvm
from tvm import relay

SHAPE = (1, 6, 8, 32)


def x_type(x):
    return x.type_annotation.dtype if isinstance(x, relay.Var) else "bfloat16"


OPERATORS = {
    "add": lambda x: relay.nn.relu(relay.add(x, x)),
    "pool": lambda x: relay.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
    "mean": lambda x: relay.mean(x, axis=[1, 2]),
    "resize": lambda x: relay.image.resize2d(x, (12, 16), layout="NHWC", rounding_method=""),
    "concatenate": lambda x: relay.concatenate([relay.nn.relu(x), x], axis=3),
    "concatenate in runs": lambda x: relay.concatenate([x, relay.nn.relu(x), x, x], axis=3),
    "concatenate few": lambda x: relay.concatenate([x, relay.strided_slice(x, [0], [3], axes=[3])], axis=3),
    "concatenate, and more": lambda x: relay.add(
        relay.concatenate([x, x], axis=3), relay.const(1, x_type(x))
    ),
    "transpose": lambda x: relay.layout_transform(x, "NHWC", "NCHW"),
    "softmax": lambda x: relay.nn.softmax(x, axis=3),
}


@pytest.mark.parametrize("batch", [1, relay.Any()], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OPERATORS)
def test_as_in_float32(name, batch):
    x = relay.var("x", shape=(batch, *SHAPE[1:]))
    half = relay.cast(OPERATORS[name](relay.cast(x, "bfloat16")), "float32")
    found, expected = (
        run(tvm.IRModule.from_expr(relay.Function([x], each)), numbers(*SHAPE))[0]
        for each in (half, OPERATORS[name](x))
    )
    np.testing.assert_allclose(found, expected, rtol=2**-6, atol=2**-6)


def filters(x, *shape):
    return relay.cast(relay.const(numbers(*shape, seed=1)), x_type(x))


CONVOLUTIONS = {
    "in groups": (
        (1, 4, 6, 8),
        lambda x: relay.nn.conv2d(x, filters(x, 4, 2, 3, 3), padding=(1, 1), groups=2),
    ),
    "of channels": (
        (1, 6, 8, 4),
        lambda x: relay.nn.conv2d(
            x, filters(x, 3, 3, 4, 1), groups=4, channels=4, data_layout="NHWC", kernel_layout="HWOI"
        ),
    ),
    "transposed": (
        (1, 4, 6, 8),
        lambda x: relay.nn.conv2d_transpose(
            x, filters(x, 4, 3, 2, 2), (2, 2), channels=3, kernel_size=(2, 2), out_dtype="float32"
        ),
    ),
    "1d": ((1, 4, 8), lambda x: relay.nn.conv1d(x, filters(x, 3, 4, 3), kernel_size=3, channels=3)),
    "1d transposed": (
        (1, 4, 8),
        lambda x: relay.nn.conv1d_transpose(x, filters(x, 4, 3, 3), kernel_size=(3,), channels=3),
    ),
    "3d": ((1, 4, 3, 4, 5), lambda x: relay.nn.conv3d(x, filters(x, 3, 4, 1, 3, 3))),
    "3d transposed": (
        (1, 4, 3, 4, 5),
        lambda x: relay.nn.conv3d_transpose(x, filters(x, 4, 3, 1, 3, 3), channels=3, kernel_size=(1, 3, 3)),
    ),
    "deformable": (
        (1, 4, 6, 8),
        lambda x: relay.nn.deformable_conv2d(
            x, filters(x, 1, 18, 4, 6), filters(x, 3, 4, 3, 3), channels=3, kernel_size=(3, 3)
        ),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_do_not_take_bfloat16_for_integers(name):
    shape, compute = CONVOLUTIONS[name]
    x = relay.var("x", shape=shape)
    half = relay.cast(relay.nn.relu(compute(relay.cast(x, "bfloat16"))), "float32")
    found, expected = (
        run(tvm.IRModule.from_expr(relay.Function([x], each)), numbers(*shape))[0]
        for each in (half, relay.nn.relu(compute(x)))
    )
    np.testing.assert_allclose(found, expected, atol=2**-6 * expected.max())


def test_tensors_of_bfloat16_whose_batch_only_the_run_knows():
    """Not only between two kernels."""
    half = pytest.importorskip("ml_dtypes").bfloat16
    x = relay.var("x", shape=(relay.Any(), *SHAPE[1:]), dtype="bfloat16")
    array = numbers(3, *SHAPE[1:]).astype(half)
    (found,) = run(tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x + x))), array)
    np.testing.assert_array_equal(found.view(half), np.maximum(array + array, half(0)))


@pytest.mark.skipif(not onednn.multiplies("bfloat16"), reason="oneDNN has no bfloat16 for this processor")
def test_a_network_by_onednn():
    from frontends import from_pytorch

    model = super_resolution_model("espcn").eval()
    image = random_image(24, 32)[None, : channels_of("espcn")]
    mod, params = from_pytorch(model, image)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    target = cpu_target()
    half, full = (
        tvm_passes.runtime.compile(tvm_passes.subpixel_pipeline(target, dtype)(mod), target)(image.numpy())
        for dtype in ("bfloat16", "float32")
    )
    np.testing.assert_allclose(half, full, atol=0.02 * np.abs(full).max())
    assert np.abs(half - full).max() > 0
