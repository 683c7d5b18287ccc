"""topk, on CUDA and CPUs: what a stable sort puts first, for every length, number of rows and type."""

import numpy as np
import pytest

from tests.helpers import quick, run
from tests.ops.sort_cases import (
    BY_GROUPS,
    BY_ONE_BLOCK,
    DTYPES,
    PATTERNS,
    TILE,
    K,
    assert_all_equal,
    check_topk,
    kernels_in,
    keys,
    run_on_gpu,
    variable,
)
from topi_ext.sort import heap, reference
from topi_ext.sort.select import MAX_KEPT, ONE_BLOCK, SLOT, plan_selection

import tvm
from tvm import relay


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


def test_topk_with_k_known_at_run_time(emulated_cuda):
    data = keys((2, 5000))
    x, k = variable(data), relay.var("k", shape=(1,), dtype="int64")
    function = relay.Function([x, k], relay.topk(x, k, dtype="int32").astuple())
    outputs = emulated_cuda.run_relay(function, data, np.array([5]), executor="vm")
    assert_all_equal(outputs, reference.topk(data, 5))


# --- by selection


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


# --- on CPUs


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


# --- on a GPU


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
