"""Attention and products of a batch by cuDNN: when it is chosen, and what compiled code asks of it."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import numbers
from tests.ops.cudnn_oracle import TYPES
from tests.ops.test_attention import LAYOUTS, SWAPPED, function_of, inputs
from topi_ext.attention import cudnn, op, reference
from topi_ext.attention.problem import Problem
from topi_ext.cudnn import batch_matmul
from topi_ext.cudnn.session import LIBRARY

import tvm
from tvm import relay

PROBLEM = Problem(2, 3, 10, 20, 32, 64, 0.25, "float16")


def target(arch=90, libs=True):
    text = f"cuda -arch=sm_{arch}" + (f" -libs={LIBRARY}" if libs else "")
    return tvm.target.Target(text, host="llvm")


def changed(**fields):
    return Problem(**{**vars(PROBLEM), **fields})


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch):
    """As if cuDNN were the faster one for all."""
    monkeypatch.setattr(cudnn, "LONG", 1)


def test_the_faster_one_is_chosen(monkeypatch):
    monkeypatch.undo()
    chosen = [op.kernels_for(changed(keys=keys), target()).__name__.split(".")[-1] for keys in (2048, 4096)]
    assert chosen == ["cuda", "cudnn"]


@pytest.mark.parametrize(
    "problem, of_target, expected",
    [
        (PROBLEM, {}, "cudnn"),
        (changed(dtype="bfloat16"), {}, "cudnn"),
        (changed(layouts=SWAPPED), {}, "cudnn"),
        (PROBLEM, {"libs": False}, "cuda"),
        (PROBLEM, {"arch": 75}, "cuda"),
        (changed(dtype="float32"), {}, "cuda"),
        (changed(depth=12), {}, "cuda"),
        (changed(width=136), {}, "cuda"),
        (changed(mask=(1, 1, 10, 20), mask_dtype="float32"), {}, "cuda"),
    ],
    ids=str,
)
def test_which_one_is_chosen(problem, of_target, expected):
    assert op.kernels_for(problem, target(**of_target)).__name__.split(".")[-1] == expected


@pytest.mark.parametrize("problem", [PROBLEM, changed(layouts=SWAPPED, mask=(1, 1, 10, 20))], ids=str)
def test_the_problem_as_text(problem):
    assert Problem.from_json(problem.to_json()) == problem


@pytest.fixture
def answers(monkeypatch):
    """`answers(operator, compute)` computes by NumPy what compiled code asks; gives the texts asked."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    before = {}

    def register(operator, compute):
        asked = []

        def answer(text, *tensors):
            asked.append(text)
            *given, result = tensors
            result.copyfrom(compute(text, *(tensor.numpy() for tensor in given)).astype(result.dtype))

        before[operator.packed_function] = tvm.get_global_func(operator.packed_function)
        tvm.register_func(operator.packed_function, answer, override=True)
        return asked

    yield register
    for name, function in before.items():
        tvm.register_func(name, function, override=True)


@pytest.mark.parametrize("layouts", [LAYOUTS, SWAPPED], ids=["BHND", "BNHD"])
def test_compiled_code_asks_for_attention(emulated_cuda, answers, layouts):
    def compute(text, *arrays):
        problem = Problem.from_json(text)
        return reference.attention(*arrays, scale=problem.scale, layouts=problem.layouts)

    asked = answers(cudnn.OPERATOR, compute)
    arrays = inputs((2, 3, 10, 20, 32, 64), "float16", layouts)
    emulated_cuda.target = target()
    (found,) = emulated_cuda.run_relay(function_of(*arrays, scale=0.25, layouts=layouts), *arrays)
    np.testing.assert_array_equal(found, reference.attention(*arrays, scale=0.25, layouts=layouts))
    assert list(map(Problem.from_json, asked)) == [changed(layouts=layouts)]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    arrays = inputs((2, 3, 10, 20, 32, 64), "float16")
    with pytest.raises(tvm.TVMError, match=r'missing: pip install "tvm-vision-passes\[cudnn\]"'):
        relay.build(tvm.IRModule.from_expr(function_of(*arrays, scale=0.25)), target())


class Tensor:
    """Keeps what it is told: `set_dim(x)` makes `told["dim"]`."""

    def __init__(self, value, **told):
        self.value, self.told = value, told

    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda: self.told[name[len("get_") :]]
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda given: self.told.update({name[len("set_") :]: given}) or self


class GraphInNumpy:
    """Computes what is added to it, with tensors in the layout that they are said to have."""

    def __init__(self, arrays):
        self.arrays, self.tensors = arrays, []

    def tensor(self, name, dim, stride):
        flat = np.ascontiguousarray(self.arrays[name], "float64").reshape(-1)
        value = np.lib.stride_tricks.as_strided(flat, dim, [8 * step for step in stride])
        return self._new(value, dim=dim)

    def sdpa(self, name, q, k, v, attn_scale, is_inference):
        assert is_inference
        return self._new(reference.attention(q.value, k.value, v.value, scale=attn_scale)), None

    def matmul(self, left, right):
        return self._new(left.value @ right.value)

    def _new(self, value, **told):
        self.tensors.append(Tensor(value, **told))
        return self.tensors[-1]

    def result(self):
        """What is in memory in the end."""
        (result,) = (tensor for tensor in self.tensors if tensor.told.get("output"))
        dim, stride = result.told["dim"], result.told["stride"]
        assert result.value.shape == tuple(dim)
        flat = np.full(result.value.size, np.nan)
        np.lib.stride_tricks.as_strided(flat, dim, [8 * step for step in stride])[...] = result.value
        return flat

    def check_uids(self):
        assert [tensor.told["uid"] for tensor in self.tensors] == list(range(1, len(self.tensors) + 1))


def library(graph):
    return SimpleNamespace(data_type=TYPES, pygraph=lambda **_given: graph)


@pytest.mark.parametrize("result", ["BHND", "BNHD"])
@pytest.mark.parametrize("layouts", [LAYOUTS, SWAPPED], ids=["BHND", "BNHD"])
def test_the_graph_is_attention(layouts, result):
    layouts = (*layouts[:3], result)
    arrays = inputs((2, 3, 10, 20, 32, 64), layouts=layouts)
    graph = GraphInNumpy(dict(zip(op.ARGUMENTS, arrays)))
    cudnn.build_graph(library(graph), changed(layouts=layouts), None)
    expected = reference.attention(*arrays, scale=0.25, layouts=layouts)
    np.testing.assert_allclose(graph.result().reshape(expected.shape), expected, 1e-5, 1e-6)
    graph.check_uids()


# --- products of a batch

PRODUCTS = {  # batches, rows, columns, length, transposed, type of the result
    "plain": ((3, 3), 5, 16, 8, (False, False), "float16"),
    "rows by rows": ((3, 3), 5, 16, 8, (False, True), "float16"),
    "columns by columns": ((3, 3), 16, 8, 5, (True, False), "float16"),
    "all transposed": ((3, 3), 16, 24, 8, (True, True), "float16"),
    "one for all": ((3, 1), 5, 16, 8, (False, False), "float16"),
    "one for all, on the left": ((1, 3), 5, 16, 8, (False, True), "float16"),
    "a wider result": ((2, 2), 5, 16, 8, (False, False), "float32"),
}


def matrices(batches, rows, columns, length, transposed, result):
    shapes = (rows, length), (length, columns)
    arrays = [
        numbers(batch, *(shape[::-1] if flip else shape), seed=seed, dtype="float16")
        for seed, (batch, shape, flip) in enumerate(zip(batches, shapes, transposed))
    ]
    names = [relay.var(name, shape=each.shape, dtype="float16") for name, each in zip("xy", arrays)]
    options = {"transpose_a": transposed[0], "transpose_b": transposed[1], "out_dtype": result}
    return arrays, names, relay.nn.batch_matmul(*names, **options)


def product_of(arrays, transposed):
    wide = (array.astype("float64") for array in arrays)
    left, right = (array.swapaxes(1, 2) if flip else array for array, flip in zip(wide, transposed))
    return left @ right


def compute(text, *arrays):
    return product_of(arrays, json.loads(text)["transposed"])


@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.parametrize("has_more", [False, True])
def test_compiled_code_asks_for_products(emulated_cuda, answers, case, has_more):
    """Also with an operator behind that TVM fuses."""
    asked = answers(batch_matmul.OPERATOR, compute)
    arrays, names, y = matrices(*PRODUCTS[case])
    y = relay.nn.relu(y) if has_more else y
    emulated_cuda.target = target()
    (found,) = emulated_cuda.run_relay(relay.Function(names, y), *arrays)
    expected = product_of(arrays, PRODUCTS[case][4]).astype(PRODUCTS[case][5])
    np.testing.assert_array_equal(found, np.maximum(expected, 0) if has_more else expected)
    assert len(asked) == 1


@pytest.mark.parametrize("case", PRODUCTS)
def test_the_graph_is_the_product(case):
    arrays = matrices(*PRODUCTS[case])[0]
    transposed, result = PRODUCTS[case][4:]
    problem = {
        "shapes": [array.shape for array in arrays],
        "transposed": transposed,
        "dtype": "float16",
        "result": result,
    }
    graph = GraphInNumpy(dict(zip(("left", "right"), arrays)))
    batch_matmul.build_graph(library(graph), json.dumps(problem), None)
    expected = product_of(arrays, transposed)
    np.testing.assert_allclose(graph.result().reshape(expected.shape), expected, 1e-6)
    assert graph.tensors[-1].told["data_type"] == result
    graph.check_uids()


@pytest.mark.parametrize(
    "shapes, dtype, of_target",
    [
        (((2, 5, 8), (2, 16, 8)), "float32", {}),
        (((2, 5, 8), (2, 16, 8)), "float16", {"libs": False}),
        (((2, 5, 8), (2, 16, 8)), "float16", {"arch": 75}),
        (((2, 5, 12), (2, 16, 12)), "float16", {}),
        (((2, 5, 8), (2, 10, 8)), "float16", {}),
        (((2, relay.Any(), 8), (2, 16, 8)), "float16", {}),
    ],
)
def test_products_that_tvm_computes(shapes, dtype, of_target):
    types = [relay.TensorType(shape, dtype) for shape in shapes]
    attrs = relay.nn.batch_matmul(relay.var("x"), relay.var("y")).attrs
    assert not batch_matmul.is_capable(attrs, types, dtype, target(**of_target))


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("case", PRODUCTS)
def test_products_on_a_gpu(case):
    pytest.importorskip("cudnn")
    arrays, names, y = matrices(*PRODUCTS[case])
    library = relay.build(tvm.IRModule.from_expr(relay.Function(names, y)), f"cuda -libs={LIBRARY}")
    module = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cuda()))
    module.run(**{name.name_hint: tvm.nd.array(array) for name, array in zip(names, arrays)})
    assert batch_matmul.OPERATOR.packed_function in library.lib.get_source("ll")
    expected = product_of(arrays, PRODUCTS[case][4])
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, 2e-3, 2e-3)
