"""Memory plans and orders in which branches may run at once: no two steps at a time touch the same memory."""

import json

import numpy as np
import pytest

from tests.helpers import module, numbers
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tvm_passes import runtime
from tvm_passes.runtime import concurrency

from tvm import relay

TARGET = "cuda -arch=sm_80"
SHAPE = 8, 32


def planned(*graph):
    """The graph that is compiled for CUDA, with its plan, and the one for a CPU, with TVM's."""
    of_cuda = runtime.build_library(module(*graph), TARGET)
    of_cpu = runtime.build_library(module(*graph), "llvm")
    return [json.loads(lib.module["get_graph_json"]()) for lib in (of_cuda, of_cpu)]


def chains(count, length, kernel=relay.exp):
    """Chains of steps that only share their input; `sort` keeps steps apart that would be fused."""
    x = relay.var("x", shape=SHAPE)
    ends = []
    for factor in range(count):
        value = x * relay.const(float(factor + 1))
        for _ in range(length):
            value = relay.sort(kernel(value))
        ends.append(value)
    return x, relay.Tuple(ends)


def reshaped():
    x = relay.var("x", shape=SHAPE)
    rows = relay.sort(relay.reshape(relay.sort(x), (16, 16)))
    return x, relay.Tuple([relay.reshape(rows, SHAPE), relay.sort(relay.exp(rows)), x])


def diamond():
    x = relay.var("x", shape=SHAPE)
    top = relay.sort(x)
    return x, relay.sort(relay.sort(relay.exp(top)) + relay.sort(relay.negative(top)))


GRAPHS = {
    "one chain": lambda: chains(1, 4),
    "three chains": lambda: chains(3, 4),
    "twelve chains": lambda: chains(12, 2),
    "reshaped": reshaped,
    "diamond": diamond,
}


def before_each(waits):
    """All steps that end before each step."""
    before = []
    for each in waits:
        before.append(set(each).union(*(before[step] for step in each)))
    return before


def assert_safe(graph, waits, lanes=None):
    storage = graph["attrs"]["storage_id"][1]
    steps, before = concurrency.steps_of(graph), before_each(waits)
    memory = [[{storage[entry] for entry in each} for each in (step.reads, step.writes)] for step in steps]
    for place, (reads, writes) in enumerate(memory):
        assert len(writes) == len(steps[place].writes) and not reads & writes
        for other in set(range(place)) - before[place]:
            other_reads, other_writes = memory[other]
            assert not writes & (other_reads | other_writes) and not reads & other_writes
            if lanes and steps[place].workspace and steps[other].workspace:
                assert lanes[place] != lanes[other]


@pytest.mark.parametrize("name", GRAPHS)
def test_plans_are_safe(name):
    for graph in planned(*GRAPHS[name]()):
        waits = concurrency.waits_of(graph)
        assert_safe(graph, waits)
        for most in (1, 2, 8):
            with_lanes = [set(each) for each in waits]
            lanes = concurrency.lanes_of(concurrency.steps_of(graph), with_lanes, most)
            assert max(lanes) < most
            assert_safe(graph, with_lanes, lanes)


def depth(graph):
    depths = []
    for each in concurrency.waits_of(graph):
        depths.append(1 + max((depths[step] for step in each), default=0))
    return max(depths)


def test_branches_do_not_wait_for_memory():
    planned_, tvms = planned(*chains(3, 4))
    (alone, _) = planned(*chains(1, 4))
    assert depth(planned_) == depth(alone) < depth(tvms)


def test_a_chain_takes_its_memory_again():
    (short, _), (long, _) = planned(*chains(1, 4)), planned(*chains(1, 9))
    assert len(set(short["attrs"]["storage_id"][1])) == len(set(long["attrs"]["storage_id"][1]))


def test_outputs_inputs_and_weights_are_kept():
    graph, _ = planned(*reshaped())
    storage, rows = graph["attrs"]["storage_id"][1], graph["node_row_ptr"]
    kept = {storage[rows[node] + index] for node, index, *_ in graph["heads"]}
    assert len(kept) == 3
    given = [storage[rows[node]] for node in graph["arg_nodes"]]
    steps = concurrency.steps_of(graph)
    writers = [storage[entry] for step in steps for entry in step.writes]
    assert not set(given) & set(writers)
    assert all(writers.count(each) <= 1 for each in kept)


def test_a_reshape_stays_in_its_memory():
    graph, _ = planned(*reshaped())
    storage, rows = graph["attrs"]["storage_id"][1], graph["node_row_ptr"]
    names = [node.get("attrs", {}).get("func_name") for node in graph["nodes"]]
    (place, *_) = [place for place, name in enumerate(names) if name == concurrency.NO_STEP]
    ((source, index, *_),) = graph["nodes"][place]["inputs"]
    assert storage[rows[place]] == storage[rows[source] + index]


def test_results_are_the_same(emulated_cuda, fake_cuda):  # noqa: F811
    mod = module(*chains(3, 2, relay.negative))
    x = numbers(*SHAPE)
    found = runtime.compile(mod, emulated_cuda.target, device=emulated_cuda.device, cuda_graph=False)(x)
    wanted = runtime.compile(mod, "llvm")(x)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_a_library_without_a_plan_runs_in_one_part():
    lib = relay.build(module(*chains(2, 2)), "llvm")
    model = runtime.Model(lib, "cpu")
    assert len(model._executor.launches()) == 1
