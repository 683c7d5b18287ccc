"""MakeDetectionStatic of what computes each kept row by itself, sorts them, gathers or pads them."""

import numpy as np
import pytest
import torch

from tests.helpers import apply, module, ops, refusals, runner
from tests.passes.images_of_masks import N
from tests.passes.kept_rows import (
    INPUTS,
    as_maps,
    bounds,
    column,
    filtered,
    is_dynamic,
    of_kept,
    places,
    rows,
    size,
    static,
)
from tvm_passes import MakeDetectionStatic
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

from tvm import relay
from tvm.relay.op.dyn import _make as dyn


def sum_of(values, indices):
    return values + relay.cast(indices, "float32")


FOUR = [relay.const(np.array(values, "float32")) for values in ([1.5, 0.5, 2, 1], [0, 0.5, 1, 2])]
ROW_BY_ROW = {  # of boxes, or of maps of 4 channels
    "argsort": lambda boxes: relay.argsort(boxes, axis=1),
    "batch norm": lambda boxes: relay.nn.batch_norm(as_maps(boxes), *FOUR, *FOUR)[0],
    "best of each": lambda boxes: relay.gather(boxes, 1, relay.expand_dims(relay.argmax(boxes, axis=[1]), 1)),
    "cumsum": lambda boxes: relay.cumsum(boxes, axis=1),
    "group norm": lambda boxes: relay.nn.group_norm(as_maps(boxes), *FOUR, 2),
    "instance norm": lambda boxes: relay.nn.instance_norm(
        relay.concatenate([as_maps(boxes), as_maps(boxes * relay.const(2.0))], 2), *FOUR
    ),
    "layer norm": lambda boxes: relay.nn.layer_norm(boxes, *FOUR),
    "reverse": lambda boxes: relay.reverse(boxes, 1),
    "sort": lambda boxes: relay.sort(boxes, axis=-1, is_ascend=False),
    "topk": lambda boxes: relay.topk(boxes, 2, axis=1, ret_type="values"),
    "topk, both": lambda boxes: (
        relay.topk(boxes, 2, axis=1)[0] + relay.cast(relay.topk(boxes, 2, axis=1)[1], "float32")
    ),
}


def taken_in_order(boxes, order):
    return rows(boxes, relay.cast(order, "int64"))


def first_of_all(vector, number):
    """As `vector[:min(1000, number)]`, which a trace records as `vector[:number]`."""
    return dyn.strided_slice(vector, bounds(0), wide(number), bounds(1), "end")


def expanded(boxes, times):
    """The shape to expand to as torch exports it: lengths of -1 are 1, which expand nothing."""
    shape = relay.concatenate([wide(size(boxes)), bounds(times, 4)], 0)
    is_kept = relay.equal(shape, relay.const(np.full(3, -1, "int64"), "int64"))
    return relay.where(is_kept, relay.const(np.ones(3), "int64"), shape)


OF_FILTERED = {
    "filtered": lambda boxes: boxes,
    "filtered again": lambda boxes: filtered(boxes, 300.0),
    "a class for each that is left": lambda boxes: relay.full_like(
        places(column(boxes) > relay.const(300.0)), relay.const(3, "int64")
    ),
    "sorted, bounded": lambda boxes: relay.sort(column(boxes), 0, is_ascend=False),
    "sorted": lambda boxes: relay.sort(column(boxes, 1), 0),
    "sorted downwards": lambda boxes: relay.sort(column(boxes, 1), 0, is_ascend=False),
    "each column sorted": lambda boxes: relay.sort(boxes, axis=0),
    "each column sorted downwards": lambda boxes: relay.transpose(
        relay.sort(relay.transpose(boxes, (1, 0)), axis=-1, is_ascend=False), (1, 0)
    ),
    "sorted, gathered": lambda boxes: relay.gather(column(boxes, 1), 0, relay.argsort(column(boxes, 1), 0)),
    "the first": lambda boxes: first_rows(boxes, 7),
    "the first of those left twice": lambda boxes: first_rows(filtered(boxes, 300.0), 7),
    "in order": lambda boxes: taken_in_order(boxes, relay.argsort(column(boxes, 2), 0)),
    "as many in order": lambda boxes: first_of_all(
        relay.sort(column(boxes, 1), 0, is_ascend=False), size(column(boxes))
    ),
    "three of each": lambda boxes: relay.reshape(
        dyn.broadcast_to(relay.expand_dims(boxes, 1), expanded(relay.sort(boxes, 0), 3)), (-1, 4)
    ),
    "sampled": lambda boxes: relay.image.grid_sample(
        relay.reshape(boxes, (-1, 1, 2, 2)), relay.reshape(boxes * relay.const(1e-3), (-1, 2, 2, 1))
    ),
    "the first in order": lambda boxes: first_rows(
        taken_in_order(boxes, relay.argsort(column(boxes, 2), 0, False, "int64")), 7
    ),
}


def wide(length):
    return relay.reshape(relay.cast(length, "int64"), (1,))


def padded_flat(boxes, before=0, total=4 * N):
    """All coordinates, brought to a fixed number of them, as ONNX's importer spells a computed pad."""
    flat = relay.reshape(boxes, (-1,))
    after = wide((relay.const(total // 4, "int32") - size(boxes)) * relay.const(4, "int32"))
    zero, pads = relay.const(0, "int64"), relay.concatenate([relay.const([before], "int64"), after], 0)
    cut = relay.take(relay.maximum(zero - pads, zero), relay.const([1]), 0)
    flat = dyn.strided_slice(flat, bounds(0), relay.shape_of(flat, "int64") - cut, bounds(1), "end")
    widths = relay.reshape(relay.maximum(pads, zero), (1, 2))
    return relay.reshape(relay.nn.pad(flat, widths, relay.const(-1.0)), (before + total,))


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_a_filter_of_all_pairs_of_box_and_class(outputs):
    """As with several labels a box; sorted without looking at what the filter removes."""
    scores = relay.var("scores", shape=(N, 3))
    found = relay.argwhere(scores > relay.const(0.5))
    columns = [relay.squeeze(relay.split(found, 2, axis=1)[index], [1]) for index in range(2)]
    values = relay.adv_index([scores, *columns])
    order = relay.argsort(values, 0, is_ascend=False, dtype="int64")
    sorted_ = [relay.take(each, order, axis=0) for each in (values, *columns)]
    mod = module(scores, relay.Tuple(sorted_))
    after = static(mod, outputs)
    assert ops(after).count("topk") == 1  # the filter bounds the values
    dynamic, compute = runner(mod), runner(after)
    for seed, scale in enumerate((1.0, 0.6, 0.4)):
        array = np.random.default_rng(seed).permutation(3 * N).reshape(N, 3) / (3 * N) * scale
        expected, found = dynamic(array.astype("float32")), compute(array.astype("float32"))
        number = len(expected[0])
        for wanted, each in zip(expected, found):
            np.testing.assert_array_equal(each[:number], wanted)
            assert outputs == "cut" or not each[number:].any()


@pytest.mark.parametrize("passing", [0, 1, 3 * N])
def test_pairs_of_box_and_class_are_gathered_by_their_indices(passing):
    """As ONNX's GatherND takes the scores of what a NonMaxSuppression selects."""
    scores, boxes = relay.var("scores", shape=(N, 3)), relay.var("boxes", shape=(N, 4))
    pairs = relay.transpose(relay.argwhere(scores > relay.const(0.5)), [1, 0])
    of_boxes = relay.strided_slice(pairs, [0], [1], axes=[0])
    taken = relay.gather_nd(scores, pairs, index_rank=2), relay.gather_nd(boxes, of_boxes, index_rank=1)
    mod = module(scores, boxes, relay.Tuple(taken))
    arrays = np.zeros((N, 3), "float32"), np.arange(4 * N, dtype="float32").reshape(N, 4)
    arrays[0].flat[np.random.default_rng(0).permutation(3 * N)[:passing]] = 0.75
    for wanted, each in zip(runner(mod)(*arrays), runner(static(mod, "padded"))(*arrays)):
        np.testing.assert_array_equal(each[:passing], wanted)
        assert not each[passing:].any()


def test_masks_that_are_channels_are_resized():
    """As Ultralytics resizes them."""
    scores, masks = relay.var("scores", shape=(N,)), relay.var("masks", shape=(N, 4, 5))
    image = relay.expand_dims(relay.take(masks, places(scores > relay.const(0.5)), axis=0), 0)
    resized = relay.image.resize2d(image, (8, 10), None, "NCHW", "linear")
    compute = runner(static(module(scores, masks, relay.squeeze(resized, [0])), "padded"))
    images = np.random.default_rng(0).random((N, 4, 5), "float32")
    for passing in (0, 1, N):
        kept = torch.tensor(images[N - passing :])[:, None]
        wanted = torch.nn.functional.interpolate(kept, (8, 10), mode="bilinear")[:, 0]
        found, count = compute((np.arange(N) >= N - passing).astype("float32"), images)
        assert count == passing
        np.testing.assert_allclose(found[:passing], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("passing", [0, 3, 5, N])
def test_the_best_of_what_a_filter_leaves_are_counted_when_taken(passing):
    """So that nothing but the scores that the top-k sees is computed from all of them."""
    scores = relay.var("scores", shape=(N,))
    above = places(scores > relay.const(0.5))
    most = relay.expand_dims(relay.minimum(size(above), relay.const(5)), 0)
    best = relay.topk(relay.take(scores, above, axis=0), most, dtype="int64")
    after = static(module(scores, relay.Tuple([best[0], relay.take(above, best[1], axis=0)])), "padded")
    graph = Graph(relay.transform.InferType()(after)["main"])
    summed = [node.args[0] for node in graph.nodes if op_name(node) == "sum"]
    assert [tuple(map(int, each.checked_type.shape)) for each in summed] == [(5,)]
    data = np.linspace(0.1, 0.4, N).astype("float32")
    data[:passing] += 0.5
    values, indices, number = runner(after)(data)
    expected = range(passing)[::-1][:5]
    assert number == len(expected) and list(indices[:number]) == list(expected)
    np.testing.assert_array_equal(values[:number], data[list(expected)])
    assert not values[number:].any()


PADDED_BY_THE_NETWORK = {
    "behind": lambda boxes: padded_flat(boxes),
    "on both sides": lambda boxes: padded_flat(boxes, before=3, total=4 * N + 8),
    "and reshaped": lambda boxes: relay.reshape(padded_flat(boxes), (1, N, 4)),
}


@pytest.mark.parametrize("name", PADDED_BY_THE_NETWORK)
def test_what_the_network_pads_needs_no_padding(name):
    mod = of_kept(PADDED_BY_THE_NETWORK[name], N)
    after = relay.transform.InferType()(static(mod, "padded"))
    assert not any(map(is_dynamic, Graph(after["main"]).nodes))
    assert list(after["main"].attrs["padded_rows"]) == []
    dynamic, compute = runner(mod), runner(after)
    for arrays in INPUTS:
        (expected,), (found,) = dynamic(*arrays), compute(*arrays)
        np.testing.assert_array_equal(found, expected)


PADDED_DIFFERENTLY = {
    "the length behind a pad depends on the number": lambda boxes: relay.nn.pad(
        relay.reshape(boxes, (-1,)), relay.reshape(bounds(0, size(boxes)), (1, 2)), relay.const(0.0)
    ),
    "a length depends on the number of valid rows": lambda boxes: padded_flat(boxes, total=4 * (N // 2)),
    "a length is the product of two numbers": lambda boxes: relay.nn.pad(
        relay.reshape(boxes, (-1,)),
        relay.reshape(bounds(0, size(boxes) * size(boxes)), (1, 2)),
        relay.const(0.0),
    ),
}


@pytest.mark.filterwarnings("ignore:MakeDetectionStatic")
@pytest.mark.parametrize("reason", PADDED_DIFFERENTLY)
def test_other_pads_are_refused(reason):
    _, report = apply(MakeDetectionStatic("padded"), of_kept(PADDED_DIFFERENTLY[reason], N))
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def first_rows(boxes, most):
    return relay.strided_slice(boxes, [0], [most], axes=[0])


@pytest.mark.parametrize("outputs", ["cut", "padded"])
@pytest.mark.parametrize("name", OF_FILTERED)
def test_what_a_filter_leaves(name, outputs):
    """With NaN and infinities in the rows that it removes."""
    x = relay.var("x", shape=(N, 4))
    mod = module(x, OF_FILTERED[name](filtered(x)))
    dynamic, compute, numbers = runner(mod), runner(static(mod, outputs)), set()
    for seed, scale in enumerate((1.0, 2.0, 0.5, 0.0)):
        boxes = np.random.default_rng(seed).permutation(4 * N).reshape(N, 4).astype("float32") * 2 * scale
        boxes[boxes[:, 0] <= 100, 1:3] = np.resize(np.float32([np.nan, np.inf, -np.inf]), (1, 2))
        (expected,), found = dynamic(boxes), compute(boxes)
        numbers.add(len(expected))
        if outputs == "padded":
            assert found[1] == len(expected) and not found[0][len(expected) :].any()
        np.testing.assert_array_equal(found[0][: len(expected)], expected)
    assert len(numbers) > 1 and 0 in numbers


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_what_computes_each_row_by_itself(name):
    x = relay.var("x", shape=(N, 4))
    of_boxes = runner(module(x, ROW_BY_ROW[name](x)))
    of_static = [
        runner(static(of_kept(each, N), "padded")) for each in (lambda boxes: boxes, ROW_BY_ROW[name])
    ]
    for arrays in INPUTS[:2]:
        (boxes, count), (found, same_count) = (compute(*arrays) for compute in of_static)
        assert 0 < count == same_count < N
        (expected,) = of_boxes(boxes)
        np.testing.assert_allclose(found[:count], expected[:count], rtol=1e-5, atol=1e-5)
        assert not found[count:].any()
