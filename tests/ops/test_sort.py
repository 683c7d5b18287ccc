"""Sorting, on CUDA and topk on CPUs: stable in both directions, for every length, number of rows and type."""

import importlib
import shutil
import subprocess

import numpy as np
import pytest
import torch

from tests.helpers import module, quick, run
from topi_ext import sort as sorting
from topi_ext.corrections import sort as correction
from topi_ext.sort import heap, reference
from topi_ext.sort.select import MAX_KEPT, ONE_BLOCK, SLOT, plan_selection
from topi_ext.sort.tile import MANY_TILES, ONE_TILE

import tvm
from tvm import relay, te, tir
from tvm.contrib import graph_executor
from tvm.runtime.vm import VirtualMachine

TILE, MAX_TILE = MANY_TILES.size, ONE_TILE[-1].size
LENGTHS = [0, 1, 2, 31, 32, 33, 127, 128, 129, 1000, *(MAX_TILE + i for i in (-1, 0, 1))]
LENGTHS += [2 * TILE - 1, 2 * TILE, 2 * TILE + 1, 3 * TILE + 7, 20_000]
DTYPES = ["float16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "uint32", "int64"]


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


# --- argsort and sort


@pytest.mark.parametrize("length", LENGTHS)
def test_length(emulated_cuda, length):
    function, expected = both_ways(keys(length))
    assert_all_equal(emulated_cuda.run_relay(function, keys(length)), expected)


def test_length_known_at_run_time(emulated_cuda):
    check_dynamic(emulated_cuda, [(n,) for n in (0, 1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE + 1, 20_000)])


def test_rank_3_known_at_run_time(emulated_cuda):
    check_dynamic(emulated_cuda, [(3, 5, 7), (1, 2900, 2), (0, 5, 7), (3, 0, 7), (3, 5, 0)], axis=1)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axis(emulated_cuda, axis):
    data = keys((3, 5, 7))
    function, expected = both_ways(data, axis)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 2000), (2, 3, TILE + 1800), (1, 1)])
def test_rows(emulated_cuda, shape):
    data = keys(shape)
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.slow
def test_more_rows_than_a_grid_is_high(emulated_cuda):
    data, emulated_cuda.sanitize = keys((70_000, 3)), None
    x = variable(data)
    (out,) = emulated_cuda.run_relay(relay.Function([x], relay.argsort(x, dtype="int32")), data)
    np.testing.assert_array_equal(out, reference.argsort(data))


@pytest.mark.parametrize("dtype", DTYPES)
def test_key_type(emulated_cuda, dtype):
    data = keys((2, MAX_TILE + 100), dtype)
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float64"])
def test_extreme_keys(emulated_cuda, dtype):
    info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    data = np.random.default_rng(0).choice(np.array([info.min, info.max, 0, 1], dtype), 5000)
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.parametrize("index_type", ["int32", "int64", "float32"])
def test_index_type(emulated_cuda, index_type):
    data = keys(5000)
    function, expected = both_ways(data, index_type=index_type)
    outputs = emulated_cuda.run_relay(function, data)
    assert outputs[0].dtype == index_type
    assert_all_equal(outputs, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("length", [50, 10_000])
def test_nan_is_the_greatest_and_both_zeros_are_equal(emulated_cuda, dtype, length):
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
    data = np.random.default_rng(0).choice(special, length)
    function, expected = both_ways(data)
    outputs = emulated_cuda.run_relay(function, data)
    assert_all_equal(outputs, expected)
    zeros = expected[2] == 0
    np.testing.assert_array_equal(np.signbit(outputs[2][zeros]), np.signbit(expected[2][zeros]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_on_cpus(dtype, ascending, axis):
    """By a stable sort of torch, in which NaN is the greatest and zeros are equal."""
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
    data = np.random.default_rng(0).choice(special, (40, 30)).astype(dtype)
    x = relay.var("x", shape=data.shape, dtype=dtype)
    values, indices = torch.sort(torch.from_numpy(data), dim=axis, descending=not ascending, stable=True)
    results = [
        relay.sort(x, axis, ascending),
        relay.argsort(x, axis, ascending, dtype="int64"),
        *relay.topk(x, 7, axis, "both", ascending, "int64"),
        relay.topk(x, 7, axis, "values", ascending),
    ]
    found = run(module(x, relay.Tuple(results)), data)
    first = (slice(7),) if axis == 0 else (slice(None), slice(7))
    values, indices = values.numpy(), indices.numpy()
    for one, other in zip(found, [values, indices, values[first], indices[first], values[first]]):
        np.testing.assert_array_equal(one, other)


def test_only_nan(emulated_cuda):
    data = np.full(10_000, np.nan, "float32")
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.parametrize(
    "pattern", [np.zeros, np.arange, lambda n: np.arange(n)[::-1], lambda n: np.arange(n) % 2]
)
def test_pattern(emulated_cuda, pattern):
    data = pattern(3 * TILE + 7).astype("float32")
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)


@pytest.mark.parametrize("dtype", [*DTYPES, "uint16", "uint64"])
def test_cpu_gives_the_same(dtype):
    data = keys((2, 5000), dtype)
    if dtype != "bool" and not dtype.startswith("float"):
        data[:, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    function, expected = both_ways(data)
    values, indices = relay.topk(function.params[0], 7, dtype="int32")
    function = relay.Function(function.params, relay.Tuple([*function.body.fields, values, indices]))
    expected += reference.topk(data, 7)
    library = relay.build(tvm.IRModule.from_expr(function), "llvm")
    outputs = run_graph(library, tvm.cpu(), data)
    assert [output.dtype for output in outputs[2:4]] == [data.dtype] * 2
    assert_all_equal(outputs, expected)


# --- topk, sort_by_key, keys computed on the way


@pytest.mark.parametrize("k", [0, 1, 100, TILE, 9000])
@pytest.mark.parametrize("dynamic", [False, True])
def test_topk(emulated_cuda, k, dynamic):
    data = keys((3, 9000))
    x, outputs, expected = variable(data, dynamic), [], []
    for ascending in (False, True):
        outputs += list(relay.topk(x, k, is_ascend=ascending, dtype="int32"))
        expected += list(reference.topk(data, k, ascending=ascending))
    function = relay.Function([x], relay.Tuple(outputs))
    assert_all_equal(emulated_cuda.run_relay(function, data, executor="vm"), expected)


@pytest.mark.parametrize("shape, axis", [((40,), 0), ((40, 3, 5), 0), ((2, 5000, 3), 1), ((2, 3, 40), -1)])
@pytest.mark.parametrize("k", [0, 7, 40])
def test_topk_along_axis(emulated_cuda, shape, axis, k):
    data = keys(shape)
    x = variable(data)
    values, indices = reference.topk(data, k, axis)
    outputs = [
        *relay.topk(x, k, axis, dtype="int64"),
        relay.topk(x, k, axis, ret_type="values"),
        relay.topk(x, k, axis, ret_type="indices", dtype="int64"),
    ]
    function = relay.Function([x], relay.Tuple(outputs))
    assert_all_equal(emulated_cuda.run_relay(function, data), [values, indices, values, indices])


@pytest.mark.parametrize("rows, length, k", [(0, 10, 3), (1, 0, 0), (0, 0, 0), (4, 3, 3)])
def test_topk_of_little_or_nothing(emulated_cuda, rows, length, k):
    data = keys((rows, length))
    x = variable(data, dynamic=True)
    function = relay.Function([x], relay.topk(x, k, dtype="int32").astuple())
    assert_all_equal(emulated_cuda.run_relay(function, data, executor="vm"), reference.topk(data, k))


@pytest.mark.parametrize("length", [18, 240, 960, MAX_TILE + 5, 3 * TILE + 7])
def test_no_races_in_sorting(emulated_cuda, length):
    """The first of a row that is sorted as a whole, and a sort."""
    emulated_cuda.sanitize = "thread"
    data = keys((2, length))
    x = variable(data)
    outputs = [*relay.topk(x, length, dtype="int32"), relay.sort(x)]
    found = emulated_cuda.run_relay(relay.Function([x], relay.Tuple(outputs)), data)
    assert_all_equal(found, [*reference.topk(data, length), reference.sort(data)])


def test_topk_with_k_known_at_run_time(emulated_cuda):
    data = keys((2, 5000))
    x, k = variable(data), relay.var("k", shape=(1,), dtype="int64")
    function = relay.Function([x, k], relay.topk(x, k, dtype="int32").astuple())
    outputs = emulated_cuda.run_relay(function, data, np.array([5]), executor="vm")
    assert_all_equal(outputs, reference.topk(data, 5))


@pytest.mark.parametrize("shape, axis", [((3 * TILE,), 0), ((4000, 2), 0), ((2, 50), 1)])
@pytest.mark.parametrize("value_type", ["float64", "uint8"])
def test_sort_by_key(emulated_cuda, shape, axis, value_type):
    data, values = keys(shape, "int32"), keys(shape, value_type, seed=1)
    with emulated_cuda.target:
        inputs = [te.placeholder(shape, str(array.dtype)) for array in (data, values)]
        outputs = stock_module().sort_by_key(*inputs, axis, is_ascend=False)
        kernel = emulated_cuda.build(te.create_schedule([outputs[0].op]), [*inputs, *outputs])
    arrays = [tvm.nd.array(array, emulated_cuda.device) for array in (data, values, data, values)]
    kernel(*arrays)
    assert_all_equal([a.numpy() for a in arrays[2:]], reference.sort_by_key(data, values, axis, False))


@pytest.mark.parametrize("length", [500, 5000])
def test_keys_made_of_class_and_score(emulated_cuda, length):
    """Another operator's use: the key is computed while it is read, and only the order is wanted."""
    class_id = keys(length, "uint8").astype("int32")
    score = np.random.default_rng(0).choice(
        np.array([0.0, -0.0, 1e-9, 0.5, 1, -3, np.inf, np.nan], "float32"), length
    )

    def emit(ins, outs):
        ib = tir.ir_builder.create()
        classes, scores = (sorting.Rows(ib, buffer) for buffer in ins)
        sorting.emit_sort(
            ib,
            rows=1,
            length=length,
            order=sorting.Order("int64"),
            read_key=lambda row, i: sorting.class_then_score(classes[row, i], scores[row, i]),
            keys=sorting.Buffers(*[sorting.Rows(ib, buffer) for buffer in outs[:2]]),
            read_payload=lambda _row, i: i,
            payload=sorting.Buffers(*[sorting.Rows(ib, buffer) for buffer in outs[2:]]),
        )
        return ib.get()

    inputs = [te.placeholder((length,), "int32"), te.placeholder((length,), "float32")]
    outputs = te.extern([(length,)] * 4, inputs, emit, dtype=["int64", "int64", "int32", "int32"])
    kernel = emulated_cuda.build(te.create_schedule(outputs[0].op), [*inputs, outputs[0], outputs[2]])
    arrays = [class_id, score, np.zeros(length, "int64"), np.zeros(length, "int32")]
    arrays = [tvm.nd.array(array, emulated_cuda.device) for array in arrays]
    kernel(*arrays)
    expected = reference.class_then_score(class_id, score)
    assert_all_equal(
        [a.numpy() for a in arrays[2:]], [np.sort(expected), np.argsort(expected, kind="stable")]
    )
    by_hand = sorted(range(length), key=lambda i: (class_id[i], not np.isnan(score[i]), -score[i], i))
    without_nan = [i for i in by_hand if not np.isnan(score[i])]
    assert [i for i in arrays[3].numpy() if not np.isnan(score[i])] == without_nan


@pytest.mark.parametrize("keep, needed", [(None, "needs a `swap`$"), (5, "needs a `swap` and `scratch`")])
def test_missing_buffers_are_named(keep, needed):
    ib = tir.ir_builder.create()
    rows = sorting.Rows(ib, tir.decl_buffer((9000,)))
    with pytest.raises(ValueError, match=f"rows of 9000 do not fit into one tile: keys {needed}"):
        sorting.emit_sort(
            ib,
            rows=1,
            length=9000,
            order=sorting.Order("float32"),
            read_key=lambda row, i: rows[row, i],
            keys=sorting.Buffers(rows),
            keep=keep,
        )


# --- topk by selection

BY_ONE_BLOCK, BY_GROUPS = MAX_TILE + 1000, 3 * ONE_BLOCK + 2  # lengths
K = 300


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


@pytest.mark.parametrize("length", [BY_ONE_BLOCK, BY_GROUPS])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_selection(emulated_cuda, pattern, length):
    with np.errstate(invalid="ignore"):
        check_topk(emulated_cuda, PATTERNS[pattern](length).astype("float32"), K)


@pytest.mark.parametrize("length", [BY_ONE_BLOCK, BY_GROUPS])
@pytest.mark.parametrize("dtype", [*DTYPES, "uint16"])
def test_selection_of_type(emulated_cuda, length, dtype):
    check_topk(emulated_cuda, keys((2, length), dtype), K, index_type="int64")


@pytest.mark.parametrize("length", [BY_ONE_BLOCK, BY_GROUPS])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "float16"])
def test_selection_of_extreme_keys(emulated_cuda, length, dtype):
    info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    data = np.random.default_rng(0).choice(np.array([info.min, info.max, info.max - 1, 0, 1], dtype), length)
    check_topk(emulated_cuda, data, K)


@pytest.mark.parametrize("k", [1, 2, 1000, MAX_KEPT - 1, MAX_KEPT, MAX_KEPT + 1])
@pytest.mark.parametrize("length", [2 * MAX_KEPT, 32 * MAX_KEPT + 1])
def test_selection_of_many(emulated_cuda, k, length):
    """Of twice as many as fit into shared memory, where all are compared with all, and of more."""
    emulated_cuda.sanitize = None
    check_topk(emulated_cuda, keys(length), k, ascending=[False])


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("rows", [1, 3])
def test_selection_of_awkward_lengths(emulated_cuda, rows, odd):
    for length in (BY_ONE_BLOCK // 4 * 4 + odd, BY_GROUPS // 4 * 4 + odd):
        data = keys((rows, length))
        data[:, -odd - 1 :] = 1000 + np.arange(odd + 1)  # what remains of the last slot counts
        check_topk(emulated_cuda, data, K, ascending=[False])


@pytest.mark.parametrize("ret_type", ["values", "indices"])
@pytest.mark.parametrize("length", [BY_ONE_BLOCK, BY_GROUPS])
def test_selection_of_only(emulated_cuda, length, ret_type):
    data = keys(length)
    x = variable(data)
    function = relay.Function([x], relay.topk(x, K, ret_type=ret_type, dtype="int32"))
    expected = reference.topk(data, K)[ret_type == "indices"]
    assert_all_equal(emulated_cuda.run_relay(function, data), [expected])


@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("pattern", ["few over 0", "in few groups"])
@pytest.mark.parametrize("length", [BY_ONE_BLOCK, BY_GROUPS])
def test_no_races_in_selection(emulated_cuda, length, pattern, sanitize):
    data, emulated_cuda.sanitize = PATTERNS[pattern](length).astype("float32"), sanitize
    x = variable(data)
    function = relay.Function([x], relay.topk(x, K, dtype="int32").astuple())
    emulated_cuda.assert_same_in_any_order(lambda: emulated_cuda.run_relay(function, data), seeds=range(1))


@pytest.mark.parametrize("length, launches", [(BY_ONE_BLOCK, 2), (ONE_BLOCK, 2), (ONE_BLOCK + 1, 3)])
def test_launches_of_a_selection(emulated_cuda, length, launches):
    check_topk(emulated_cuda, keys((2, length)), K, ascending=[False])
    assert kernels_in("".join(emulated_cuda.sources)) == launches


def test_selection_has_room_for_all_candidates():
    for length in (ONE_BLOCK + 1, 50_001, 10**6, 13_759_200, 2**31 - 1):
        for keep in (1, 300, 1000, MAX_KEPT):
            plan = plan_selection(1, length, keep)
            if plan.blocks:
                slots = -(-length // SLOT)
                assert plan.groups >= 2 * keep and plan.slots >= plan.groups
                assert plan.room >= min(plan.survivors * SLOT * -(-slots // plan.groups), length)


# --- topk on CPUs


def check_topk_on_cpus(data, k, target="llvm"):
    x, both = variable(data), []
    for ascending in (False, True):
        both += list(relay.topk(x, k, is_ascend=ascending, dtype="int32"))
    found = run(tvm.IRModule.from_expr(relay.Function([x], relay.Tuple(both))), data, target=quick(target))
    assert_all_equal(found, [*reference.topk(data, k), *reference.topk(data, k, ascending=True)])
    for value, correct in zip(found, reference.topk(data, k)):
        np.testing.assert_array_equal(np.signbit(value), np.signbit(correct))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_topk_on_cpus(pattern):
    with np.errstate(invalid="ignore"):
        check_topk_on_cpus(PATTERNS[pattern](heap.LONG + 77).astype("float32"), K)


@pytest.mark.parametrize("k", [1, 2, 3, heap.LONG - 1, heap.LONG])
def test_few_and_all_on_cpus(k):
    check_topk_on_cpus(keys(heap.LONG), k)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "int32", "uint32"])
def test_topk_of_type_on_cpus(dtype):
    """In vectors for a processor that has them, and rows of several axes."""
    check_topk_on_cpus(keys((2, 3, heap.LONG + 5), dtype), K, "llvm -mcpu=native")


@pytest.mark.parametrize("ret_type, which", [("values", 0), ("indices", 1)])
def test_one_result_of_topk_on_cpus(ret_type, which):
    data = keys(heap.LONG)
    x = variable(data)
    function = relay.Function([x], relay.topk(x, K, ret_type=ret_type, dtype="int64"))
    (found,) = run(tvm.IRModule.from_expr(function), data)
    np.testing.assert_array_equal(found, reference.topk(data, K)[which])
    assert found.dtype == {"values": "float32", "indices": "int64"}[ret_type]


@pytest.mark.parametrize("shape, axis", [((heap.LONG - 1,), 0), ((heap.LONG, 2), 0)])
def test_topk_by_tvm_on_cpus(shape, axis):
    """Of short rows, and along other axes."""
    data = keys(shape)
    x = variable(data)
    function = relay.Function([x], relay.topk(x, K, axis, dtype="int32").astuple())
    assert_all_equal(run(tvm.IRModule.from_expr(function), data), reference.topk(data, K, axis))


# --- what TVM builds on it


def test_unique(emulated_cuda):
    data = keys(300, "int32")
    x = variable(data)
    function = relay.Function([x], relay.unique(x, is_sorted=True, return_counts=True).astuple())
    outputs = emulated_cuda.run_relay(function, data, executor="vm")
    values, first, inverse, counts = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True
    )
    assert outputs[3] == len(values)
    outputs = [output[: len(values)] for output in (outputs[0], outputs[1], outputs[4])] + [outputs[2]]
    assert_all_equal(outputs, [values, first, counts, inverse])


def test_non_max_suppression(emulated_cuda):
    rng = np.random.default_rng(0)
    boxes = rng.random((1, 200, 6), dtype="float32")  # class, score, corners
    boxes[..., 0] = rng.integers(0, 3, (1, 200))
    boxes[..., 4:] += boxes[..., 2:4]
    x = variable(boxes)
    count, data, indices = relay.vision.get_valid_counts(x, 0.1)
    kept = relay.vision.non_max_suppression(data, count, indices, iou_threshold=0.5, return_indices=False)
    function = relay.Function([x], kept)
    (out,) = emulated_cuda.run_relay(function, boxes)
    (expected,) = run_graph(relay.build(tvm.IRModule.from_expr(function), "llvm"), tvm.cpu(), boxes)
    valid = expected[0, :, 0] >= 0
    np.testing.assert_array_equal(out[0][valid], expected[0][valid])


# --- the kernels themselves


@pytest.mark.parametrize("length", [100, 3 * TILE + 7])
def test_no_races(emulated_cuda, length):
    data, emulated_cuda.sanitize = keys(length), "thread"
    function, expected = both_ways(data)
    assert_all_equal(emulated_cuda.run_relay(function, data), expected)
    emulated_cuda.sanitize = None
    emulated_cuda.assert_same_in_any_order(lambda: emulated_cuda.run_relay(function, data), seeds=range(2))


def test_a_row_that_fits_into_a_tile_takes_one_launch(emulated_cuda):
    x = relay.var("x", shape=(5, MAX_TILE))
    for output in (relay.argsort(x), relay.sort(x), relay.topk(x, 7).astuple()):
        emulated_cuda.sources.clear()
        emulated_cuda.run_relay(relay.Function([x], output), keys((5, MAX_TILE)))
        assert kernels_in("".join(emulated_cuda.sources)) == 1


def test_stock_sort_is_wrong(emulated_cuda, monkeypatch):
    """Why all this is needed; if it fails, TVM may have mended its sort."""
    monkeypatch.setattr(stock_module(), "sort_ir", correction.stock_sort_ir)
    data = keys(1000)
    x = variable(data)
    with pytest.raises(tvm.TVMError, match="barrier"):
        emulated_cuda.run_relay(relay.Function([x], relay.argsort(x)), data)


@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
def test_other_targets_keep_what_they_have(monkeypatch, kind):
    asked = []
    for name in ("stock_sort_ir", "stock_sort_by_key_ir", "stock_topk"):
        monkeypatch.setattr(correction, name, lambda *_args, name=name: asked.append(name))
    with tvm.target.Target(kind):
        stock_module().sort_ir()
        stock_module().sort_by_key_ir()
        tvm.topi.cuda.topk(None, 3)
    assert asked == ["stock_sort_ir", "stock_sort_by_key_ir", "stock_topk"]


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_compiles_without_spills(emulated_cuda, tmp_path, dtype):
    """For every architecture: no local memory, which a register array with a changing index would take."""
    data = keys(5000, dtype)
    emulated_cuda.run_relay(both_ways(data)[0], data)
    for length in (BY_ONE_BLOCK, BY_GROUPS):
        check_topk(emulated_cuda, keys((1, length), dtype), K, ascending=[False])
    archs = [75, 80, 86, 89, 90]
    for number, source in enumerate(emulated_cuda.sources):
        path = tmp_path / f"{number}.cu"
        path.write_text(source)
        targets = [word for arch in archs for word in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")]
        command = ["nvcc", "-std=c++17", "-fatbin", "-Xptxas", "-v", *targets, "-o", tmp_path / "out", path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        frames = [line for line in done.stderr.splitlines() if "stack frame" in line]
        assert len(frames) == kernels_in(source) * len(archs)
        clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
        assert {line.strip() for line in frames} == {clean}


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((1,), 0),
        ((1000,), 0),
        ((20_000,), 0),
        ((1_000_000,), 0),
        ((300, 400), 0),
        ((7, 2000, 3), 1),
        ((70_000, 3), 1),
    ],
)
def test_gpu_sort(shape, axis, dtype):
    data = keys(shape, dtype)
    function, expected = both_ways(data, axis)
    assert_all_equal(run_on_gpu(function, data), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 1000, 20_000, 1_000_000])
def test_gpu_nan(length):
    data = keys(length)
    data[::3] = np.nan
    function, expected = both_ways(data)
    assert_all_equal(run_on_gpu(function, data), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 1000, 20_000, 1_000_000])
@pytest.mark.parametrize("k", [1, 100, 1000, 5000])
def test_gpu_topk(length, k):
    data, k = keys((2, length)), min(k, length)
    x = variable(data)
    for ascending in (False, True):
        function = relay.Function([x], relay.topk(x, k, is_ascend=ascending, dtype="int32").astuple())
        assert_all_equal(run_on_gpu(function, data), reference.topk(data, k, ascending=ascending))


@pytest.mark.gpu
@pytest.mark.parametrize("length, k", [(BY_ONE_BLOCK, K), (BY_GROUPS, K), (1_000_003, K), (13_759_200, 1000)])
@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "in few groups"])
def test_gpu_selection(pattern, length, k):
    with np.errstate(invalid="ignore"):
        data = PATTERNS[pattern](length).astype("float32")
    x = variable(data)
    function = relay.Function([x], relay.topk(x, k, dtype="int32").astuple())
    assert_all_equal(run_on_gpu(function, data), reference.topk(data, k))


@pytest.mark.gpu
def test_gpu_length_known_at_run_time():
    check_dynamic(Gpu, [(n,) for n in (0, 1, 1000, TILE, TILE + 1, 20_000, 1_000_000)])


# --- helpers


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
