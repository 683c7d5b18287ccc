"""Kernels for this processor that are compiled at run time, and kept for the next process."""

import multiprocessing

import numpy as np
import pytest

from topi_ext._tvm import compiled
from topi_ext.bootstrap import user_cache

import tvm
from tvm import te

pytestmark = pytest.mark.usefixtures("kernel_cache")

TARGET = tvm.target.Target("llvm")


@pytest.fixture
def build(monkeypatch):
    """How often TVM builds."""
    calls, stock = [], tvm.build
    monkeypatch.setattr(tvm, "build", lambda *args: calls.append(args) or stock(*args))
    return calls


def sums(added):
    """What the kernel that adds a number computes from 0, 1 and 2."""
    x = te.placeholder((3,), name="x")
    y = te.compute((3,), lambda i: x[i] + added, name="y")
    data, result = (tvm.nd.array(np.arange(3, dtype="float32")) for _ in range(2))
    compiled(te.create_prim_func([x, y]), TARGET)(data, result)
    return result.numpy().tolist()


def entries(folder):
    return [*folder.glob(f"*{user_cache.SUFFIX}")]


def test_a_kernel_is_built_once(build, kernel_cache):
    assert [sums(2.0), sums(2.0)] == [[2, 3, 4]] * 2
    assert len(build) == len(entries(kernel_cache)) == 1


def test_another_kernel_is_another_one(build, kernel_cache):
    assert [sums(2.0), sums(3.0)] == [[2, 3, 4], [3, 4, 5]]
    assert len(build) == len(entries(kernel_cache)) == 2


def test_another_process_finds_it(build, kernel_cache):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(sums, [2.0]) == [2, 3, 4]
    assert sums(2.0) == [2, 3, 4]
    assert not build


def test_another_target_is_another_kernel(build):
    x = te.placeholder((3,), name="x")
    function = te.create_prim_func([x, te.compute((3,), lambda i: x[i] + 1, name="y")])
    for target in ("llvm", "llvm -mcpu=x86-64"):
        compiled(function, tvm.target.Target(target))
    assert len(build) == 2


def test_what_llvm_cannot_read_is_built_anew(build, monkeypatch):
    monkeypatch.setattr(user_cache, "load", lambda _key: b"no code")
    assert sums(2.0) == [2, 3, 4]
    assert len(build) == 1


@pytest.mark.parametrize("switch", user_cache.OFF)
def test_it_may_be_off(build, monkeypatch, switch):
    monkeypatch.setenv(user_cache.SWITCH, switch)
    assert [sums(2.0), sums(2.0)] == [[2, 3, 4]] * 2
    assert len(build) == 2


def test_tvm_decides_what_a_kernel_becomes(build, monkeypatch):
    sums(2.0)
    monkeypatch.setattr(tvm.support, "libinfo", lambda: {"GIT_COMMIT_HASH": "another"})
    assert sums(2.0) == [2, 3, 4]
    assert len(build) == 2
