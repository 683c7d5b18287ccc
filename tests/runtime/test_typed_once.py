"""Types that are inferred once: skipped are runs of InferType that would change nothing, and no others."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import module
from tvm_passes import runtime
from tvm_passes.runtime.typed_once import TypedOnce

import tvm
from tvm import relay

WEIGHTS = 2**26  # bytes


@pytest.fixture
def ran():
    """The names of the passes that run, in a context with this instrument."""
    names = []

    @tvm.instrument.pass_instrument
    class Seen:
        def run_before_pass(self, _mod, info):
            names.append(info.name)

    with tvm.transform.PassContext(instruments=[TypedOnce(), Seen()]):
        yield names


def network():
    x = relay.var("x", shape=(2, 3))
    return module(x, relay.add(x, relay.const(np.ones(3, "float32"))))


def test_a_typed_module_is_not_typed_again(ran):
    typed = relay.transform.InferType()(network())
    again = relay.transform.InferType()(typed)
    assert ran == ["InferType"]
    assert again["main"].same_as(typed["main"])


def test_another_function_is_typed(ran):
    typed = relay.transform.InferType()(network())
    main = typed["main"]
    typed["main"] = relay.Function(main.params, relay.negative(main.body))
    result = relay.transform.InferType()(typed)
    assert ran == ["InferType"] * 2
    assert result["main"].body.checked_type == relay.TensorType((2, 3))


def test_all_functions_count(ran):
    """One that stays may call one that does not."""
    mod = network()
    mod["other"] = network()["main"]
    typed = relay.transform.InferType()(mod)
    typed["other"] = network()["main"]
    relay.transform.InferType()(typed)
    assert ran == ["InferType"] * 2


def test_by_another_name_it_is_not_typed_again(ran):
    """As TVM's patterns do: beside the function they began with, under a name that is new each time."""
    first = relay.transform.InferType()(network())["main"]
    second = network()["main"]
    for name in ("a", "b", "c"):
        mod = tvm.IRModule({relay.GlobalVar("main"): first, relay.GlobalVar(name): second})
        second = relay.transform.InferType()(mod)[name]
        assert second.body.checked_type == relay.TensorType((2, 3))
    assert ran == ["InferType"] * 2


def test_what_calls_another_is_typed_under_another_name_too(ran):
    """Under the same name there may be one of another type."""
    other, called = relay.GlobalVar("other"), relay.var("x", shape=(2, 3))
    x = relay.var("x", shape=(2, 3))
    negative = relay.Function([called], relay.negative(called), relay.TensorType((2, 3)))
    calls = {relay.GlobalVar("main"): relay.Function([x], other(x)), other: negative}
    typed = relay.transform.InferType()(tvm.IRModule(calls))
    relay.transform.InferType()(tvm.IRModule({relay.GlobalVar("a"): typed["main"], other: typed["other"]}))
    assert ran == ["InferType"] * 2


def test_other_passes_run(ran):
    mod = relay.transform.InferType()(network())
    relay.transform.DeadCodeElimination()(relay.transform.DeadCodeElimination()(mod))
    assert ran.count("DeadCodeElimination") == 2


def test_kernels_do_not_count(ran):
    """They have no types that are inferred: TVM adds some, and changes others, between two runs."""
    typed = relay.transform.InferType()(network())
    typed["kernel"] = tvm.tir.PrimFunc([], tvm.tir.Evaluate(0))
    relay.transform.InferType()(typed)
    assert ran == ["InferType"]


def test_what_was_compiled_is_freed():
    """The weights of each network were kept for as long as the process ran."""
    held = [resident() for _ in range(3) if compile_weights()]
    assert held[2] - held[1] < WEIGHTS / 2


def compile_weights():
    x = relay.var("x", shape=(WEIGHTS // 4,))
    mod = module(x, relay.add(x, relay.const(np.random.default_rng(0).random(WEIGHTS // 4, "float32"))))
    return runtime.build_library(mod, "llvm")


def resident():
    """The bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
