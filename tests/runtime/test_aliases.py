"""Results in the memory of their destination: where they can be; nothing is overwritten too early."""

import json
import random

import numpy as np
import pytest

from tests.helpers import module, numbers, run
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from topi_ext import conv2d_nhwc_in_place
from tvm_passes import runtime
from tvm_passes.runtime import concurrency
from tvm_passes.runtime.aliases import EVERYTHING, NO_STEP, Partial, aliases

from tvm import relay

WIDE = 32
TARGET = "cuda -arch=sm_80"

# --- graphs of compiled networks


def image(name="x", channels=WIDE):
    return relay.var(name, shape=(1, 6, 7, channels), dtype="float16")


def written(data, channels, at, destination=None, seed=0, **options):
    """A convolution of the first channels of a tensor, of which eight filters are written."""
    weight = numbers(8, 1, 1, channels, seed=seed) / channels**0.5
    given = {"result_from": at, "result_channels": WIDE, **options}
    return conv2d_nhwc_in_place(data, relay.const(weight.astype("float16")), destination=destination, **given)


def chain(x):
    """Three convolutions that write eight channels each of one tensor, and what it is after each of them."""
    first = written(x, WIDE, 0, relay.sort(x), seed=1)
    second = written(first, 8, 8, first, seed=2)
    return first, second, written(second, 16, 16, second, seed=3)


def returned(x):
    return chain(x)[2]


def read_meanwhile(x):
    """What reads the channels that are there already need not come first."""
    first, second, third = chain(x)
    reads = [
        written(first, 8, 0, residual=x, residual_from=8, result_channels=8),
        written(second, 16, 0, result_channels=8),
    ]
    return relay.Tuple([third, *reads])


def of_the_input(x):
    return written(x, 8, 8, x)


def of_a_weight(x):
    return written(x, 8, 8, relay.const(numbers(1, 6, 7, WIDE).astype("float16")))


def returned_before(x):
    first, second, _ = chain(x)
    return relay.Tuple([first, second])


def written_twice(x):
    first, *_ = chain(x)
    return relay.Tuple([written(x, WIDE, 8, first, seed=at) for at in (1, 2)])


def read_where_written(x):
    first = relay.sort(x)
    return written(first, 16, 8, first)


def read_later(x):
    first, _, third = chain(x)
    return relay.Tuple([third, relay.sort(relay.reshape(first, (1, 7, 6, WIDE)), axis=1)])


def reshaped(x):
    """The destination is a reshaped tensor, which is nowhere else read."""
    first = relay.sort(relay.reshape(x, (1, 7, 6, WIDE)), axis=1)
    return written(x, 8, 8, relay.reshape(first, (1, 6, 7, WIDE)))


IN_PLACE = {"a chain": (returned, 3), "read meanwhile": (read_meanwhile, 3), "reshaped": (reshaped, 1)}
COPIED = {
    "the input": (of_the_input, 0),
    "a weight": (of_a_weight, 0),
    "an output": (returned_before, 1),
    "written twice": (written_twice, 2),  # the second time
    "read where written": (read_where_written, 0),
}
GRAPHS = {**IN_PLACE, **COPIED, "read later": (read_later, None)}


def planned(make):
    lib = runtime.build_library(module(x := image(), make(x)), TARGET)
    return json.loads(lib.module["get_graph_json"]())


def in_place(graph):
    """How many steps write into a memory that they read."""
    storage = graph["attrs"]["storage_id"][1]
    steps = concurrency.steps_of(graph)
    return sum(bool({storage[e] for e in step.reads} & {storage[e] for e in step.writes}) for step in steps)


@pytest.mark.parametrize("name", [*IN_PLACE, *COPIED])
def test_memory_of_the_destination(name):
    make, count = GRAPHS[name]
    assert in_place(planned(make)) == count


@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_the_same(emulated_cuda, fake_cuda, name):  # noqa: F811
    mod = module(x := image(), GRAPHS[name][0](x))
    array = numbers(1, 6, 7, WIDE).astype("float16")
    model = runtime.compile(mod, emulated_cuda.target, device=emulated_cuda.device, cuda_graph=False)
    for _ in range(2):
        found = model(array)
        for result, exact in zip(found.values() if isinstance(found, dict) else [found], run(mod, array)):
            np.testing.assert_allclose(result, exact, rtol=2e-3, atol=2e-3)


# --- random graphs


CHANNELS = 4


class Made:
    """A graph as TVM writes it, of random steps; some write channels of an entry, some are reshapes."""

    def __init__(self, seed, length=14):
        self.random = random.Random(seed)
        self.nodes = [{"op": "null", "name": "x", "inputs": []}]
        self.partials = {}
        for at in range(1, length):
            self.nodes.append(self.node(f"f{at}"))
        heads = self.random.sample(range(length), 2)
        self.graph = {
            "nodes": self.nodes,
            "heads": [[head, 0, 0] for head in heads],
            "node_row_ptr": list(range(length + 1)),
            "attrs": {
                "shape": ["list_shape", [[1, CHANNELS]] * length],
                "dltype": ["list_str", ["float32"] * length],
            },
        }
        alias = aliases(self.graph, self.partials)
        self.graph["attrs"]["storage_id"] = ["list_int", concurrency._storage(self.graph, alias)]

    def node(self, name):
        kind = self.random.choice(["plain", "read", "reshape", "write", "write", "write"])
        count = 1 if kind == "reshape" else self.random.randint(1, 2)
        latest = range(max(0, len(self.nodes) - 5), len(self.nodes))
        inputs = [[self.random.choice(latest), 0, 0] for _ in range(count)]
        if kind in ("write", "read"):
            read = [(place, self.some()) for place in range(kind == "write", count)]
            self.partials[name] = Partial(read, self.some(), 0 if kind == "write" else None)
        function = NO_STEP if kind == "reshape" else name
        return {"op": "tvm_op", "name": name, "attrs": {"func_name": function}, "inputs": inputs}

    def some(self):
        start = self.random.randrange(CHANNELS)
        return range(start, self.random.randint(start + 1, CHANNELS))

    def values(self):
        """Of each entry, who wrote each channel."""
        values = []
        for at, node in enumerate(self.nodes):
            sources = [values[source] for source, *_ in node["inputs"]]
            partial = self.partials.get(node["name"])
            if node.get("attrs", {}).get("func_name") == NO_STEP:
                values.append(sources[0])
            elif partial and partial.destination is not None:
                values.append([at if c in partial.written else sources[0][c] for c in range(CHANNELS)])
            else:
                values.append([at] * CHANNELS)
        return values

    def order(self):
        """The steps in a random order that keeps to what each one waits for."""
        waits, done = concurrency.waits_of(self.graph), []
        while len(done) < len(waits):
            ready = [at for at, before in enumerate(waits) if at not in done and before <= set(done)]
            done.append(self.random.choice(ready))
        return [concurrency.steps_of(self.graph)[at] for at in done]

    def check(self):
        """Run the steps, and compare what each one reads with what it is to read."""
        storage, values, memory = self.graph["attrs"]["storage_id"][1], self.values(), {}
        memory[storage[0]] = list(values[0])
        for step in self.order():
            node = self.nodes[step.node]
            partial = self.partials.get(node["name"])
            read = [(place, EVERYTHING) for place in range(len(node["inputs"]))]
            for place, channels in partial.read if partial else read:
                self.compare(memory, storage, values, step.reads[place], channels)
            result = memory.setdefault(storage[step.node], [None] * CHANNELS)
            has_destination = partial and partial.destination is not None
            if has_destination and storage[step.reads[0]] != storage[step.node]:
                self.compare(memory, storage, values, step.reads[0], EVERYTHING)
                result[:] = memory[storage[step.reads[0]]]
            for channel in partial.written if has_destination else range(CHANNELS):
                result[channel] = step.node
        for head, *_ in self.graph["heads"]:
            self.compare(memory, storage, values, head, EVERYTHING)

    @staticmethod
    def compare(memory, storage, values, entry, channels):
        for channel in channels[:CHANNELS] if channels is EVERYTHING else channels:
            assert memory[storage[entry]][channel] == values[entry][channel]


def test_nothing_is_overwritten_too_early():
    counts = []
    for seed in range(400):
        made = Made(seed)
        counts.append(in_place(made.graph))
        for _ in range(3):
            made.check()
    assert sum(counts) > len(counts) / 2  # many are in place
