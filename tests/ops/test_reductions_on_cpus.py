"""Reductions on CPUs over all axes but the innermost, and of rows: the results, and that they are vectors."""

import re

import numpy as np
import pytest

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers

import tvm
from tvm import relay
from tvm.contrib import graph_executor

KINDS = {"sum": np.sum, "max": np.max}
SUMS = {"sum": np.sum, "mean": np.mean, "variance": np.var}


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


def sums_vectors_of_rows(lib):
    """Whether all elements of a vector of 16 are added at once, or four by four."""
    return len(re.findall(r"fadd (?:[a-z]+ )*<(?:4|16) x float>", lib.get_lib().get_source("ll"))) >= 4


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


@pytest.mark.parametrize("kind", ["adaptive", "global"])
@pytest.mark.parametrize("side", [8, 7, 3])
def test_means_of_channels(kind, side):
    pool = {
        "adaptive": lambda x: relay.nn.adaptive_avg_pool2d(x, (1, 1)),
        "global": relay.nn.global_avg_pool2d,
    }
    x, data = relay.var("x", shape=(2, 5, side, side)), numbers(2, 5, side, side)
    lib = built(relay.nn.relu(pool[kind](x) * relay.const(2.0)), x)
    expected = np.maximum(data.mean((2, 3), keepdims=True) * 2, 0)
    np.testing.assert_allclose(run(lib, x=data), expected, 1e-5, 1e-6)
    assert sums_vectors_of_rows(lib) or side == 3


def test_means_of_images_of_any_size():
    x = relay.var("x", shape=(1, relay.Any(), relay.Any(), 32))
    mod = tvm.IRModule.from_expr(relay.Function([x], POOLS["adaptive"](x)))
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm")
    for data in (numbers(1, 6, 7, 32), numbers(1, 9, 4, 32)):
        found = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu()).invoke("main", data).numpy()
        np.testing.assert_allclose(found, data.mean((1, 2), keepdims=True), 1e-5, 1e-6)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(
    "shape, axes", [((3, 16), 1), ((2, 3, 7, 7), (2, 3)), ((5, 1, 91), -1), ((4, 35), None)]
)
def test_sums_of_rows(name, shape, axes):
    """With what is fused in front of them, of lengths that vectors do not divide."""
    x, data = relay.var("x", shape=shape), numbers(*shape)
    lib = built(getattr(relay, name)(x * relay.const(2.0), axes), x)
    np.testing.assert_allclose(run(lib, x=data), SUMS[name](data * 2, axes), 1e-5, 1e-5)
    assert sums_vectors_of_rows(lib)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_which_axes_are_rows(keepdims, exclude):
    x, data = relay.var("x", shape=(3, 4, 5, 6)), numbers(3, 4, 5, 6)
    for axes in [(2, 3), (1, 3), (0, 1), (3,), (0, 2, 3)]:
        reduced = tuple({0, 1, 2, 3} - {*axes}) if exclude else axes
        found = run(built(relay.mean(x, axes, keepdims, exclude), x), x=data)
        np.testing.assert_allclose(found, data.mean(reduced, keepdims=keepdims), 1e-5, 1e-6)


def test_variance_without_bias():
    x, data = relay.var("x", shape=(3, 40)), numbers(3, 40)
    found = run(built(relay.variance(x, 1, unbiased=True), x), x=data)
    np.testing.assert_allclose(found, data.var(1, ddof=1), 1e-5)


@pytest.mark.parametrize("width", [16, 9])
@pytest.mark.parametrize("of", ["columns", "lines", "channels"])
def test_rows_with_a_number_for_each(of, width):
    shape = {"columns": (width,), "lines": (width, 1), "channels": (5, 1, 1)}[of]
    x, y = relay.var("x", shape=(5, width, width)), relay.var("y", shape=shape)
    data, other = numbers(5, width, width), numbers(*shape)
    for name, oracle in (("sum", np.sum), ("max", np.max)):
        found = run(built(getattr(relay, name)(x + y, (1, 2)), x, y), x=data, y=other)
        np.testing.assert_allclose(found, oracle(data + other, (1, 2)), 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int8"])
def test_rows_of_other_types(dtype):
    x = relay.var("x", shape=(3, 999), dtype=dtype)
    data = (numbers(3, 999) * 3).astype(dtype)
    exact = data.astype("float64").sum(1).astype(dtype) if "float" in dtype else data.sum(1, dtype)
    np.testing.assert_allclose(
        run(built(relay.sum(x, 1), x), x=data), exact, 1e-3 if dtype == "float16" else 1e-12
    )


def test_rows_of_bfloat16():
    x, data = relay.var("x", shape=(3, 50)), numbers(3, 50)
    found = run(built(relay.sum(relay.cast(relay.cast(x, "bfloat16"), "float32"), 1), x), x=data)
    np.testing.assert_allclose(found, data.sum(1), 0.02, 0.1)


def test_rows_with_nan_and_infinities():
    data = numbers(4, 50)
    data[0, 49] = data[1, 3] = np.nan
    data[2, 17], data[3, [2, 33]] = np.inf, (-np.inf, np.inf)
    x = relay.var("x", shape=data.shape)
    found = run(built(relay.sum(x, 1), x), x=data)
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.inf, np.nan])


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("length", [16, 19, 55])
def test_extremes_of_rows_at_each_place(name, length):
    data = np.where(np.eye(length, dtype=bool), -5 if "min" in name else 5, numbers(length, length))
    x = relay.var("x", shape=(length, length))
    found = run(built(getattr(relay, name)(x, 1), x), x=data.astype("float32"))
    np.testing.assert_array_equal(found, getattr(np, name)(data, 1).astype(found.dtype))


def test_rows_whose_number_is_known_only_at_run_time():
    x = relay.var("x", shape=(relay.Any(), 3, 5, 7))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.mean(x, (2, 3))))
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm")
    for data in (numbers(2, 3, 5, 7), numbers(1, 3, 5, 7), numbers(0, 3, 5, 7)):
        found = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu()).invoke("main", data).numpy()
        np.testing.assert_allclose(found, data.mean((2, 3)), 1e-5, 1e-6)
