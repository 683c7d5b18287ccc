"""Normalization of groups of channels, on LLVM and the emulated CUDA device."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional

import topi_ext
from tests.helpers import numbers
from tests.helpers import run as run_on_llvm
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.conv2d_nhwc.problem import ACTIVATIONS
from topi_ext.group_norm import reference

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TOLERANCES = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}


def function_of(data, gamma=None, beta=None, dynamic=False, axis=1, **options):
    arrays = {name: each for name, each in (("gamma", gamma), ("beta", beta)) if each is not None}
    shape = [
        relay.Any() if dynamic and at != axis % data.ndim else extent for at, extent in enumerate(data.shape)
    ]
    variables = {"data": relay.var("data", shape=shape, dtype=str(data.dtype))}
    for name, array in arrays.items():
        variables[name] = relay.var(name, shape=array.shape, dtype=str(array.dtype))
    result = topi_ext.group_norm(**variables, axis=axis, **options)
    return relay.Function([*variables.values()], result)


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""

    def on_llvm(*arrays, **options):
        function = function_of(*arrays, **options)
        given = [each for each in arrays if each is not None]
        return run_on_llvm(tvm.IRModule.from_expr(function), *given)[0]

    def on_cuda(*arrays, dynamic=False, **options):
        function = function_of(*arrays, dynamic=dynamic, **options)
        given = [each for each in arrays if each is not None]
        return emulated.run_relay(function, *given, executor="vm" if dynamic else "graph")[0]

    if request.param == "llvm":
        return on_llvm
    emulated = request.getfixturevalue("emulated_cuda")
    return on_cuda


def inputs(*shape, axis=1, dtype="float32", affine="float32"):
    """Data far from 0, since differences are what is hard, with gamma and beta."""
    data = (numbers(*shape) * 2 + 5).astype(dtype)
    return data, *((numbers(shape[axis], seed=seed) + 1).astype(affine) for seed in (1, 2))


def in_layout(shape, axis):
    """A shape whose channels are the second axis, with the channels there."""
    return shape if axis == 1 else (shape[0], *shape[2:], shape[1])


def assert_as_reference(run, *arrays, **options):
    found, expected = run(*arrays, **options), reference.group_norm(*arrays, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    tolerance = TOLERANCES[str(found.dtype)]
    np.testing.assert_allclose(found, expected, tolerance, tolerance * 4)


SHAPES = [
    ((2, 16, 7, 11), 4),
    ((1, 16, 7, 11), 16),
    ((1, 256, 5, 3), 32),
    ((1, 12, 9, 8), 4),  # groups of an odd number of channels
    ((3, 14, 4), 2),
    ((3, 24), 2),
    ((1, 7, 3, 3), 1),
    ((1, 1, 5, 5), 1),
    ((1, 40, 3, 4, 5), 5),
]


@pytest.mark.parametrize("shape, groups", SHAPES)
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_small_maps(run, shape, groups, axis, dtype):
    arrays = inputs(*in_layout(shape, axis), axis=axis, dtype=dtype)
    assert_as_reference(run, *arrays, groups=groups, axis=axis)


@pytest.mark.parametrize("shape, groups", [((1, 16, 97, 96), 2), ((1, 8, 75, 100), 8), ((2, 3, 150, 149), 1)])
@pytest.mark.parametrize("axis", [1, -1])
def test_maps_of_many_blocks(run, shape, groups, axis):
    """The last part of a map is shorter than the others."""
    arrays = inputs(*in_layout(shape, axis), axis=axis, dtype="float16")
    assert_as_reference(run, *arrays, groups=groups, axis=axis)


@pytest.mark.parametrize("axis", [1, -1])
def test_maps_far_from_zero(run, axis):
    """The variance is a millionth of the squared mean; the difference of mean squares would lose it."""
    data = (numbers(*in_layout((1, 8, 90, 100), axis)) + 1000).astype("float32")
    found = run(data, groups=2, axis=axis)
    np.testing.assert_allclose(found, reference.group_norm(data, groups=2, axis=axis), 1e-3, 1e-3)


@pytest.mark.parametrize("given", [(None, None), (True, None), (None, True)])
@pytest.mark.parametrize("affine", ["float32", "float16"])
@pytest.mark.parametrize("axis", [1, -1])
def test_gamma_and_beta(run, given, affine, axis):
    data, *both = inputs(*in_layout((1, 16, 4, 4), axis), axis=axis, dtype="float16", affine=affine)
    arrays = data, *(array if is_given else None for array, is_given in zip(both, given))
    assert_as_reference(run, *arrays, groups=2, axis=axis)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "prelu"])
def test_activations(run, name):
    activation = {"leaky_relu": ("leaky_relu", 0.1), "clip": ("clip", -0.5, 1)}.get(name, name)
    for axis in (1, -1):
        arrays = inputs(*in_layout((1, 16, 4, 5), axis), axis=axis)
        assert_as_reference(run, *arrays, groups=2, axis=axis, activation=activation)


@pytest.mark.parametrize("images, pixels", [(0, 9), (2, 0), (1, 1), (3, 1200)])
@pytest.mark.parametrize("axis", [1, -1])
def test_lengths_that_only_the_runtime_knows(run, images, pixels, axis):
    arrays = inputs(*in_layout((images, 8, pixels), axis), axis=axis)
    found = run(*arrays, groups=2, axis=axis, dynamic=True)
    assert found.shape == arrays[0].shape
    if found.size:
        np.testing.assert_allclose(found, reference.group_norm(*arrays, groups=2, axis=axis), 5e-6, 2e-5)


@pytest.mark.parametrize("axis", [1, -1])
def test_maps_of_one_number(run, axis):
    data = np.full(in_layout((2, 4, 3, 3), axis), 3.25, "float32")
    np.testing.assert_array_equal(run(data, groups=2, axis=axis), np.zeros_like(data))


def test_large_numbers_in_half_precision(run):
    """Squares of differences are greater than what float16 can hold."""
    assert_as_reference(run, (numbers(1, 4, 8, 8) * 2e4).astype("float16"), groups=2)


def test_epsilon(run):
    data = numbers(1, 4, 8, 8) * np.float32(1e-4)
    for epsilon in (1e-12, 3.0):
        expected = reference.group_norm(data, groups=2, epsilon=epsilon)
        np.testing.assert_allclose(run(data, groups=2, epsilon=epsilon), expected, 1e-5, 1e-6)


def test_a_group_with_nan_leaves_the_others(emulated_cuda):
    data = numbers(1, 90, 100, 8)
    data[0, 3, 5, 1] = np.nan
    (found,) = emulated_cuda.run_relay(function_of(data, groups=4, axis=-1), data)
    expected = reference.group_norm(data, groups=4, axis=-1)
    np.testing.assert_allclose(found, expected, 1e-5, 2e-5)
    assert np.isnan(found[..., :2]).all() and not np.isnan(found[..., 2:]).any()


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_group_is_nan_with_what_is_no_number(run, special, axis):
    data = numbers(2, 8, 5, 8)
    data[1, 2, 1, 2] = special
    with np.errstate(invalid="ignore"):
        expected = reference.group_norm(data, groups=4, axis=axis)
    assert np.isnan(expected).sum() == expected.size // 8
    np.testing.assert_allclose(run(data, groups=4, axis=axis), expected, 1e-5, 2e-5)


@pytest.mark.parametrize("axis", [1, -1])
def test_bfloat16_on_cuda(emulated_cuda, axis):
    shape = in_layout((2, 16, 5, 6), axis)
    wide, *affine = inputs(*shape, axis=axis)
    wide = wide.view("int32") & np.int32(-65536)  # representable
    wide = wide.view("float32")
    x, constants = relay.var("x", shape=shape), list(map(relay.const, affine))
    result = topi_ext.group_norm(relay.cast(x, "bfloat16"), *constants, groups=4, axis=axis)
    (found,) = emulated_cuda.run_relay(relay.Function([x], relay.cast(result, "float32")), wide)
    expected = reference.group_norm(wide, *affine, groups=4, axis=axis)
    np.testing.assert_allclose(found, expected, 8e-3, 1.6e-2)


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((2, 8, 3), {"dtype": "int32"}, "data must be of type float32, float16, bfloat16, not int32"),
        ((2, 8, 3, 3), {"axis": 2}, "axis must be 1 or the last one"),
        ((8,), {"axis": 0}, "axis must be 1 or the last one"),
        ((2, relay.Any(), 3), {}, "the extent along axis 1 must be known and above 0"),
        ((2, 0, 3), {}, "the extent along axis 1 must be known and above 0"),
        ((2, 8, 3), {"groups": 3}, "groups must be a divisor of the number of channels, 8, not 3"),
        ((2, 8, 3), {"groups": 0}, "groups must be a divisor"),
        ((2, 8, 3), {"gamma": (1, 8)}, r"gamma must have the shape \(8,\)"),
        ((2, 8, 3), {"beta": (4,)}, r"beta must have the shape \(8,\)"),
        ((2, 8, 3), {"gamma": (8,), "of_gamma": "float16"}, "gamma must be of type float32"),
    ],
)
def test_what_is_refused(shape, options, message):
    data = relay.var("data", shape=shape, dtype=options.get("dtype", "float32"))
    affine = {
        name: relay.var(name, shape=options[name], dtype=options.get(f"of_{name}", "float32"))
        for name in ("gamma", "beta")
        if name in options
    }
    given = {"groups": options.get("groups", 2), "axis": options.get("axis", 1)}
    result = topi_ext.group_norm(data, **affine, **given)
    with pytest.raises(tvm.TVMError, match=message):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([data, *affine.values()], result)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": float("nan")}, "epsilon must be above 0"),
        ({"activation": "prelu"}, "group_norm: activation must be one of"),
        ({"activation": ("clip", 1, 0)}, "group_norm: activation clips to 1.0 to 0.0"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        topi_ext.group_norm(relay.var("x", shape=(2, 8, 3)), groups=2, **options)


KERNELS = [
    ((1, 100, 168, 256), 32, -1, "float16", 2),
    ((1, 7, 11, 256), 32, -1, "float16", 1),
    ((1, 50, 84, 256), 32, -1, "float32", 2),
    ((1, 512, 512, 32), 32, -1, "float16", 2),
    ((1, 96, 28, 28), 8, 1, "float16", 1),
    ((1, 96, 512, 512), 3, 1, "float32", 2),
    ((64, 13, 13, 512), 32, -1, "float16", 1),
    ((1, 33, 35, 21), 7, -1, "float16", 1),
]


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("shape, groups, axis, dtype, kernels", KERNELS)
def test_compiles_without_spills(shape, groups, axis, dtype, kernels, emulated_cuda, tmp_path):
    data = relay.var("x", shape=shape, dtype=dtype)
    affine = [relay.var(name, shape=(shape[axis],)) for name in ("gamma", "beta")]
    result = topi_ext.group_norm(data, *affine, groups=groups, axis=axis, activation="silu")
    relay.build(tvm.IRModule.from_expr(relay.Function([data, *affine], result)), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=kernels, spilled=8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize(
    "shape, groups",
    [
        *[((1, 256, *size), 32) for size in ((100, 168), (50, 84), (25, 42), (13, 21), (7, 11))],
        ((1, 32, 512, 512), 32),
        ((2, 96, 65, 33), 8),
        ((64, 512, 13, 13), 32),
        ((3, 21, 50, 31), 7),
    ],
)
def test_on_a_gpu(shape, groups, axis, dtype):
    wide, gamma, beta = (torch.from_numpy(each).cuda() for each in inputs(*in_layout(shape, axis), axis=axis))
    data = wide.to(getattr(torch, dtype))
    x = relay.var("x", shape=tuple(data.shape), dtype=dtype)
    affine = [relay.const(each.cpu().numpy()) for each in (gamma, beta)]
    result = topi_ext.group_norm(x, *affine, groups=groups, axis=axis, activation="silu")
    module = relay.build(tvm.IRModule.from_expr(relay.Function([x], result)), "cuda")
    executor = graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.set_input("x", tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(data)))
    executor.run()
    tvm.cuda().sync()
    found = torch.utils.dlpack.from_dlpack(executor.get_output(0).to_dlpack())
    moved = data.double().movedim(axis, 1)
    expected = functional.silu(functional.group_norm(moved, groups, gamma.double(), beta.double()))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected.movedim(1, axis), rtol=tolerance, atol=tolerance * 4)
