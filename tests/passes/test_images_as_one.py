"""ImagesAsOne: structure, numbers, and nothing more the second time."""

import numpy as np
import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from topi_ext import conv2d_nhwc
from tvm_passes import ImagesAsOne
from tvm_passes.engine.expressions import op_name, static_shape
from tvm_passes.engine.graph import Graph

from tvm import relay

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def conv(x, shape, filters=6, seed=1, **options):
    weight = relay.const(numbers(filters, *shape[1:], seed=seed))
    return conv2d_nhwc(
        x, weight, bias=relay.const(numbers(filters, seed=seed + 1)), activation="relu", **options
    )


def image(mod):
    (call,) = [node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.conv2d_nhwc"]
    return static_shape(call)[:3]


@pytest.mark.parametrize(
    "shape, expected", [((12, 3, 2, 4), (3, 4)), ((7, 1, 1, 8), (1, 7)), ((1, 2, 2, 4), (1, 1))]
)
def test_one_image(shape, expected):
    x = relay.var("x", shape=shape)
    after = assert_same_numbers(ImagesAsOne(), module(x, conv(x, shape)), numbers(*shape), **TOLERANCE)
    assert ops(after) == ["reshape", "topi_ext.conv2d_nhwc", "reshape"]
    assert image(after) == (1, *expected)
    assert_no_second_change(ImagesAsOne(), after)


def test_residual_and_strides():
    x, residual = relay.var("x", shape=(12, 3, 2, 4)), relay.var("y", shape=(12, 1, 1, 6))
    mod = module(x, residual, conv(x, (12, 3, 2, 4), residual=residual, strides=2))
    after = assert_same_numbers(ImagesAsOne(), mod, numbers(12, 3, 2, 4), numbers(12, 1, 1, 6), **TOLERANCE)
    assert image(after) == (1, 3, 4)


def test_no_reshape_between_two():
    x = relay.var("x", shape=(12, 3, 2, 4))
    y = conv(conv(x, (12, 3, 2, 4)), (12, 1, 1, 6), filters=5, seed=4)
    after = assert_same_numbers(ImagesAsOne(), module(x, y), numbers(12, 3, 2, 4), **TOLERANCE)
    assert ops(after) == ["reshape", "topi_ext.conv2d_nhwc", "topi_ext.conv2d_nhwc", "reshape"]


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((12, 3, 2, 4), (2, 2), {}),
        ((12, 3, 2, 4), (3, 2), {"padding": 1}),
        ((12, 1, 1, 4), (1, 1), {"block_size": 2, "filters": 8}),
        ((1, 1, 1, 4), (1, 1), {}),
    ],
)
def test_no_match(shape, kernel, options):
    x = relay.var("x", shape=shape)
    mod = module(x, conv(x, (shape[0], *kernel, shape[3]), **options))
    after, _ = apply(ImagesAsOne(), mod)
    assert after.same_as(mod)


def test_half():
    x = relay.var("x", shape=(12, 3, 2, 4), dtype="float16")
    weight = relay.const(np.float16(numbers(6, 3, 2, 4)))
    mod = module(x, conv2d_nhwc(x, weight))
    assert_same_numbers(ImagesAsOne(), mod, numbers(12, 3, 2, 4, dtype="float16"), rtol=1e-3, atol=1e-3)
