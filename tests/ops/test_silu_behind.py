"""Convolutions whose SiLU is computed behind oneDNN: against NumPy, in bands, at the limits."""

from dataclasses import replace

import numpy as np
import pytest

import topi_ext
from tests.ops.convolutions import Case, in_float32, options
from tests.ops.test_conv2d_nhwc_onednn import executor_of, ran
from topi_ext import _avx512
from topi_ext.conv2d_nhwc import onednn, silu_behind, winograd
from topi_ext.conv2d_nhwc.bands import band_of, rows_of_a_band

import tvm
from tvm import relay

TARGET = tvm.target.Target(topi_ext.cpu_target())


def silu(**more):
    return options(activation="silu", weight_id="some", **more)


CLOSE = {"bfloat16": {"rtol": 2**-7, "atol": 2**-7}, "float32": {"rtol": 1e-5, "atol": 1e-5}}

CASES = [
    Case((12, 16), 16, 32, dtype="bfloat16", **silu()),
    Case((13, 8), 3, 16, batch=2, dtype="bfloat16", **silu(strides=2)),
    Case((11, 10), 16, 16, dtype="bfloat16", residual=True, **silu()),
    Case((9, 4), 48, 8, kernel=(1, 1), dtype="bfloat16", batch=3, residual=True, **silu(padding=0)),
    Case((9, 8), 16, 16, kernel=(5, 3), dtype="bfloat16", bias="", **silu(padding=(3, 1, 0, 1))),
    Case((10, 16), 32, 32, dtype="bfloat16", **silu(groups=4)),
    Case((4, 2), 8, 32, kernel=(4, 2), dtype="bfloat16", **silu(padding=0)),  # a matrix product
]


@pytest.fixture(autouse=True)
def has_instructions():
    if not _avx512.has_instructions(TARGET) or not onednn.multiplies("bfloat16"):
        pytest.skip("this processor has no AVX-512, or multiplies no bfloat16")


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("case", CASES + [in_float32(CASES[at]) for at in (1, 3, 4, 5, 6)], ids=str)
def test_as_the_oracle(case, rows, monkeypatch):
    _, _, width, filters = case.problem().shape
    monkeypatch.setattr(silu_behind, "BAND", rows * width * filters * 2)
    assert silu_behind.is_better(case.problem(), TARGET)
    arrays = case.arrays()
    found = ran(executor_of(case.function(arrays), TARGET), arrays)
    close = CLOSE[case.dtype]
    atol = 4 * close["atol"] if case.residual else close["atol"]  # summands may be larger than their sum
    np.testing.assert_allclose(found, case.expected(arrays), rtol=close["rtol"], atol=atol)


def test_a_batch_that_only_the_run_knows(monkeypatch):
    half = pytest.importorskip("ml_dtypes").bfloat16
    monkeypatch.setattr(silu_behind, "BAND", 1 << 8)
    case = CASES[1]
    arrays = case.arrays()
    data = relay.var("data", shape=(relay.Any(), *case.shape[1:]), dtype="bfloat16")
    weight = relay.cast(relay.const(arrays["weight"]), "bfloat16")
    body = topi_ext.conv2d_nhwc(data, weight, relay.const(arrays["bias"]), **case.options)
    executable = relay.vm.compile(tvm.IRModule.from_expr(relay.Function([data], body)), TARGET)
    machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())
    expected = case.expected(arrays)
    for count in (2, 0, 1):
        found = machine.run(arrays["data"][:count].astype(half)).numpy().view(half)
        np.testing.assert_allclose(found.astype("float32"), expected[:count], **CLOSE["bfloat16"])


@pytest.mark.parametrize("dtype", CLOSE)
def test_what_is_not_finite(dtype):
    """As in torch: minus infinity times the sigmoid of it, which is 0, is no number."""
    x = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 88.5, -88.5, 0.0], "float32")
    # Instructions for bfloat16 multiply two channels at once: of one, the next pixel's too, by a weight 0.
    data = np.zeros((1, 1, 32, 2), "float32")
    data[0, 0, : len(x), 0] = x
    case = Case((1, 32), 2, 1, kernel=(1, 1), dtype=dtype, bias="", **silu(padding=0))
    arrays = {"data": data, "weight": np.ones((1, 1, 1, 2), "float32")}
    found = ran(executor_of(case.function(arrays), TARGET), arrays)[0, 0, : len(x), 0]
    np.testing.assert_allclose(found, [np.inf, np.nan, np.nan, 1e30, 0, 88.5, 0, 0], rtol=2**-7, atol=1e-30)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16", "out_dtype": "float16"},
        {"out_size_of": (3, 3)},  # 27 elements in a row
        {"block": 2},
        {"residual": "float32"},
    ],
    ids=str,
)
def test_what_is_left_to_onednn(change):
    problem = CASES[0].problem()
    if size := change.pop("out_size_of", None):
        problem = replace(problem, size=(size[0] + 2, size[1] + 2), filters=9)
    assert not silu_behind.is_better(replace(problem, **change), TARGET)
    assert not silu_behind.is_better(CASES[0].problem(), tvm.target.Target("llvm -libs=onednn"))


def test_by_winograd(monkeypatch):
    """Whose transforms have the same sigmoid."""
    case = in_float32(Case((30, 32), 32, 64, residual=True, **silu()))
    monkeypatch.setattr(winograd, "is_better", lambda problem: True)
    assert not silu_behind.is_better(case.problem(), TARGET)
    arrays = case.arrays()
    found = ran(executor_of(case.function(arrays), TARGET), arrays)
    np.testing.assert_allclose(found, case.expected(arrays), rtol=1e-4, atol=1e-4)


def test_how_precise_it_is_in_float32():
    x = np.concatenate([np.linspace(-20, 20, 1023), np.linspace(-85, 85, 1024), [-0.0]]).astype("float32")
    case = Case((1, len(x)), 1, 1, kernel=(1, 1), dtype="float32", bias="", **silu(padding=0))
    arrays = {"data": x[None, None, :, None], "weight": np.ones((1, 1, 1, 1), "float32")}
    assert silu_behind.is_better(case.problem(), TARGET)
    found = ran(executor_of(case.function(arrays), TARGET), arrays)[0, 0, :, 0]
    exact = x.astype("float64") / (1 + np.exp(-x.astype("float64")))
    np.testing.assert_allclose(found[x > -10], exact[x > -10], rtol=1e-6)
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_bands():
    """They are about equally long, and together read and write what the whole does."""
    problem = Case((37, 8), 8, 8, **silu(strides=2, padding=(1, 1, 1, 1))).problem()
    height = problem.out_size[0]
    rows = rows_of_a_band(problem, row=10, most=79)
    assert height == 19 and rows == 7
    bands = [band_of(problem, begin, min(rows, height - begin)) for begin in range(0, height, rows)]
    assert [band.out_size[0] for band, _ in bands] == [7, 7, 5]
    assert [first for _, first in bands] == [0, 13, 27]
    assert rows_of_a_band(problem, 10, 79, multiple=4) == 8
    assert rows_of_a_band(replace(problem, weight_id=""), 10, 79) == height
