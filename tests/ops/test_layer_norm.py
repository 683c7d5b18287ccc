"""Normalization along one axis, on LLVM and the emulated CUDA device."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional

import topi_ext
from tests.helpers import numbers
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.layer_norm import reference

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.runtime.vm import VirtualMachine

TOLERANCES = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}


def function_of(data, *affine, dynamic=False, axis=-1, epsilon=1e-5):
    shape = list(data.shape)
    if dynamic:
        shape = [extent if at == axis % len(shape) else relay.Any() for at, extent in enumerate(shape)]
    variables = [relay.var("data", shape=shape, dtype=str(data.dtype))]
    variables += [
        relay.var(name, shape=array.shape, dtype=str(array.dtype))
        for name, array in zip(("gamma", "beta"), affine)
        if array is not None
    ]
    given = iter(variables[1:])
    arguments = [None if array is None else next(given) for array in affine]
    return relay.Function(
        variables, topi_ext.layer_norm(variables[0], *arguments, axis=axis, epsilon=epsilon)
    )


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""

    def on_llvm(*arrays, **options):
        executable = relay.vm.compile(tvm.IRModule.from_expr(function_of(*arrays, **options)), "llvm")
        machine = VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
        given = [tvm.nd.array(each) for each in arrays if each is not None]
        return machine.invoke("main", *given).numpy()

    def on_cuda(*arrays, dynamic=False, **options):
        function = function_of(*arrays, dynamic=dynamic, **options)
        given = [each for each in arrays if each is not None]
        return cuda.run_relay(function, *given, executor="vm" if dynamic else "graph")[0]

    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")
    return on_cuda


def inputs(*shape, axis=-1, dtype="float32", affine="float32"):
    """Data far from 0, since differences are what is hard, with gamma and beta."""
    data = (numbers(*shape) * 2 + 5).astype(dtype)
    return data, *((numbers(shape[axis], seed=seed) + 1).astype(affine) for seed in (1, 2))


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("channels", [1, 3, 7, 16, 64, 96, 180, 768, 1000, 4096, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows(run, rows, channels, dtype):
    arrays = inputs(rows, channels, dtype=dtype)
    found, expected = run(*arrays), reference.layer_norm(*arrays)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, TOLERANCES[dtype], TOLERANCES[dtype] * 4)


@pytest.mark.parametrize(
    "shape", [(2, 1, 5, 9), (1, 7, 9, 9), (2, 64, 3, 11), (1, 300, 2, 40), (1, 2000, 1, 33)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pixels(run, shape, dtype):
    arrays = inputs(*shape, axis=1, dtype=dtype)
    expected = reference.layer_norm(*arrays, axis=1)
    np.testing.assert_allclose(run(*arrays, axis=1), expected, TOLERANCES[dtype], TOLERANCES[dtype] * 4)


@pytest.mark.parametrize(
    "shape, axis", [((9,), 0), ((4, 6), 0), ((2, 12, 5), -2), ((2, 3, 4, 8), 3), ((3, 8, 1, 1), 1)]
)
def test_axes(run, shape, axis):
    arrays = inputs(*shape, axis=axis)
    np.testing.assert_allclose(run(*arrays, axis=axis), reference.layer_norm(*arrays, axis=axis), 2e-6, 8e-6)


@pytest.mark.parametrize("given", [(), (True, None), (None, True), (True, True)])
@pytest.mark.parametrize("affine", ["float32", "float16"])
def test_gamma_and_beta(run, given, affine):
    data, *both = inputs(5, 24, dtype="float16", affine=affine)
    arrays = data, *(array if is_given else None for array, is_given in zip(both, given))
    np.testing.assert_allclose(run(*arrays), reference.layer_norm(*arrays), 1e-3, 4e-3)


@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("axis", [1, -1])
def test_lengths_that_only_the_runtime_knows(run, rows, axis):
    arrays = inputs(rows, 20, 20, axis=axis)
    found = run(*arrays, axis=axis, dynamic=True)
    np.testing.assert_allclose(found, reference.layer_norm(*arrays, axis=axis), 2e-6, 8e-6)


@pytest.mark.parametrize("channels", [3, 64, 4096])
def test_rows_of_one_number(run, channels):
    """The variance is 0, and so is the difference from the mean, but for the rounding of the mean."""
    data = np.full((2, channels), 3.3, "float32")
    assert abs(run(data)).max() < 5e-3
    data = np.zeros((2, channels), "float16")
    np.testing.assert_array_equal(run(data), data)


def test_large_numbers_in_half_precision(run):
    """Squares of differences are greater than what float16 can hold."""
    data = (numbers(4, 64) * 2e4).astype("float16")
    np.testing.assert_allclose(run(data), reference.layer_norm(data), 1e-3, 1e-3)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_row_is_nan_with_what_is_no_number(run, special, axis):
    data = numbers(2, 20, 20)
    data[1, 3, 7] = special
    with np.errstate(invalid="ignore"):
        expected = reference.layer_norm(data, axis=axis)
    assert np.isnan(expected).sum() == 20
    np.testing.assert_allclose(run(data, axis=axis), expected, 1e-5, 2e-5)


def test_epsilon(run):
    data = numbers(4, 64) * np.float32(1e-4)
    for epsilon in (1e-12, 1e-6, 3.0):
        np.testing.assert_allclose(
            run(data, epsilon=epsilon), reference.layer_norm(data, epsilon=epsilon), 1e-5, 1e-6
        )


@pytest.mark.parametrize("shape", [(37, 64), (5, 7), (2, 9, 6, 6)])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_bfloat16(target, shape, request):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wide, *affine = inputs(*shape, axis=1)
    data = wide.astype(ml_dtypes.bfloat16)
    expected = reference.layer_norm(data.astype("float32"), *affine, axis=1)
    if target == "llvm":  # TVM cannot cast to bfloat16 and back there, so arrays are passed as they are
        library = relay.build(tvm.IRModule.from_expr(function_of(data, *affine, axis=1)), "llvm")
        module = graph_executor.GraphModule(library["default"](tvm.cpu()))
        module.run(data=tvm.nd.array(data), gamma=affine[0], beta=affine[1])
        found = module.get_output(0).numpy().view(ml_dtypes.bfloat16)
    else:
        x, *constants = relay.var("x", shape=shape), *map(relay.const, affine)
        result = topi_ext.layer_norm(relay.cast(x, "bfloat16"), *constants, axis=1)
        function = relay.Function([x], relay.cast(result, "float32"))
        (found,) = request.getfixturevalue("emulated_cuda").run_relay(function, wide, executor="graph")
    np.testing.assert_allclose(found.astype("float32"), expected, 8e-3, 1.6e-2)


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((2, 8), {"dtype": "int32"}, "data must be of type float32, float16, bfloat16, not int32"),
        ((2, 8), {"axis": 2}, "have no axis 2"),
        ((2, relay.Any()), {}, "the extent along axis -1 must be known and above 0"),
        ((2, 0), {}, "the extent along axis -1 must be known and above 0"),
        ((2, 8), {"gamma": (1, 8)}, r"gamma must have the shape \(8,\)"),
        ((2, 8), {"beta": (7,)}, r"beta must have the shape \(8,\)"),
        (
            (2, 8),
            {"gamma": (8,), "of_gamma": "float16"},
            "gamma must be of type float32 or float32, not float16",
        ),
    ],
)
def test_what_is_refused(shape, options, message):
    data = relay.var("data", shape=shape, dtype=options.get("dtype", "float32"))
    affine = {
        name: relay.var(name, shape=options[name], dtype=options.get(f"of_{name}", "float32"))
        for name in ("gamma", "beta")
        if name in options
    }
    result = topi_ext.layer_norm(data, **affine, axis=options.get("axis", -1))
    with pytest.raises(tvm.TVMError, match=message):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([data, *affine.values()], result)))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_epsilons_that_are_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be above 0"):
        topi_ext.layer_norm(relay.var("x", shape=(2, 8)), epsilon=epsilon)


KERNELS = [
    ((2**18, 64), -1, "float16"),
    ((200, 768), -1, "float16"),
    ((64, 7), -1, "float32"),
    ((64, 5000), -1, "float16"),
    ((8, 100003), -1, "float32"),
    ((1, 64, 32, 32), 1, "float16"),
    ((1, 768, 14, 14), 1, "float32"),
    ((1, 1024, 32, 32), 1, "float16"),
    ((2, 2000, 32, 32), 1, "float32"),
]


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("shape, axis, dtype", KERNELS)
def test_compiles_without_spills(shape, axis, dtype, emulated_cuda, tmp_path):
    data, *affine = (
        relay.var("x", shape=each, dtype=of)
        for each, of in ((shape, dtype), *[((shape[axis],), "float32")] * 2)
    )
    function = relay.Function([data, *affine], topi_ext.layer_norm(data, *affine, axis=axis))
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1)


def test_rows_that_are_read_again(run):
    """More channels than the threads of a block keep in registers."""
    arrays = inputs(2, 32 * 1024 + 1)
    np.testing.assert_allclose(run(*arrays), reference.layer_norm(*arrays), 4e-6, 1e-5)


def test_many_rows(run):
    """A thread works on several of them."""
    arrays = inputs(2**16 + 3, 8, dtype="float16")
    np.testing.assert_allclose(run(*arrays), reference.layer_norm(*arrays), 1e-3, 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((2**18 + 1, 64), -1),
        ((25_088, 96), -1),
        ((197, 768), -1),
        ((33, 5000), -1),
        ((9, 7), -1),
        ((9, 40_001), -1),
    ]
    + [((2, 64, 50, 41), 1), ((1, 768, 14, 14), 1), ((2, 3, 5, 5), 1)],
)
def test_on_a_gpu(shape, axis, dtype):
    wide, gamma, beta = (torch.from_numpy(each).cuda() for each in inputs(*shape, axis=axis))
    data = wide.to(getattr(torch, dtype))
    x = relay.var("x", shape=shape, dtype=dtype)
    affine = [relay.const(each.cpu().numpy()) for each in (gamma, beta)]
    function = relay.Function([x], topi_ext.layer_norm(x, *affine, axis=axis))
    module = relay.build(tvm.IRModule.from_expr(function), "cuda")
    executor = graph_executor.GraphModule(module["default"](tvm.cuda()))
    executor.set_input("x", tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(data)))
    executor.run()
    tvm.cuda().sync()
    found = torch.utils.dlpack.from_dlpack(executor.get_output(0).to_dlpack())
    moved = data.double().movedim(axis, -1)
    expected = functional.layer_norm(moved, moved.shape[-1:], gamma.double(), beta.double()).movedim(-1, axis)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 4)
