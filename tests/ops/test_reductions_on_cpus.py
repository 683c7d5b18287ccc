"""Reductions on CPUs over all axes but the innermost: the results, and that they are vectors."""

import re

import numpy as np
import pytest

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers

import tvm
from tvm import relay
from tvm.contrib import graph_executor

KINDS = {"sum": np.sum, "max": np.max}


def built(result, *inputs):
    with tvm.transform.PassContext(opt_level=3):
        return relay.build(tvm.IRModule.from_expr(relay.Function(list(inputs), result)), "llvm")


def run(lib, **inputs):
    network = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    network.run(**inputs)
    return network.get_output(0).numpy()


def sums_vectors(lib):
    code = lib.get_lib().get_source("ll")
    return re.search(r"fadd .*<\d+ x float>", code) is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 5, 24, 272])
@pytest.mark.parametrize("axes, keepdims", [((1, 2), True), ((1,), False), ((0, 1, 2), False)])
def test_reduced(kind, channels, axes, keepdims):
    x = relay.var("x", shape=(2, 3, 5, channels))
    data = numbers(2, 3, 5, channels)
    lib = built(getattr(relay, kind)(x, axes, keepdims), x)
    expected = KINDS[kind](data, axes, keepdims=keepdims)
    np.testing.assert_allclose(run(lib, x=data), expected, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int8", "float64"])
def test_other_types(dtype):
    x = relay.var("x", shape=(1, 6, 7, 48), dtype=dtype)
    data = (numbers(1, 6, 7, 48) * 3).astype(dtype)
    np.testing.assert_allclose(run(built(relay.sum(x, (1, 2)), x), x=data), data.sum((1, 2), dtype))


@pytest.mark.parametrize("kind", ["all", "any"])
def test_of_conditions(kind):
    x = relay.var("x", shape=(4, 6, 32), dtype="bool")
    data = numbers(4, 6, 32) > -1
    found = run(built(getattr(relay, kind)(x, (0, 1)), x), x=data)
    np.testing.assert_array_equal(found, getattr(np, kind)(data, (0, 1)))


def test_what_is_read_in_another_order_or_broadcast():
    x, y = relay.var("x", shape=(1, 16, 6, 7)), relay.var("y", shape=(6, 1, 16))
    data, other = numbers(1, 16, 6, 7), numbers(6, 1, 16)
    lib = built(relay.mean(relay.transpose(x, (0, 2, 3, 1)) * y, (1, 2)), x, y)
    expected = (data.transpose(0, 2, 3, 1) * other).mean((1, 2))
    np.testing.assert_allclose(run(lib, x=data, y=other), expected, 1e-5, 1e-6)


POOLS = {
    "adaptive": lambda x: relay.nn.adaptive_avg_pool2d(x, (1, 1), "NHWC"),
    "global": lambda x: relay.nn.global_avg_pool2d(x, "NHWC"),
    "mean": lambda x: relay.mean(x, (1, 2), keepdims=True),
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("channels", [48, 27])
def test_means_of_images(kind, channels):
    x = relay.var("x", shape=(2, 6, 7, channels))
    data = numbers(2, 6, 7, channels)
    lib = built(relay.nn.relu(POOLS[kind](x) * relay.const(2.0)), x)
    expected = np.maximum(data.mean((1, 2), keepdims=True) * 2, 0)
    np.testing.assert_allclose(run(lib, x=data), expected, 1e-5, 1e-6)
    assert sums_vectors(lib) or channels % 2


def test_means_of_images_of_any_size():
    x = relay.var("x", shape=(1, relay.Any(), relay.Any(), 32))
    mod = tvm.IRModule.from_expr(relay.Function([x], POOLS["adaptive"](x)))
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm")
    for data in (numbers(1, 6, 7, 32), numbers(1, 9, 4, 32)):
        found = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu()).invoke("main", data).numpy()
        np.testing.assert_allclose(found, data.mean((1, 2), keepdims=True), 1e-5, 1e-6)
