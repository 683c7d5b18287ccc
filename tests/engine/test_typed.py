"""Typed modules: made once for passes that change nothing, and never changed for whoever gave one."""

import numpy as np
import pytest

import tvm_passes
from tests.helpers import module, numbers, run
from tvm_passes.cleanup.canonicalize import Canonicalize
from tvm_passes.engine.typed import _state, remembering, typed

from tvm import relay


def reshaped_relu():
    x = relay.var("x", shape=(2, 3))
    return module(x, relay.nn.relu(relay.reshape(x, (2, 3))))


def graph_of(mod):
    (graph,) = typed(mod).graphs.values()
    return graph


def test_the_same_functions_have_the_same_graph_inside_only():
    mod = reshaped_relu()
    assert graph_of(mod) is not graph_of(mod)
    with remembering():
        graph = graph_of(mod)
        assert graph_of(mod) is graph
        assert graph_of(typed(mod).module) is graph
        assert graph_of(reshaped_relu()) is not graph
        with remembering():
            graph = graph_of(mod)
        assert graph_of(mod) is graph
    assert graph_of(mod) is not graph
    assert _state.last is None


def test_what_a_caller_updates_is_his_own():
    mod = reshaped_relu()
    with remembering():
        first = typed(mod).module
        (name,) = first.functions
        first.update_func(name, relay.Function(first["main"].params, first["main"].params[0]))
        assert typed(mod).module["main"].body.op.name == "nn.relu"
        assert graph_of(first) is not graph_of(mod)


def test_passes_in_a_row_leave_the_module_that_they_are_given():
    mod, before = reshaped_relu(), str(reshaped_relu())
    with remembering():
        after = Canonicalize()(mod)
        again = Canonicalize()(after)
    assert again.same_as(after)
    assert str(mod) == before and str(after) != before


def test_a_pipeline_that_fails_holds_nothing():
    class Failing(tvm_passes.engine.Pass):
        def __init__(self):
            super().__init__(fail)

    def fail(mod, report):
        typed(mod)
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"), remembering():
        Failing()(reshaped_relu())
    assert _state.last is None and not _state.is_remembering


def test_a_pipeline_computes_the_same_again():
    mod, data = reshaped_relu(), numbers(2, 3)
    pipeline = tvm_passes.default_pipeline()
    for _ in range(2):
        np.testing.assert_array_equal(run(pipeline(mod), data)[0], run(mod, data)[0])
