"""TVM's own operators, as `topi_ext.corrections` has them, versus NumPy."""

import functools
import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from tests.helpers import module, numbers, run
from tvm_passes import ConvertToNHWC, runtime

import tvm
from tvm import relay


def computed(function, array):
    x = relay.var("x", shape=array.shape, dtype=str(array.dtype))
    (found,) = run(module(x, function(x)), array)
    assert found.dtype == array.dtype
    return found


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_clip_to_bounds_that_cross_gives_the_upper(dtype):
    array = np.array([0, 1, 2, 255 if dtype == "uint8" else 1000], dtype)
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 200, 1), array), np.clip(array, 200, 1))
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 1, 200), array), np.clip(array, 1, 200))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_clip_keeps_nan(dtype):
    array = np.array([math.nan, -9, 0.5, 9, math.nan, math.inf, -math.inf, 1, math.nan], dtype)
    np.testing.assert_array_equal(computed(lambda x: relay.clip(x, 0, 1), array), np.clip(array, 0, 1))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-math.inf, 1)])
def test_clip_on_cuda(emulated_cuda, dtype, bounds):
    array = np.array([math.nan, -9, 0.5, 9, math.nan, math.inf, -math.inf, 1, math.nan], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    (found,) = emulated_cuda.run_relay(relay.Function([x], relay.clip(x, *bounds)), array)
    np.testing.assert_array_equal(found, np.clip(array, *bounds))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [9, 64])
def test_relu_keeps_nan(emulated_cuda, target, dtype, count):
    special = np.array([math.nan, -9, 0.5, 9, -math.nan, math.inf, -math.inf, -0.0, math.nan], dtype)
    array = np.resize(special, count)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    found = run_on(target, emulated_cuda, module(x, relay.nn.relu(x)), array)
    np.testing.assert_array_equal(found, np.maximum(array, 0))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_two_keep_nan(emulated_cuda, target, dtype, name):
    special = [-9, 0.5, 9, 0] if dtype == "int32" else [math.nan, -9, 9, -math.nan, math.inf, -math.inf, -0.0]
    one, other = (each.astype(dtype) for each in np.meshgrid(special, np.resize(special, 64)))
    x, y = (relay.var(letter, shape=one.shape, dtype=dtype) for letter in "xy")
    expected = getattr(np, name)(one, other)
    of_two = getattr(relay, name)
    found = run_on(target, emulated_cuda, module(x, y, of_two(x, y)), one, other)
    np.testing.assert_array_equal(found, expected)
    zero = relay.const(0, dtype)
    for result in of_two(x, zero), of_two(zero, x):
        found = run_on(target, emulated_cuda, module(x, result), one)
        np.testing.assert_array_equal(found, getattr(np, name)(one, 0))


@pytest.mark.parametrize("target, count", [("llvm", 8), ("cuda", 20)])
def test_a_chain_of_extremes_compiles_at_once(emulated_cuda, target, count):
    """In one kernel: where an operator mentioned its operands several times, its code would never end."""
    xs = [relay.var(f"x{number}", shape=(3, 40)) for number in range(count)]
    chain = functools.reduce(relay.maximum, xs[1:], xs[0])
    arrays = [numbers(3, 40, seed=number) for number in range(count)]
    arrays[2][0, 5] = math.nan
    found = run_on(target, emulated_cuda, module(*xs, chain), *arrays)
    np.testing.assert_array_equal(found, np.maximum.reduce(arrays))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("behind", [relay.nn.relu, lambda y: relay.clip(y, 0, 1)])
def test_bounds_behind_a_pooling_on_cuda(emulated_cuda, dtype, behind):
    """In vectors of many channels, of which TVM writes no comparisons of float16."""
    array = numbers(1, 4, 4, 16, dtype=dtype)
    array[0, 1, 1, 3] = math.nan
    x = relay.var("x", shape=array.shape, dtype=dtype)
    pooled = relay.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC")
    found = run_on("cuda", emulated_cuda, module(x, behind(pooled)), array)
    expected = array.reshape(1, 2, 2, 2, 2, 16).max((2, 4))
    most = math.inf if behind is relay.nn.relu else 1
    np.testing.assert_array_equal(found, np.clip(expected, 0, most))


def test_negative_of_zero_has_the_other_sign():
    array = np.array([0, -0.0, 1, math.inf], "float32")
    np.testing.assert_array_equal(np.signbit(computed(relay.negative, array)), np.signbit(-array))
    np.testing.assert_array_equal(computed(relay.negative, np.array([0, 1, -128], "int8")), [0, -1, -128])


OF_FLOAT64 = """
import torch
from tests.helpers import module, run
import numpy as np
from tvm import relay

x = relay.var("x", shape=(64,), dtype="float64")
array = np.linspace(-3, 70000, 64)
(found,) = run(module(x, relay.cast(x, "float16")), array)
np.testing.assert_array_equal(found, torch.from_numpy(array).half().numpy())
"""


def test_float16_of_float64_where_torch_is_imported_first():
    subprocess.run([sys.executable, "-c", OF_FLOAT64], check=True, timeout=120)


@pytest.mark.parametrize(
    ("dtype", "between", "last"),
    [
        ("int8", "uint8", "int64"),
        ("int32", "float32", "int64"),
        ("int64", "float64", "int64"),
        ("int16", "float16", "int16"),
    ],
)
def test_casts_by_a_type_that_does_not_hold_every_number(dtype, between, last):
    """And by one that does, beside it."""
    info = np.iinfo(dtype)
    array = np.array([info.min // 3, -1, 5, info.max // 5], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    casts = [relay.cast(relay.cast(x, between), last), relay.cast(relay.cast(x, "int64"), last)]
    mod = module(x, relay.Tuple(casts))
    for found in (run(mod, array), [*runtime.compile(mod, "llvm")(array).values()]):
        np.testing.assert_array_equal(found[0], array.astype(between).astype(last))
        np.testing.assert_array_equal(found[1], array.astype("int64").astype(last))


@pytest.mark.parametrize("between", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    "dtype, last", [("float32", "float32"), ("float32", "float64"), ("float16", "float32")]
)
def test_a_cast_of_clipped_floats_to_integers_and_back(dtype, between, last):
    """As of pixels that a network rounds down: TVM drops both casts where the integers hold the bounds."""
    array = np.array([-3.7, 0.4, 1.7, 77.75, 200.5], dtype)
    x = relay.var("x", shape=array.shape, dtype=dtype)
    mod = module(x, relay.cast(relay.cast(relay.clip(x, 0.0, 100.0), between), last))
    for found in (run(mod, array)[0], runtime.compile(mod, "llvm")(array)):
        np.testing.assert_array_equal(found, np.clip(array, 0, 100).astype(between).astype(last))


DIVISIONS = {
    "divide": lambda x, y: np.floor_divide(x - np.fmod(x, y), y),
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "mod": np.fmod,
    "trunc_divide": lambda x, y: np.floor_divide(x - np.fmod(x, y), y),
    "trunc_mod": np.fmod,
}


def pairs_of_integers(dtype):
    info = np.iinfo(dtype)
    values = {info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max} | (
        {-1, -2, -7} if info.min else set()
    )
    return [each.ravel() for each in np.meshgrid(*[np.array(sorted(values), dtype)] * 2)]


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_every_division_of_integers_has_a_result(emulated_cuda, dtype):
    """By zero, and of the least one by -1, which ended the process: what NumPy gives."""
    left, right = pairs_of_integers(dtype)
    x, y = (relay.var(name, shape=left.shape, dtype=dtype) for name in "xy")
    function = relay.Function([x, y], relay.Tuple([getattr(relay, name)(x, y) for name in DIVISIONS]))
    expected = [divide(left, right) for divide in DIVISIONS.values()]
    for found in (
        run(tvm.IRModule.from_expr(function), left, right),
        emulated_cuda.run_relay(function, left, right),
    ):
        for name, ours, theirs in zip(DIVISIONS, found, expected):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("divisor", [0, -1, 3])
def test_division_of_integers_by_a_constant(divisor):
    left = np.array([-128, -7, 0, 5, 127], "int8")
    for name, divide in DIVISIONS.items():
        found = computed(lambda x: getattr(relay, name)(x, relay.const(divisor, "int8")), left)  # noqa: B023
        np.testing.assert_array_equal(found, divide(left, np.int8(divisor)), err_msg=name)


@pytest.mark.parametrize("divide", ["floor_divide", "floor_mod"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_floor_division_of_a_sum(emulated_cuda, dtype, divide):
    """TVM's lowering adds to a dividend whose least number it knows, and overflows."""
    numbers = np.array([-120, -23, -1, 0, 1, 22, 111, 120], dtype)
    x, number = relay.var("x", shape=numbers.shape, dtype=dtype), np.dtype(dtype).type
    for first in (4, -4):
        for divisor in (3, 100, -7):
            function = relay.Function(
                [x],
                getattr(relay, divide)(relay.const(first, dtype) - x, relay.const(divisor, dtype)),
            )
            expected = DIVISIONS[divide](number(first) - numbers, number(divisor))
            for found in (
                run(tvm.IRModule.from_expr(function), numbers)[0],
                emulated_cuda.run_relay(function, numbers),
            ):
                np.testing.assert_array_equal(np.ravel(found), expected, err_msg=f"{first} {divisor}")


def test_erf_of_float64_is_as_exact_as_the_type():
    array = np.linspace(-2, 2, 100)
    expected = np.vectorize(math.erf)(array)
    np.testing.assert_allclose(computed(relay.erf, array), expected, rtol=1e-15, atol=1e-17)


@pytest.mark.parametrize("count", [7, 4096])
def test_erf_of_float32(count):
    """With and without vectors; NaN stays NaN."""
    array = np.linspace(-6, 6, count).astype("float32")
    array[:4] = math.nan, math.inf, -math.inf, -0.0
    expected = np.vectorize(math.erf)(array.astype("float64"))
    found = computed(relay.erf, array)
    np.testing.assert_allclose(found, expected, rtol=4e-7, atol=1e-12)
    assert np.signbit(found[3])


def test_exp_of_float64_is_as_exact_as_the_type():
    array = np.linspace(-20, 20, 100)
    np.testing.assert_allclose(computed(relay.exp, array), np.exp(array), rtol=1e-15)


@pytest.mark.parametrize("count", [7, 4096])
def test_exp_of_float32(count):
    """With and without vectors, from 0 to infinity; NaN stays NaN."""
    array = np.linspace(-110, 88.72, count).astype("float32")
    array[:5] = math.nan, math.inf, -math.inf, -0.0, 89
    with np.errstate(over="ignore"):
        expected = np.exp(array.astype("float64")).astype("float32")
    np.testing.assert_allclose(computed(relay.exp, array), expected, rtol=3e-7, atol=1e-44)


def test_nested_exponentials_compile():
    """Each names its operand often, which must not be written out anew each time."""
    array = np.linspace(-3, 1, 64).astype("float32")
    expected = array.astype("float64")
    for _ in range(6):
        expected = 1 / (1 + np.exp(-np.exp(-expected)))

    def function(x):
        for _ in range(6):
            x = relay.sigmoid(relay.exp(relay.negative(x)))
        return x

    np.testing.assert_allclose(computed(function, array), expected, rtol=1e-6)


def test_erf_of_float64_on_cuda(emulated_cuda):
    array = np.linspace(-2, 2, 100)
    x = relay.var("x", shape=array.shape, dtype="float64")
    (found,) = emulated_cuda.run_relay(relay.Function([x], relay.erf(x)), array)
    np.testing.assert_allclose(found, np.vectorize(math.erf)(array), rtol=1e-14, atol=1e-17)


@pytest.mark.parametrize("name", ["acos", "acosh", "asin", "asinh", "atan", "atanh"])
def test_inverse_functions_of_float16(name):
    array = (np.linspace(1, 9, 50) if name == "acosh" else np.linspace(-0.99, 0.99, 50)).astype("float16")
    expected = getattr(np, f"arc{name[1:]}")(array.astype("float64"))
    np.testing.assert_allclose(computed(getattr(relay, name), array), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_trilu_in_a_fused_function(dtype, upper):
    array = np.arange(24, dtype="float32").reshape(2, 3, 4)
    triangle = (np.triu if upper else np.tril)(array, 1)
    found = computed(lambda x: relay.concatenate([relay.trilu(x, relay.const(1, dtype), upper), x], 0), array)
    np.testing.assert_array_equal(found, np.concatenate([triangle, array]))


@pytest.mark.parametrize("rows", [1, 40, 0])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_concatenation_and_what_is_fused_with_it(rows, axis):
    """Operands that are computed, one of them twice over, and what follows: with threads and without."""
    array = np.random.default_rng(0).standard_normal((rows, 16, 60)).astype("float32")

    def function(x):
        shifted = relay.exp(relay.transpose(x, [0, 2, 1]))
        parts = [relay.nn.relu(shifted), relay.reshape(x, (-1 if rows else 0, 60, 16)), shifted]
        return relay.add(relay.sigmoid(relay.concatenate(parts, axis)), relay.const(1.0))

    shifted = np.exp(array.transpose(0, 2, 1))
    parts = np.concatenate([shifted, array.reshape(rows, 60, 16), shifted], axis)
    np.testing.assert_allclose(computed(function, array), 1 / (1 + np.exp(-parts)) + 1, rtol=1e-6)


BEHIND_A_CONCATENATION = {
    "nothing": lambda x, of: x,
    "element by element": lambda x, of: of.add(of.sigmoid(x), x),
    "a cast": lambda x, of: of.cast(x, "int32"),
    "other places": lambda x, of: of.transpose(x, [2, 0, 1]),
    "two of them": lambda x, of: of.add(x, of.reverse(x, 1)),
}


@pytest.mark.parametrize("behind", BEHIND_A_CONCATENATION)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_concatenation_in_runs(axis, dtype, behind):
    """Of operands that are computed, and of a size for several threads."""
    array = np.round(np.random.default_rng(0).standard_normal((8, 24, 64)) * 4).astype("float32")
    x = relay.var("x", shape=array.shape)

    def operands():
        given = relay.cast(x, dtype)
        ends = [array.shape[at] // (2 if at == axis else 1) for at in range(3)]
        yield from (given, relay.strided_slice(given * relay.const(2.0, dtype), [0, 0, 0], ends), given)

    follow = partial(BEHIND_A_CONCATENATION[behind], of=relay)
    whole = follow(relay.concatenate([*operands()], axis))
    parts = [relay.cast(each, "float32") for each in operands()]
    alone = np.concatenate([run(module(x, part), array)[0] for part in parts], axis)
    y = relay.var("y", shape=alone.shape)
    (wanted,) = run(module(y, relay.cast(follow(relay.cast(y, dtype)), "float32")), alone)
    (found,) = run(module(x, relay.cast(whole, "float32")), array)
    np.testing.assert_array_equal(found, wanted)


def test_a_concatenation_and_an_addition_of_unknown_length():
    rows, left, right = (
        np.random.default_rng(0).standard_normal(shape) for shape in ((7, 16), (1, 8), (1, 8))
    )
    arrays = [array.astype("float32") for array in (rows, left, right)]
    y = relay.var("y", shape=(relay.Any(), 16))
    a, b = relay.var("a", shape=(1, 8)), relay.var("b", shape=(1, 8))
    (found,) = run(module(y, a, b, relay.concatenate([a, b], 1) + y), *arrays)
    np.testing.assert_allclose(found, np.concatenate(arrays[1:], 1) + arrays[0], rtol=1e-6)


def test_exponentials_of_what_is_long_or_has_branches():
    array = np.random.default_rng(0).standard_normal((1, 6, 6, 16)).astype("float32")
    expected = array

    def function(x):
        for _ in range(4):
            x = relay.nn.relu(relay.nn.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), 0.5))
        return relay.exp(relay.atan(x))

    for _ in range(4):
        expected = np.pad(expected, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=0.5).clip(0)
    np.testing.assert_allclose(computed(function, array), np.exp(np.arctan(expected)), rtol=1e-6)


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
def test_resize_in_the_layout_that_tvm_moves_behind_a_transpose(method):
    def function(x):
        pooled = relay.nn.avg_pool2d(relay.transpose(x, [3, 1, 2, 0]), (2, 2), (2, 2))
        return relay.image.resize2d(pooled, (5, 7), method=method)

    def apart(x):
        return relay.image.resize2d(x, (5, 7), method=method)

    array = np.random.default_rng(0).normal(size=(6, 3, 4, 4)).astype("float32")
    pooled = array.transpose(3, 1, 2, 0).reshape(4, 3, 2, 2, 3, 2).mean((3, 5))
    np.testing.assert_allclose(computed(function, array), computed(apart, pooled), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "axis"), [(1, [1]), (1, [-3]), (1, None), (1, [2]), (1, [1, 2]), (16, [2]), (16, None)]
)
def test_squeeze_behind_a_convolution_whose_layout_tvm_chooses(channels, axis):
    random = np.random.default_rng(0)
    weights = random.normal(size=(channels, 8, 1, 1)).astype("float32")
    image = random.normal(size=(2, 8, 1, 6)).astype("float32")
    expected = np.maximum(np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0]), 0)
    expected = expected.squeeze(None if axis is None else tuple(axis))

    def function(x):
        convolved = relay.nn.conv2d(x, relay.const(weights), channels=channels, kernel_size=(1, 1))
        return relay.nn.relu(relay.squeeze(convolved, axis=axis))

    np.testing.assert_allclose(computed(function, image), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("axis", [2, -1])
def test_what_is_taken_of_a_reversed_shuffle(emulated_cuda, target, axis):
    array = numbers(1, 4, 4, 4)
    places = np.array([1, 0, 7, 3], "int32")
    x = relay.var("x", shape=array.shape)
    shuffled = relay.reshape(
        relay.transpose(relay.reshape(x, (1, 1, 2, 2, 4, 4)), [0, 1, 4, 2, 5, 3]), (1, 1, 8, 8)
    )
    taken = relay.take(relay.reverse(shuffled, axis), relay.const(places), axis, mode="fast")
    expected = array.reshape(1, 1, 2, 2, 4, 4).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 8, 8)
    expected = np.flip(expected, axis).take(places, axis)
    np.testing.assert_array_equal(run_on(target, emulated_cuda, module(x, taken), array), expected)


@pytest.mark.parametrize("split", [lambda x: relay.split(x, 16, 1), lambda x: relay.topk(x, 2, 1)])
def test_what_takes_channels_whole_behind_a_convolution(split):
    image, weights = numbers(1, 8, 3, 5), numbers(16, 8, 1, 1, seed=1)
    convolved = np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0])

    def function(x):
        convolved = relay.nn.conv2d(x, relay.const(weights), channels=16, kernel_size=(1, 1))
        return relay.nn.relu(split(convolved)[0])

    found = computed(function, image)
    expected = convolved[:, :1] if found.shape[1] == 1 else -np.sort(-convolved, 1)[:, :2]
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)


def reductions(y):
    yield from (relay.variance(y, axis) for axis in (1, [1, 2], None))
    yield relay.variance(y, [2], exclude=True)
    yield from (relay.argmax(y, axis, keepdims=True) for axis in (1, [1, 2], None))
    yield from (relay.argmin(y, [1, 3]), relay.argmax(y, [2], exclude=True))
    yield from (relay.sum(y, [2], exclude=True), relay.max(y, [0, 2, 3], exclude=True))
    yield from (reduce(y > relay.const(0.0), 1) for reduce in (relay.any, relay.all))
    yield from (reduce(y, 1) for reduce in (relay.min, relay.mean, relay.prod))
    yield relay.nn.layer_norm(y, *[relay.const(np.ones(16, "float32"))] * 2, axis=1)
    yield relay.topk(y, 2, 1, ret_type="values")


@pytest.mark.parametrize("layout", [lambda mod: mod, ConvertToNHWC()], ids=["of the target", "NHWC"])
def test_reductions_behind_a_convolution_of_another_layout(layout):
    image, weights = numbers(2, 8, 3, 5), numbers(16, 8, 1, 1, seed=1)
    x, y = relay.var("x", shape=image.shape), relay.var("y", shape=(2, 16, 3, 5))
    behind = relay.nn.conv2d(x, relay.const(weights), channels=16, kernel_size=(1, 1))
    convolved = np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0])
    found = run(layout(module(x, relay.Tuple(list(reductions(relay.nn.relu(behind)))))), image)
    expected = run(module(y, relay.Tuple(list(reductions(relay.nn.relu(y))))), convolved)
    for each, as_it_is in zip(found, expected):
        np.testing.assert_allclose(each, as_it_is, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["update", "add"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_scatter_of_fewer_indices_than_elements(emulated_cuda, target, axis, reduction):
    data, source = numbers(3, 4, 5), numbers(2, 3, 2, seed=1)
    places = np.argsort(numbers(2, 3, 2, seed=2), axis).astype("int64")
    expected = data.copy()
    for at in np.ndindex(places.shape):
        into = list(at)
        into[axis] = places[at]
        expected[tuple(into)] = source[at] + (expected[tuple(into)] if reduction == "add" else 0)
    x = relay.var("x", shape=data.shape)
    result = relay.scatter_elements(x, relay.const(places), relay.const(source), axis, reduction)
    found = run_on(target, emulated_cuda, module(x, result), data)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def run_on(target, emulated_cuda, mod, *arrays):
    (found,) = run(mod, *arrays) if target == "llvm" else emulated_cuda.run_relay(mod, *arrays)
    return found


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


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_a_leaky_relu_of_float16_has_its_slope(emulated_cuda, target):
    array = numbers(64, dtype="float16")
    x = relay.var("x", shape=array.shape, dtype="float16")
    found = run_on(target, emulated_cuda, module(x, relay.nn.leaky_relu(x, 0.2)), array)
    wide = array.astype("float32")
    np.testing.assert_array_equal(found, np.where(wide > 0, wide, wide * np.float32(0.2)).astype("float16"))


@pytest.mark.parametrize("strides", [1, 2])
def test_pooling_of_bfloat16_on_cpus(strides):
    """Of numbers that bfloat16 has, in windows that overlap: computed in float32 where many do."""
    array = np.round(numbers(1, 9, 8, 16) * 8)
    x = relay.var("x", shape=array.shape)
    options = {"strides": strides, "padding": (2, 2), "layout": "NHWC"}
    pooled = relay.nn.max_pool2d(relay.cast(x, "bfloat16"), (5, 5), **options)
    found = run(module(x, relay.cast(pooled, "float32")), array)[0]
    wanted = run(module(x, relay.nn.max_pool2d(x, (5, 5), **options)), array)[0]
    np.testing.assert_array_equal(found, wanted)


def test_two_to_the_power_of_truths():
    array = np.array([True, False, True, True, False])

    def function(x):
        return relay.power(relay.const(2.0), relay.cast(x, "float32"))

    x = relay.var("x", shape=array.shape, dtype="bool")
    np.testing.assert_array_equal(run(module(x, function(x)), array)[0], np.where(array, 2, 1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_concatenation_of_half_precision_that_a_cast_reads(dtype):
    """In one kernel, whose operands are in memory. The values are exact in each type."""
    array = np.arange(-20, 20, dtype="float32").reshape(2, 4, 5)
    x = relay.var("x", shape=array.shape)
    part = relay.annotation.stop_fusion(relay.cast(x, dtype))
    (found,) = run(module(x, relay.cast(relay.concatenate([part, part], 1), "float32")), array)
    np.testing.assert_array_equal(found, np.concatenate([array, array], 1))
