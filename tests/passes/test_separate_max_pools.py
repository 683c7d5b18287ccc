"""SeparateMaxPools: structure, numbers, what stays, and nothing more the second time."""

import numpy as np
import pytest

import tvm_passes
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, ops
from tvm_passes import SeparateMaxPools

from tvm import relay

SHAPES = {"NHWC": (2, 9, 11, 3), "NCHW": (2, 3, 9, 11), "NCHW3c": (2, 1, 9, 11, 3)}
SPECIAL = [np.nan, np.inf, -np.inf]


def pool(layout="NHWC", dtype="float32", pool_size=(5, 5), **attrs):
    x = relay.var("x", shape=SHAPES[layout], dtype=dtype)
    return module(x, relay.nn.max_pool2d(x, pool_size, layout=layout, **attrs))


def array(layout="NHWC", dtype="float32"):
    rng = np.random.default_rng(0)
    values = rng.integers(-100, 100, SHAPES[layout]).astype(dtype)
    if "float" in dtype:
        values.flat[rng.choice(values.size, 12, replace=False)] = SPECIAL * 4
    return values


@pytest.mark.parametrize(
    "attrs",
    [
        {"padding": (2, 2)},
        {"layout": "NCHW", "padding": (2, 2), "dtype": "int8"},
        {"layout": "NCHW3c", "padding": (2, 2)},
        {"padding": (0, 1, 4, 2), "strides": (1, 3)},
        {"padding": (1, 1), "strides": (2, 2), "ceil_mode": True},
        {"pool_size": (3, 4), "dilation": (2, 3), "padding": (1, 0, 2, 5)},
        {"pool_size": (9, 11)},
    ],
    ids=str,
)
def test_one_axis_after_the_other(attrs):
    given = {name: attrs[name] for name in ("layout", "dtype") if name in attrs}
    after = assert_same_numbers(SeparateMaxPools(), pool(**attrs), array(**given))
    assert ops(after) == ["nn.max_pool2d", "nn.max_pool2d"]
    assert_no_second_change(SeparateMaxPools(), after)


def test_one_padding_of_all_sides():
    x = relay.var("x", shape=SHAPES["NHWC"])
    call = relay.op.nn._make.max_pool2d(x, [5, 5], [1, 1], [1, 1], [2], "NHWC", "", False)
    after = assert_same_numbers(SeparateMaxPools(), module(x, call), array())
    assert ops(after) == ["nn.max_pool2d", "nn.max_pool2d"]


@pytest.mark.parametrize(
    "attrs", [{"pool_size": (2, 2)}, {"pool_size": (3, 3), "strides": (2, 2)}, {"pool_size": (1, 9)}], ids=str
)
def test_where_it_costs_as_much(attrs):
    after, _ = apply(SeparateMaxPools(), pool(**attrs))
    assert ops(after) == ["nn.max_pool2d"]


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90", None])
def test_on_all_targets(target):
    x = relay.var("x", shape=SHAPES["NCHW"])
    mod = module(x, relay.nn.max_pool2d(x, (5, 5), padding=(2, 2)))
    after = tvm_passes.subpixel_pipeline(target, dtype="float32")(mod)
    assert ops(after).count("nn.max_pool2d") == 2
