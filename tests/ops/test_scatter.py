"""`scatter_nd` and `scatter_elements` on CUDA, where many places are written, some twice."""

import numpy as np
import pytest
import torch

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers, run

import tvm
from tvm import relay
from tvm.contrib import graph_executor

DTYPES = ["float32", "float16", "int64", "bool"]


def drawn(shape, dtype, seed):
    return (numbers(*shape, seed=seed) * 8).astype(dtype)


def elements(shape, of_indices, axis, dtype, mode):
    """Data, indices (some from the end, some outside) and updates, a function, the result."""
    data, new = drawn(shape, dtype, 0), drawn(of_indices, dtype, 1)
    length = shape[axis]
    places = np.random.default_rng(2).integers(-length - 2, length + 2, of_indices)
    expected = data.copy()
    for at in np.ndindex(of_indices):
        if -length <= places[at] < length:
            into = (*at[:axis], places[at], *at[axis + 1 :])
            expected[into] = new[at] + (expected[into] if mode == "add" else 0)
    return (data, places, new), lambda *given: relay.scatter_elements(*given, axis, mode), expected


def rows(shape, depth, count, dtype, mode):
    data, new = drawn(shape, dtype, 0), drawn((count, *shape[depth:]), dtype, 1)
    generator = np.random.default_rng(2)
    places = np.stack([generator.integers(-1, length + 1, count) for length in shape[:depth]])
    expected = data.copy()
    for number, at in enumerate(places.T):
        if all(0 <= index < length for index, length in zip(at, shape)):
            expected[tuple(at)] = new[number] + (expected[tuple(at)] if mode == "add" else 0)
    return (data, places, new), lambda *given: relay.scatter_nd(*given, mode), expected


CASES = {
    **{f"elements of {dtype}": elements((40,), (60,), 0, dtype, "update") for dtype in DTYPES},
    "elements along the last axis": elements((3, 20), (3, 30), 1, "float32", "update"),
    "elements along the first axis": elements((20, 3, 2), (15, 3, 2), 0, "float32", "update"),
    "elements of an axis in the middle": elements((2, 20, 3), (2, 25, 3), 1, "float16", "update"),
    "elements that are added": elements((3, 20), (3, 30), 1, "int32", "add"),
    "elements of a row that are added": elements((20,), (30,), 0, "float32", "add"),
    **{f"places of {dtype}": rows((40,), 1, 60, dtype, "update") for dtype in DTYPES},
    "rows": rows((20, 7), 1, 30, "float32", "update"),
    "rows at two indices": rows((4, 5, 3), 2, 30, "float16", "update"),
    "rows of many elements": rows((12, 700), 1, 20, "float32", "update"),
    "rows that are added": rows((20, 7), 1, 30, "int32", "add"),
    "places that are added": rows((20,), 1, 30, "float32", "add"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_last_holds(name, emulated_cuda):
    arrays, function, expected = CASES[name]
    given = [relay.var(f"x{i}", shape=each.shape, dtype=str(each.dtype)) for i, each in enumerate(arrays)]
    (found,) = emulated_cuda.run_relay(relay.Function(given, function(*given)), *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert "atomic" in emulated_cuda.sources[-1]


@pytest.mark.parametrize(
    "case",
    [
        elements((20, 3), (0, 3), 0, "float32", "update"),
        elements((20, 3), (15, 0), 0, "float32", "add"),
        elements((20, 0), (15, 0), 0, "float32", "update"),
        rows((20, 7), 1, 0, "float32", "add"),
        rows((20, 0), 1, 30, "float32", "update"),
    ],
    ids=lambda case: " ".join(str(array.shape) for array in case[0]),
)
def test_nothing_that_is_written(case, emulated_cuda):
    arrays, function, expected = case
    given = [relay.var(f"x{i}", shape=each.shape, dtype=str(each.dtype)) for i, each in enumerate(arrays)]
    (found,) = emulated_cuda.run_relay(relay.Function(given, function(*given)), *arrays)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [100, 16_384])
def test_permutations_on_a_gpu(length):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0))
    data, new = torch.zeros(length, dtype=torch.int64), torch.arange(length)
    names = "data", "places", "new"
    arrays = [data.numpy(), order[None].numpy(), new.numpy()]
    given = [relay.var(name, shape=each.shape, dtype="int64") for name, each in zip(names, arrays)]
    function = relay.Function(given, relay.scatter_nd(*given, "update"))
    library = relay.build(tvm.IRModule.from_expr(function), "cuda")
    module = graph_executor.GraphModule(library["default"](tvm.cuda()))
    module.set_input(**dict(zip(names, arrays)))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), torch.argsort(order).numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name):
    arrays, function, expected = CASES[name]
    given = [relay.var(f"x{i}", shape=each.shape, dtype=str(each.dtype)) for i, each in enumerate(arrays)]
    mod = tvm.IRModule.from_expr(relay.Function(given, function(*given)))
    (found,) = run(mod, *arrays, target="cuda")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
