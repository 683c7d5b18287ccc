"""The NHWC convolution by oneDNN: against NumPy, and what happens when weights change, or threads run it."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.ops.convolutions import (
    ACTIVATED,
    CASES,
    CLIP,
    DEPTHWISE,
    GROUPED,
    LEAKY,
    Case,
    in_float32,
    options,
)
from topi_ext.conv2d_nhwc import conv2d_nhwc, cpu_one_pixel, onednn, op
from topi_ext.onednn import library

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TARGET = tvm.target.Target("llvm -libs=onednn")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed")


def executor_of(function, target=TARGET):
    lib = relay.build(tvm.IRModule.from_expr(function), target)
    return graph_executor.GraphModule(lib["default"](tvm.cpu()))


def ran(executor, arrays):
    executor.run(**arrays)
    return executor.get_output(0).numpy()


@pytest.mark.parametrize(
    "case", [in_float32(case) for case in CASES + GROUPED + DEPTHWISE + ACTIVATED], ids=str
)
def test_as_the_oracle(case):
    assert op.kernels_for(case.problem(), TARGET) in (onednn, cpu_one_pixel)
    arrays = case.arrays()
    np.testing.assert_allclose(
        ran(executor_of(case.function(arrays)), arrays), case.expected(arrays), **CLOSE
    )


@pytest.mark.parametrize(
    "given",
    [
        {"padding": 1, "dilation": 2},
        {"padding": (1, 1, 0, 0), "strides": 2},
        {"padding": 1, "strides": 3},
        {"padding": (0, 0, 1, 1), "strides": 2},
    ],
    ids=str,
)
def test_one_window_that_may_be_beside_the_image(given):
    """Of a kernel as large as the image, which is a product of vectors only where its window is the image."""
    case = Case((3, 3), 8, 5, batch=2, dtype="float32", options=given)
    arrays = case.arrays()
    np.testing.assert_allclose(
        ran(executor_of(case.function(arrays)), arrays), case.expected(arrays), **CLOSE
    )


@pytest.mark.parametrize(
    "given",
    [
        {"padding": 9, "dilation": 3},
        {"padding": (5, 9, 12, 7), "dilation": (3, 4), "strides": (2, 1)},
    ],
    ids=str,
)
def test_depthwise_windows_that_reach_far_beside_the_image(given, monkeypatch):
    """Of which oneDNN has fast kernels without padding only: images are copied to where their edges are."""
    monkeypatch.setattr(onednn, "_of_thread", onednn._OfThread())
    given = options(groups=24, activation="relu", **given)
    case = Case((19, 17), 24, 24, kernel=(7, 7), batch=2, dtype="float32", residual=True, **given)
    executor = executor_of(case.function(case.arrays()))
    for seed in range(2):  # the first call leaves nothing beside the images of the second
        arrays = {name: np.roll(array, seed) for name, array in case.arrays().items()}
        np.testing.assert_allclose(ran(executor, arrays), case.expected(arrays), **CLOSE)
    (convolution,) = onednn._of_thread.convolutions.values()
    assert isinstance(convolution, onednn._WithEdges)


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case((9, 11), 16, 24, dtype="bfloat16", residual=True, **options(activation="relu"))
    if not onednn.is_capable(case.problem()):
        pytest.skip("oneDNN has no kernel in bfloat16 for this processor")
    arrays, types = case.arrays(), case.types()
    variables = {
        name: relay.var(name, shape=array.shape, dtype=types[name]) for name, array in arrays.items()
    }
    executor = executor_of(relay.Function([*variables.values()], conv2d_nhwc(**variables, **case.options)))
    given = {
        name: array.astype(ml_dtypes.bfloat16) if types[name] == "bfloat16" else array
        for name, array in arrays.items()
    }
    result = ran(executor, given).view(ml_dtypes.bfloat16).astype("float32")
    np.testing.assert_allclose(result, case.expected(arrays), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dtype, slope", [("float16", None), ("bfloat16", "bfloat16")])
def test_what_it_has_not_is_left_to_other_kernels(dtype, slope):
    problem = replace(CASES[0].problem(), dtype=dtype, slope=slope)
    assert not onednn.is_capable(problem)
    assert op.kernels_for(problem, TARGET) is not onednn


def test_without_the_library(monkeypatch):
    """What is compiled for it says what is missing; what is compiled then takes other kernels."""
    case = in_float32(CASES[0])
    arrays = case.arrays()
    executor = executor_of(case.function(arrays))
    monkeypatch.setattr(library, "library", lambda: None)
    monkeypatch.setattr(onednn, "_of_thread", onednn._OfThread())
    assert op.kernels_for(case.problem(), TARGET) is not onednn
    with pytest.raises(tvm.TVMError, match="oneDNN is missing here: pip install onednn-cpu-gomp"):
        executor.run(**arrays)


@pytest.mark.parametrize(
    "case",
    [
        Case((23, 9), 16, 64, batch=2, **options(block_size=2, activation="prelu")),
        Case((17, 8), 8, 32, kernel=(5, 3), **options(padding=(3, 1, 0, 1), strides=2, block_size=2)),
        Case((13, 8), 8, 27, kernel=(3, 3), **options(padding=(0, 1, 2, 1), dilation=2, block_size=3)),
        Case((6, 5), 8, 64, kernel=(1, 1), **options(padding=(5, 0, 4, 0), block_size=4)),
        Case((30, 40), 32, 64, **options(block_size=2)),  # by Winograd's algorithm, where it is faster
    ],
    ids=str,
)
def test_a_shuffle_in_bands_of_rows(case, monkeypatch):
    """Of four rows each, of which the last has fewer, and with the rows around them that they read."""
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    monkeypatch.setattr(onednn, "BAND", 1)
    case = in_float32(replace(case, options={**case.options, "weight_id": "some"}))
    arrays = case.arrays()
    found = ran(executor_of(case.function(arrays)), arrays)
    np.testing.assert_allclose(found, case.expected(arrays), rtol=1e-4, atol=1e-4)
    (convolution,) = thread.convolutions.values()
    height, _ = case.problem().out_size
    is_whole = case.options["padding"] == (5, 0, 4, 0)
    assert len(convolution._bands) == case.batch * (1 if is_whole else -(-height // 4))


# --- weights that are packed once


def with_weight(weight, weight_id):
    data = relay.var("data", shape=(1, 5, 6, 8))
    variable = relay.var("weight", shape=weight.shape)
    return relay.Function([data, variable], conv2d_nhwc(data, variable, padding=1, weight_id=weight_id))


def sums(data, weight):
    from topi_ext.conv2d_nhwc import reference

    return reference.conv2d_nhwc(data, weight, padding=1)


@pytest.mark.parametrize("weight_id", ["", "first"])
def test_weights_that_change(weight_id):
    """Without an id they are packed in each call; with one, changed weights are seen all the same."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 5, 6, 8), "float32")
    one, other = (rng.standard_normal((16, 3, 3, 8), "float32") for _ in range(2))
    executor = executor_of(with_weight(one, weight_id))
    for weight in (one, other, one):
        found = ran(executor, {"data": data, "weight": weight})
        np.testing.assert_allclose(found, sums(data, weight), **CLOSE)


def test_one_weight_that_changes_without_an_id():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 5, 6, 8), "float32")
    weight = rng.standard_normal((16, 3, 3, 8), "float32")
    executor = executor_of(with_weight(weight, ""))
    ran(executor, {"data": data, "weight": weight})
    weight[3, 1, 1, 5] += 1
    found = ran(executor, {"data": data, "weight": weight})
    np.testing.assert_allclose(found, sums(data, weight), **CLOSE)


def test_packed_weights_are_given_up(monkeypatch):
    monkeypatch.setattr(onednn, "MAX_KEPT", 1)
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    for filters in (8, 16, 24):
        case = in_float32(replace(CASES[0], filters=filters))
        arrays = case.arrays()
        found = ran(executor_of(case.function(arrays)), arrays)
        np.testing.assert_allclose(found, case.expected(arrays), **CLOSE)
        assert [json.loads(text)["filters"] for text, _ in thread.convolutions] == [filters]


def test_images_with_edges_are_given_up(monkeypatch):
    """Where images come in many sizes, each size has some."""
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    weight = relay.const(np.ones((24, 7, 7, 1), "float32"))
    data = relay.var("data", shape=(1, relay.Any(), relay.Any(), 24))
    call = conv2d_nhwc(data, weight, padding=9, dilation=3, groups=24)
    convolve = compiled(tvm.IRModule.from_expr(relay.Function([data], call)))
    for most, sizes, kept in ((onednn.MAX_KEPT, (19, 20, 21), 3), (200_000, (22,), 1)):
        monkeypatch.setattr(onednn, "MAX_KEPT", most)
        for size in sizes:
            convolve(np.ones((1, size, size, 24), "float32"))
        assert len(thread.edges) == len(thread.convolutions) == kept


# --- batches of any size


def of_any_batch(kernel=1, **options):
    """The sum of eight ones at each place, and of those around it."""
    data = relay.var("data", shape=(relay.Any(), 5, 6, 8))
    weight = relay.const(np.ones((16, kernel, kernel, 8), "float32"))
    return tvm.IRModule.from_expr(relay.Function([data], conv2d_nhwc(data, weight, **options)))


def compiled(mod, target=TARGET):
    return relay.create_executor("vm", mod, tvm.cpu(), target).evaluate()


@pytest.mark.parametrize("target", [TARGET, tvm.target.Target("llvm")], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case((9, 11), 16, 24, **options(activation=LEAKY, strides=2)),
        Case((6, 5), 8, 12, kernel=(1, 1), **options(activation="silu", block_size=2)),
        Case((7, 7), 8, 12, kernel=(7, 7), **options(padding=0, activation="prelu")),
    ],
    ids=str,
)
def test_a_batch_known_only_at_run_time(case, target):
    case = in_float32(case)
    arrays = case.arrays()
    batch = relay.var("data", shape=(relay.Any(), *arrays["data"].shape[1:]))
    given = {name: relay.const(array) for name, array in arrays.items() if name != "data"}
    function = relay.Function([batch], conv2d_nhwc(batch, **given, **case.options))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    assert isinstance(mod["main"].ret_type.shape[0], tvm.tir.Any)
    run = compiled(mod, target)
    for count in (3, 1, 3):
        data = np.random.default_rng(count).standard_normal((count, *arrays["data"].shape[1:]), "float32")
        np.testing.assert_allclose(run(data).numpy(), case.expected({**arrays, "data": data}), **CLOSE)
    assert run(data[:0]).shape == (0, *map(int, mod["main"].ret_type.shape[1:]))


def test_on_cuda_such_a_batch_is_refused():
    with pytest.raises(tvm.TVMError, match="known only at run time has kernels for llvm, not for cuda"):
        relay.vm.compile(of_any_batch(), tvm.target.Target("cuda -arch=sm_90", host="llvm"))


@pytest.mark.parametrize(
    "case",
    [
        Case((9, 11), 16, 24, **options(activation=LEAKY, strides=2)),
        Case((6, 5), 8, 12, kernel=(1, 1), **options(activation="silu", block_size=2)),
        Case((7, 7), 8, 12, kernel=(7, 3), **options(padding=(0, 1, 2, 0), activation="prelu")),
        Case((8, 9), 16, 16, residual=True, **options(groups=16)),
    ],
    ids=str,
)
def test_an_image_whose_size_is_known_only_at_run_time(case, in_python):
    """At two sizes in turn, of which each has its primitive, and calls without Python."""
    case = in_float32(replace(case, options={**case.options, "weight_id": "some"}))
    unknown = [relay.Any()] * 3
    arrays = case.arrays()
    variables = {
        name: relay.var(name, shape=(*unknown, array.shape[3]))
        for name, array in arrays.items()
        if name in ("data", "residual")
    }
    given = {name: relay.const(array) for name, array in arrays.items() if name not in variables}
    function = relay.Function([*variables.values()], conv2d_nhwc(**variables, **given, **case.options))
    run = compiled(tvm.IRModule.from_expr(function))
    sizes = case.size, (case.size[1] + 4, case.size[0]), (7, 5)
    for size in (*sizes, *sizes):
        other = replace(case, size=size, batch=size[0] % 3 + 1).arrays()
        other = {**arrays, **{name: other[name] for name in variables}}
        found = run(*(other[name] for name in variables)).numpy()
        np.testing.assert_allclose(found, case.expected(other), **CLOSE)
    assert case.options.get("block_size", 1) > 1 or len(in_python) == len(sizes)


def test_at_run_time_an_image_smaller_than_the_kernel_has_no_result():
    data = relay.var("data", shape=(1, relay.Any(), relay.Any(), 8))
    call = conv2d_nhwc(data, relay.const(np.ones((16, 5, 5, 8), "float32")))
    run = compiled(tvm.IRModule.from_expr(relay.Function([data], call)))
    for height in (4, 2, 0):
        assert run(np.ones((1, height, 7, 8), "float32")).shape == (1, 0, 3, 16)


def test_without_onednn_an_image_of_unknown_size_is_refused():
    data = relay.var("data", shape=(1, relay.Any(), 6, 8))
    function = relay.Function([data], conv2d_nhwc(data, relay.const(np.ones((16, 3, 3, 8), "float32"))))
    with pytest.raises(tvm.TVMError, match="known only at run time have kernels by oneDNN only"):
        relay.vm.compile(tvm.IRModule.from_expr(function), "llvm")


def test_batches_share_packed_weights(monkeypatch):
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    run = compiled(of_any_batch(kernel=3, padding=1, weight_id="ones"))
    for count in (1, 2, 5):
        run(np.ones((count, 5, 6, 8), "float32"))
    assert len(thread.convolutions) == 3
    assert len({each.weights for each in thread.convolutions.values()}) == 1


def test_primitives_are_given_up(monkeypatch):
    thread = onednn._OfThread()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    monkeypatch.setattr(onednn, "MAX_PRIMITIVES", 2)
    run = compiled(of_any_batch())
    for count in (1, 2, 3, 1):
        np.testing.assert_allclose(run(np.ones((count, 5, 6, 8), "float32")).numpy(), 8)
    assert [shape[0] for _, shape in thread.convolutions] == [3, 1]


def test_threads_have_their_own():
    case = in_float32(Case((20, 20), 16, 32, **options(activation=LEAKY, final_activation=CLIP)))
    for found, expected in ran_by_threads(case, threads=4):
        np.testing.assert_allclose(found, expected, **CLOSE)


def ran_by_threads(case, threads):
    """(found, expected) of each thread, which has data of its own; all run the same library many times."""
    arrays = case.arrays()
    lib = relay.build(tvm.IRModule.from_expr(case.function(arrays)), TARGET)
    results = [None] * threads

    def run(at):
        executor = graph_executor.GraphModule(lib["default"](tvm.cpu()))
        own = {**arrays, "data": arrays["data"] * (at + 1)}
        for _ in range(20):
            found = ran(executor, own)
        results[at] = found, case.expected(own)

    started = [threading.Thread(target=run, args=(at,)) for at in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return results
