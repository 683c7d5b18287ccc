"""Sorting, on CUDA and CPUs: stable in both directions, for every length, number of rows and type."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

from tests.helpers import module, run
from tests.ops.sort_cases import (
    BY_GROUPS,
    BY_ONE_BLOCK,
    DTYPES,
    MAX_TILE,
    TILE,
    Gpu,
    K,
    assert_all_equal,
    both_ways,
    check_dynamic,
    check_topk,
    kernels_in,
    keys,
    run_graph,
    run_on_gpu,
    stock_module,
    variable,
)
from topi_ext import sort as sorting
from topi_ext.corrections import sort as correction
from topi_ext.sort import reference

import tvm
from tvm import relay, te, tir

LENGTHS = [0, 1, 2, 31, 32, 33, 127, 128, 129, 1000, *(MAX_TILE + i for i in (-1, 0, 1))]
LENGTHS += [2 * TILE - 1, 2 * TILE, 2 * TILE + 1, 3 * TILE + 7, 20_000]


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


@pytest.mark.parametrize("length", [18, 240, 960, MAX_TILE + 5, 3 * TILE + 7])
def test_no_races_in_sorting(emulated_cuda, length):
    """The first of a row that is sorted as a whole, and a sort."""
    emulated_cuda.sanitize = "thread"
    data = keys((2, length))
    x = variable(data)
    outputs = [*relay.topk(x, length, dtype="int32"), relay.sort(x)]
    found = emulated_cuda.run_relay(relay.Function([x], relay.Tuple(outputs)), data)
    assert_all_equal(found, [*reference.topk(data, length), reference.sort(data)])


# --- sort_by_key, and keys computed on the way


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
def test_gpu_length_known_at_run_time():
    check_dynamic(Gpu, [(n,) for n in (0, 1, 1000, TILE, TILE + 1, 20_000, 1_000_000)])
