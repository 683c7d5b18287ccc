"""What is sorted and selected by the tests of sort and topk, how it is run, and what is expected."""

import importlib

import numpy as np

from topi_ext.sort import reference
from topi_ext.sort.select import ONE_BLOCK, SLOT, plan_selection
from topi_ext.sort.tile import MANY_TILES, ONE_TILE

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.runtime.vm import VirtualMachine

TILE, MAX_TILE = MANY_TILES.size, ONE_TILE[-1].size
DTYPES = ["float16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "uint32", "int64"]
BY_ONE_BLOCK, BY_GROUPS = MAX_TILE + 1000, 3 * ONE_BLOCK + 2  # lengths
K = 300


def keys(shape, dtype="float32", seed=0):
    """Keys with many ties, of both signs where the type has them."""
    rng = np.random.default_rng(seed)
    low, high = (0, 2) if dtype == "bool" else (0, 100) if dtype.startswith("u") else (-50, 50)
    return rng.integers(low, high, shape).astype(dtype)


def variable(data, dynamic=False):
    return relay.var(
        "data", shape=[relay.Any()] * data.ndim if dynamic else data.shape, dtype=str(data.dtype)
    )


def both_ways(data, axis=-1, index_type="int32", dynamic=False):
    """argsort in both directions and sort, as one function; and what it has to answer."""
    x = variable(data, dynamic)
    outputs = [relay.argsort(x, axis, ascending, index_type) for ascending in (True, False)]
    expected = [reference.argsort(data, axis, ascending) for ascending in (True, False)]
    outputs.append(relay.sort(x, axis, is_ascend=False))
    expected.append(reference.sort(data, axis, ascending=False))
    return relay.Function([x], relay.Tuple(outputs)), expected


def assert_all_equal(outputs, expected):
    assert len(outputs) == len(expected)
    for output, value in zip(outputs, expected):
        np.testing.assert_array_equal(output, value)


def stock_module():
    return importlib.import_module("tvm.topi.cuda.sort")


def kernels_in(source):
    return sum(
        line.startswith('extern "C" __global__') and line.endswith("{") for line in source.splitlines()
    )


def run_graph(library, device, data):
    module = graph_executor.GraphModule(library["default"](device))
    module.set_input(0, tvm.nd.array(data, device))
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


class Gpu:
    target, device = "cuda", tvm.cuda()


def run_on_gpu(function, data):
    return run_graph(relay.build(tvm.IRModule.from_expr(function), Gpu.target), Gpu.device, data)


def check_dynamic(cuda, shapes, axis=-1):
    """Compile once for any shape, then run all of these."""
    function, _ = both_ways(keys(shapes[0]), axis, dynamic=True)
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), cuda.target)
    machine = VirtualMachine(executable, cuda.device, memory_cfg="naive")
    for shape in shapes:
        data = keys(shape)
        outputs = machine.invoke("main", tvm.nd.array(data, cuda.device))
        assert_all_equal([output.numpy() for output in outputs], both_ways(data, axis)[1])


def check_topk(cuda, data, k, ascending=(False, True), index_type="int32"):
    x, outputs, expected = variable(data), [], []
    for direction in ascending:
        outputs += list(relay.topk(x, k, is_ascend=direction, dtype=index_type))
        expected += list(reference.topk(data, k, ascending=direction))
    found = cuda.run_relay(relay.Function([x], relay.Tuple(outputs)), data)
    assert_all_equal(found, expected)
    for value, correct in zip(found, expected):
        np.testing.assert_array_equal(np.signbit(value), np.signbit(correct))


def with_outliers(n, usual):
    """Few scores above a threshold, and what stands for all others."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(n) < K / 2 / n, rng.random(n, "float32"), np.float32(usual))


def in_few_groups(n):
    """The first are all in half as many groups as are looked at, so there are many more candidates."""
    groups = plan_selection(1, n, K).groups if plan_selection(1, n, K).blocks else n
    data = np.random.default_rng(0).random(n, "float32")
    return np.where(np.arange(n) // SLOT % groups < K // 2, data + 1, data)


PATTERNS = {
    "all equal": lambda n: np.full(n, 0.5),
    "all NaN": lambda n: np.full(n, np.nan),
    "all -inf": lambda n: np.full(n, -np.inf),
    "rising": np.arange,
    "falling": lambda n: -np.arange(n),
    "random": lambda n: np.random.default_rng(0).standard_normal(n),
    "special": lambda n: np.random.default_rng(0).choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], n),
    "both zeros": lambda n: np.random.default_rng(0).choice([0.0, -0.0], n),
    "tiny": lambda n: np.random.default_rng(0).integers(-9, 9, n) * 1e-45,
    "few over -inf": lambda n: with_outliers(n, -np.inf),
    "few over 0": lambda n: with_outliers(n, 0),
    "few over NaN": lambda n: -with_outliers(n, np.nan),
    "ties around the last": lambda n: np.where(np.arange(n) % 700 < 5, 2.0, np.arange(n) % 3 == 0),
    "one period": lambda n: np.arange(n) % 4096,
    "in few groups": in_few_groups,
}
