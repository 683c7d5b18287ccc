"""Calls of oneDNN that are made again without Python."""

import functools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import ops
from tests.ops.convolutions import Case, options
from tests.ops.test_conv2d_nhwc_onednn import executor_of, in_float32, ran
from topi_ext.conv2d_nhwc import conv2d_nhwc, onednn, reference
from topi_ext.onednn import calls, library, matmul

import tvm
from tvm import relay

CHECK = Path(__file__).with_name("remembered_calls_check.c")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}

pytestmark = pytest.mark.skipif(library.library() is None, reason="needs oneDNN")


def test_it_is_compiled():
    assert calls._native() is not None
    assert calls.why_not_remembered() is None


def test_a_library_of_an_older_source_is_not_used_in_silence(monkeypatch, tmp_path):
    source = tmp_path / "older.c"
    source.write_text("void remember(void) {}")
    older = tmp_path / "remembered_calls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", older, source], check=True)
    monkeypatch.setattr(calls, "LIBRARY", older)
    native = functools.cache(calls._native.__wrapped__)
    monkeypatch.setattr(calls, "_native", native)
    with pytest.warns(UserWarning, match="compiled from an older source.*pip install -e"):
        assert native() is None
    assert "older source" in calls.why_not_remembered()


def test_a_library_that_is_not_compiled_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(calls, "LIBRARY", tmp_path / "remembered_calls.so")
    monkeypatch.setattr(calls, "_native", calls._native.__wrapped__)
    assert calls.why_not_remembered() == "it is not compiled"


@pytest.mark.parametrize(
    "case",
    [
        Case((5, 6), 8, 16, batch=2, **options(activation="silu", final_activation=("clip", -1.0, 1.0))),
        Case((5, 6), 8, 16, residual=True, **options(strides=2)),
        Case((5, 6), 8, 16, kernel=(1, 1), bias=None, **options()),
        Case((7, 7), 8, 12, kernel=(7, 7), batch=2, **options(padding=0, activation="prelu")),
    ],
    ids=str,
)
def test_the_second_call_is_made_without_python(case, in_python):
    case = in_float32(replace(case, options={**case.options, "weight_id": "some"}))
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    for factor in (1, 2, -1):  # all tensors have places of their own
        given = {name: np.float32(factor) * array for name, array in arrays.items()}
        given["weight"] = arrays["weight"]
        np.testing.assert_allclose(ran(executor, given), case.expected(given), **CLOSE)
    assert len(in_python) == 1


def test_weights_that_are_packed_in_each_call_are_not_remembered(in_python):
    case = in_float32(Case((5, 6), 8, 16, **options()))
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    for _ in range(2):
        np.testing.assert_allclose(ran(executor, arrays), case.expected(arrays), **CLOSE)
    assert len(in_python) == 2


def test_what_a_thread_has_forgotten_is_remembered_again(in_python):
    case = in_float32(Case((5, 6), 8, 16, **options(weight_id="some")))
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    for _ in range(2):
        for _ in range(3):
            np.testing.assert_allclose(ran(executor, arrays), case.expected(arrays), **CLOSE)
        calls.forget_all_of_thread()
    assert len(in_python) == 2


def test_others_may_pack_shared_weights_anew(in_python):
    """Two layers have the same id, and the user gives them different weights, in turn."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 5, 6, 8), "float32")
    weights = [rng.standard_normal((16, 3, 3, 8), "float32") for _ in range(2)]
    executors = []
    for activation in (None, "relu"):
        variables = [relay.var("data", shape=data.shape), relay.var("weight", shape=weights[0].shape)]
        call = conv2d_nhwc(*variables, padding=1, weight_id="both", activation=activation)
        executors.append(executor_of(relay.Function(variables, call)))
    for _ in range(4):
        for executor, weight, least in zip(executors, weights, (-np.inf, 0)):
            wanted = np.maximum(reference.conv2d_nhwc(data, weight, padding=1), least)
            np.testing.assert_allclose(ran(executor, {"data": data, "weight": weight}), wanted, **CLOSE)
    same = {"data": data, "weight": weights[0]}
    in_python.clear()
    for executor in executors:
        ran(executor, same)  # the second of them finds what is packed
        ran(executor, same)
    assert len(in_python) == 1


def test_products_are_made_without_python(monkeypatch):
    thread = matmul._OfThread()
    monkeypatch.setattr(matmul, "_of_thread", thread)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((3, 4, 5), "float32") for _ in range(2))
    variables = [relay.var(name, shape=x.shape) for name in "xy"]
    function = relay.Function(variables, relay.nn.batch_matmul(*variables))
    assert "nn.batch_matmul" in ops(tvm.IRModule.from_expr(function))
    executor = executor_of(function)
    ran(executor, {"x": x, "y": y})
    monkeypatch.setattr(matmul, "_of_thread", None)  # which Python would need
    np.testing.assert_allclose(ran(executor, {"x": y, "y": x}), y @ x.transpose(0, 2, 1), **CLOSE)
    monkeypatch.setattr(matmul, "_of_thread", matmul._OfThread())  # forgets all of them
    assert not matmul._of_thread.products
    ran(executor, {"x": x, "y": y})
    assert len(matmul._of_thread.products) == 1


def test_without_the_compiled_functions(in_python, monkeypatch):
    monkeypatch.setattr(calls, "_native", lambda: None)
    case = in_float32(Case((5, 6), 8, 16, **options(weight_id="some")))
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    for _ in range(2):
        np.testing.assert_allclose(ran(executor, arrays), case.expected(arrays), **CLOSE)
    assert len(in_python) == 2


def test_an_error_in_python_is_raised(in_python, monkeypatch):
    case = in_float32(Case((5, 6), 8, 16, **options()))
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    monkeypatch.setattr(onednn, "address_of", None)
    with pytest.raises(TypeError, match="not callable"):
        ran(executor, arrays)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_under_sanitizers(sanitizers, tmp_path):
    """No memory is lost, read after it is freed, or read while another thread writes it."""
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("needs gcc")
    program = tmp_path / "check"
    flags = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-fsanitize={sanitizers}"]
    subprocess.run([compiler, *flags, "-fno-sanitize-recover", CHECK, "-o", program], check=True)
    # Without a random layout of memory, which the sanitizer for threads does not know on newer kernels.
    run = [shutil.which("setarch") or "env", *(["-R"] if shutil.which("setarch") else []), program]
    found = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert found.stdout == "done\n", found.stderr
