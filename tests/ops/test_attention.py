"""Attention on LLVM and the emulated CUDA device, with and without tensor cores."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import numbers
from topi_ext.attention import op, reference
from topi_ext.attention.problem import LAYOUTS

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TOLERANCES = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}
SWAPPED = ("BNHD", "BNHD", "BNHD", "BNHD")
SHAPES = [  # batch, heads, queries, keys, depth, width
    (1, 2, 16, 64, 16, 16),
    (2, 3, 37, 53, 32, 64),
    (1, 1, 70, 130, 64, 32),
    (1, 2, 5, 1, 8, 24),
    (1, 1, 1, 33, 128, 128),
    (1, 2, 7, 9, 5, 3),
    (1, 1, 3, 40, 20, 136),
]


def inputs(shape, dtype="float32", layouts=LAYOUTS, mask=None):
    batch, heads, queries, keys, depth, width = shape
    arrays = [
        numbers(batch, heads, items, length, seed=seed)
        for seed, (items, length) in enumerate([(queries, depth), (keys, depth), (keys, width)])
    ]
    arrays = [array if layout == "BHND" else array.swapaxes(1, 2) for array, layout in zip(arrays, layouts)]
    arrays = [np.ascontiguousarray(array * 2).astype(dtype) for array in arrays]
    return arrays if mask is None else [*arrays, mask]


def function_of(*arrays, **options):
    names = [relay.var(n, shape=a.shape, dtype=str(a.dtype)) for n, a in zip(op.ARGUMENTS, arrays)]
    return relay.Function(names, topi_ext.attention(*names, **options))


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""

    def on_llvm(*arrays, **options):
        library = relay.build(tvm.IRModule.from_expr(function_of(*arrays, **options)), "llvm")
        module = graph_executor.GraphModule(library["default"](tvm.cpu()))
        for at, array in enumerate(arrays):
            module.set_input(at, array)
        module.run()
        return module.get_output(0).numpy()

    def on_cuda(*arrays, **options):
        return cuda.run_relay(function_of(*arrays, **options), *arrays)[0]

    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")
    return on_cuda


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layouts", [LAYOUTS, SWAPPED], ids=["BHND", "BNHD"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(run, shape, layouts, dtype):
    arrays = inputs(shape, dtype, layouts)
    options = {"scale": shape[4] ** -0.5, "layouts": layouts}
    found, expected = run(*arrays, **options), reference.attention(*arrays, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, TOLERANCES[dtype], TOLERANCES[dtype])
