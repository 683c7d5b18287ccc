"""Products of matrices by oneDNN: against NumPy, with what is fused behind them, and what is left to TVM."""

import numpy as np
import pytest

from tests.helpers import numbers
from topi_ext.onednn import library, matmul

import tvm
from tvm import relay
from tvm.contrib import graph_executor

pytestmark = pytest.mark.skipif(library.library() is None, reason="oneDNN is not installed")


def compiled(result, target="llvm -libs=onednn"):
    lib = relay.build(
        tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(result), result)), target
    )
    return lib, graph_executor.GraphModule(lib["default"](tvm.cpu()))


def ran(executor, **arrays):
    executor.run(**arrays)
    return executor.get_output(0).numpy()


def calls_onednn(lib):
    return matmul.PACKED_FUNCTION in lib.lib.get_source("ll")


@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_a_product_and_what_is_fused_behind_it(batches, transposed):
    shapes = [[batch, *sides] for batch, sides in zip(batches, ((5, 7), (7, 9)))]
    for shape, is_transposed in zip(shapes, transposed):
        if is_transposed:
            shape[1:] = shape[:0:-1]
    x, y = (relay.var(name, shape=shape) for name, shape in zip("xy", shapes))
    product = relay.nn.batch_matmul(x, y, transpose_a=transposed[0], transpose_b=transposed[1])
    left, right = (numbers(*shape, seed=at) for at, shape in enumerate(shapes))
    flipped = [
        array.transpose(0, 2, 1) if turned else array for array, turned in zip((left, right), transposed)
    ]
    lib, executor = compiled(relay.nn.relu(product * relay.const(0.5)))
    expected = np.maximum(flipped[0] @ flipped[1] * 0.5, 0)
    np.testing.assert_allclose(ran(executor, x=left, y=right), expected, rtol=1e-5, atol=1e-5)
    assert calls_onednn(lib)


def product_of(dtype="float32", batch=2):
    x, y = (relay.var(name, shape=(batch, 4, 4), dtype=dtype) for name in "xy")
    return relay.nn.batch_matmul(x, y)


@pytest.mark.parametrize("rows", [1, 5, relay.Any()], ids=["row", "rows", "rows at run time"])
@pytest.mark.parametrize("turned", [(False, True), (False, False), (True, False)])
def test_a_product_of_two_matrices(rows, turned, caplog):
    """Which TVM's nn.dense splits by 27 columns of 216, 69 times as slow as oneDNN."""
    x = relay.var("x", shape=(7, rows) if turned[0] else (rows, 7))
    weight = numbers(216, 7, seed=1)
    if turned == (False, True):
        product = relay.nn.dense(x, relay.const(weight))
    else:
        product = relay.nn.matmul(x, relay.const(weight.T.copy()), transpose_a=turned[0])
    result = relay.nn.relu(relay.nn.bias_add(product, relay.const(weight[:, 0])))
    mod = tvm.IRModule.from_expr(relay.Function([x], result))
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm -libs=onednn")
    assert matmul.PACKED_FUNCTION in executable.lib.get_source("ll")
    assert "not optimized" not in caplog.text
    left = numbers(rows if isinstance(rows, int) else 3, 7)
    given = tvm.nd.array(left.T.copy() if turned[0] else left)
    found = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu()).run(given).numpy()
    np.testing.assert_allclose(found, np.maximum(left @ weight.T + weight[:, 0], 0), rtol=1e-5, atol=1e-5)


def test_without_onednn_in_the_target_and_in_other_types_it_is_left_to_tvm():
    assert not calls_onednn(compiled(product_of(), "llvm")[0])
    assert not calls_onednn(compiled(product_of("float64"))[0])


def test_without_the_library(monkeypatch):
    _, executor = compiled(product_of())
    monkeypatch.setattr(library, "library", lambda: None)
    monkeypatch.setattr(matmul, "_of_thread", matmul._OfThread())
    assert not calls_onednn(compiled(product_of())[0])
    with pytest.raises(tvm.TVMError, match="oneDNN is missing here: pip install onednn-cpu-gomp"):
        ran(executor, x=numbers(2, 4, 4), y=numbers(2, 4, 4))


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("is_for_all", [False, True], ids=["each", "one for all"])
def test_sizes_that_are_known_only_at_run_time(is_for_all, transposed):
    unknown = relay.Any()
    x = relay.var("x", shape=(1 if is_for_all else unknown, unknown, unknown))
    y = relay.var("y", shape=(unknown, unknown, unknown))
    product = relay.nn.batch_matmul(x, y, transpose_a=transposed[0], transpose_b=transposed[1])
    mod = tvm.IRModule.from_expr(relay.Function([x, y], relay.nn.relu(product)))
    executable = relay.vm.compile(mod, "llvm -libs=onednn")
    machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())
    for batch, rows, length, columns in ((3, 5, 7, 9), (2, 1, 7, 4), (3, 5, 7, 9), (2, 3, 0, 4)):
        left = numbers(1 if is_for_all else batch, rows, length)
        right = numbers(batch, length, columns, seed=1)
        given = [
            np.ascontiguousarray(array.transpose(0, 2, 1)) if turned else array
            for array, turned in zip((left, right), transposed)
        ]
        found = machine.run(*map(tvm.nd.array, given)).numpy()
        np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-5, atol=1e-5)
    wrong = [numbers(1 if is_for_all else 2, 3, 4), numbers(2, 5, 6)]
    with pytest.raises(tvm.TVMError, match="cannot be multiplied"):
        machine.run(*map(tvm.nd.array, wrong))


def test_products_are_given_up(monkeypatch):
    thread = matmul._OfThread()
    monkeypatch.setattr(matmul, "_of_thread", thread)
    monkeypatch.setattr(matmul, "MAX_PRIMITIVES", 2)
    for batch in (1, 2, 3, 1):
        x, y = numbers(batch, 4, 4), numbers(batch, 4, 4, seed=1)
        found = ran(compiled(product_of(batch=batch))[1], x=x, y=y)
        np.testing.assert_allclose(found, x @ y.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)
        assert 1 <= len(thread.products) <= 2
