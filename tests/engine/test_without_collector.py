"""Work without Python's garbage collector."""

import gc

import pytest

from tests.helpers import module
from tvm_passes import default_pipeline, runtime
from tvm_passes.engine.without_collector import without_collector

import tvm
from tvm import relay


def test_it_is_as_before_afterwards():
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), without_collector():
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_it_stays_off_where_it_was():
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_passes_and_compilation_go_without():
    seen = {}

    @tvm.instrument.pass_instrument
    class Look:
        def run_before_pass(self, _, info):
            seen[info.name] = gc.isenabled()

    x = relay.var("x", shape=(3,))
    with tvm.transform.PassContext(opt_level=3, instruments=[Look()]):
        runtime.compile(default_pipeline()(module(x, x + x)), "llvm")
    names = {"RestoreBatchedNMS", "FuseOps"}
    assert names <= seen.keys() and not any(map(seen.get, names))
    assert gc.isenabled()
