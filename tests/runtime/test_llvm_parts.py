"""Kernels for the CPU that are compiled in several modules at the same time."""

import numpy as np
import pytest

from tests.helpers import module, numbers
from tvm_passes import runtime
from tvm_passes.runtime import llvm_parts

from tvm import relay

KERNELS = 3 * llvm_parts.KERNELS


def network(dynamic=False):
    """As many kernels as it has outputs, none of which is like another."""
    x = relay.var("x", shape=(relay.Any() if dynamic else 4, 24))
    return module(x, relay.Tuple([relay.sort(x + relay.const(float(each))) for each in range(KERNELS)]))


@pytest.fixture
def on_three_cores(monkeypatch):
    monkeypatch.setattr(llvm_parts, "cores", lambda: 3)


def modules_of(lib, kind="llvm"):
    """How many of the kind are in a library."""
    found, waiting = 0, [lib]
    while waiting:
        each = waiting.pop()
        found += each.type_key == kind
        waiting += each.imported_modules
    return found


def assert_right(model):
    x = numbers(4, 24)
    for offset, output in enumerate(model(x).values()):
        np.testing.assert_array_equal(output, np.sort(x + np.float32(offset)))


@pytest.mark.parametrize("dynamic", [False, True], ids=["graph", "machine"])
def test_in_this_process(on_three_cores, dynamic):
    model = runtime.compile(network(dynamic), "llvm")
    parts = modules_of(getattr(model.lib, "lib", model.lib))
    assert parts >= 3
    assert_right(model)


@pytest.mark.parametrize("dynamic", [False, True], ids=["graph", "machine"])
def test_in_a_folder(on_three_cores, tmp_path, dynamic):
    mod = network(dynamic)
    runtime.save(tmp_path, runtime.build_library(mod, "llvm"), mod, "llvm")
    assert_right(runtime.load(tmp_path))


def test_all_kernels_are_in_one_of_them(on_three_cores, monkeypatch):
    built = []
    stock = llvm_parts._stock_build
    monkeypatch.setattr(
        llvm_parts,
        "_stock_build",
        lambda mod, target: (built.append(len(mod.functions)), stock(mod, target))[1],
    )
    runtime.build_library(network(), "llvm")
    of_network = [count for count in built if count > 1]
    assert len(of_network) == 3 and max(of_network) - min(of_network) <= 1 and sum(of_network) >= KERNELS


def test_what_stays_in_one_module(on_three_cores):
    executor = relay.backend.Executor("aot")
    aot = relay.build(network(), "llvm", executor=executor)
    with llvm_parts.on_all_cores(run_here=False):
        assert modules_of(relay.build(network(), "llvm", executor=executor).lib) == modules_of(aot.lib)
    assert modules_of(relay.build(network(), "llvm").lib) == 1
    x = relay.var("x", shape=(4, 24))
    assert modules_of(runtime.build_library(module(x, relay.sort(x)), "llvm").lib) == 1


def test_the_state_is_as_before_after_an_error():
    with pytest.raises(ZeroDivisionError), llvm_parts.on_all_cores(run_here=True):
        1 / 0  # noqa: B018
    assert (llvm_parts._state.parts, llvm_parts._state.run_here) == (0, False)
