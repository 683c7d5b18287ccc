"""MakeDetectionStatic: the same detections on fixed shapes, whatever their number, and what has none."""

import functools
import warnings

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models.detection import roi_heads, transform

import topi_ext
from frontends import from_pytorch
from tests.helpers import apply, module, ops, refusals, runner
from tests.ops.detections import clustered_detections
from tests.passes.images_of_masks import MAX_KEPT, Image, a_image, with_masks
from tvm_passes import Canonicalize, MakeDetectionStatic, detection_pipeline
from tvm_passes.detection.selection import select
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay
from tvm.relay.op.dyn import _make as dyn

N = 60


def detections(seed=0, scale=1.0):
    """No scores tie: of those that do, torch's top-k takes any."""
    boxes, scores, ids = clustered_detections(N, 3, seed)
    boxes[seed % 5 :: 5, 2:] = boxes[seed % 5 :: 5, :2] + np.float32(1e-3)
    return boxes, scores * np.float32(scale), ids


class OneStage(torch.nn.Module):
    """As SSD and RetinaNet do: of each class the best above a threshold, and all of these to one NMS."""

    def forward(self, boxes, scores, ids):
        parts = []
        for one in range(3):
            of_class = torch.where(ids == one, scores, torch.zeros_like(scores))
            rows = torch.where(of_class > 0.25)[0]
            best, places = torch.topk(of_class[rows], torchvision_min(rows, 10))
            rows = rows[places]
            parts.append((boxes[rows], best, torch.full_like(best, one, dtype=torch.int64)))
        boxes, scores, ids = (torch.cat(part) for part in zip(*parts))
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:9]
        return boxes[kept], scores[kept], ids[kept]


def torchvision_min(rows, most):
    sizes = torch.cat((torch.tensor([most]), torch._shape_as_tensor(rows)[0].unsqueeze(0)))
    return torch.min(sizes).to(torch.int64) if torch.jit.is_tracing() else int(torch.min(sizes))


class TwoStages(torch.nn.Module):
    """As Faster R-CNN does: proposals, a head that classifies them and moves them by class, detections."""

    def __init__(self, classes=4):
        super().__init__()
        torch.manual_seed(0)
        self.classes = classes
        self.head = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16))
        self.scores, self.moves = torch.nn.Linear(16, classes), torch.nn.Linear(16, 4 * classes)

    def forward(self, boxes, scores, ids):
        boxes, scores, ids = self.detections(*self.classified(self.proposals(boxes, scores, ids)))
        return boxes, scores, ids, *self.drawn(boxes, *self.maps(boxes, ids))

    def proposals(self, boxes, scores, ids):
        rows = torchvision.ops.remove_small_boxes(boxes, 1e-2)
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        rows = torch.where(scores >= 0.25)[0]
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        return boxes[torchvision.ops.batched_nms(boxes, scores, ids, 0.7)[:20]]

    def classified(self, boxes):
        features = torch.relu(self.head(boxes / 500))
        scores = torch.softmax(self.scores(features) * 3, -1)
        return scores, boxes[:, None] + self.moves(features).reshape(-1, self.classes, 4)

    def detections(self, scores, boxes):
        ids = torch.arange(self.classes).view(1, -1).expand_as(scores)
        boxes, scores, ids = boxes[:, 1:].reshape(-1, 4), scores[:, 1:].reshape(-1), ids[:, 1:].reshape(-1)
        rows = torch.where(scores > 0.2)[0]
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:8]
        return boxes[kept], scores[kept], ids[kept]

    def maps(self, boxes, ids):
        masks = torch.sigmoid(boxes[:, :, None, None] / 500 + torch.ones(6, 6))
        away = boxes[:, :, None, None] - torch.arange(0, 525.0, 15).reshape(5, 7)
        return masks[torch.arange(masks.shape[0]), ids][:, None], -away * away / 1e4

    def drawn(self, boxes, masks, maps):
        inside = (boxes / 10).clamp(0, 60)
        masks = transform.paste_masks_in_image(masks, inside, (64, 70)) * 2
        return masks, *roi_heads.heatmaps_to_keypoints(maps, inside)


class Batch(TwoStages):
    """The same for several images: the heads see the proposals of all, one image's behind another's."""

    def forward(self, *inputs):
        proposals = [self.proposals(*inputs[first : first + 3]) for first in range(0, len(inputs), 3)]
        sizes = [boxes.shape[0] for boxes in proposals]
        scores, boxes = (part.split(sizes) for part in self.classified(torch.cat(proposals)))
        found = [self.detections(*of_image) for of_image in zip(scores, boxes)]
        boxes, _, ids = (torch.cat(part) for part in zip(*found))
        sizes = [boxes.shape[0] for boxes, _, _ in found]
        masks, maps = (part.split(sizes) for part in self.maps(boxes, ids))
        parts = zip(found, masks, maps)
        return [part for found, *maps in parts for part in (*found, *self.drawn(found[0], *maps))]


MODELS = {"one stage": OneStage(), "two stages": TwoStages()}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request):
    return MODELS[request.param].eval()


@pytest.fixture(scope="module")
def imported(model):
    mod, params = from_pytorch(model, tuple(map(torch.from_numpy, detections())))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return detection_pipeline()(mod)


@pytest.fixture(scope="module")
def dynamic(imported):
    return runner(imported)


def static(mod, outputs):
    after, report = apply(tvm.transform.Sequential([MakeDetectionStatic(outputs), Canonicalize()]), mod)
    made, _ = report.passes
    assert not made.refusals, made.refusals
    return after


def is_dynamic(node):
    return "?" in str(getattr(node, "_checked_type_", ""))


INPUTS = [detections(seed) for seed in range(6)] + [detections(0, 0.01), detections(0, 100)]


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_the_same_detections(model, imported, dynamic, outputs):
    compute, numbers = runner(static(imported, outputs)), set()
    for arrays in INPUTS:
        expected, found = dynamic(*arrays), compute(*arrays)
        number = len(expected[0])
        numbers.add(number)
        if outputs == "padded":
            *found, count = found
            assert count == number and all(not array[number:].any() for array in found)
            found = [array[:number] for array in found]
        for wanted, array in zip(expected, found):
            np.testing.assert_array_equal(array, wanted)
        for tensor, wanted in zip(model(*map(torch.from_numpy, arrays)), expected):
            np.testing.assert_allclose(tensor.detach(), wanted, rtol=1e-4, atol=1e-5)
    assert len(numbers) > 2 and 0 in numbers


def test_a_batch():
    model, images = Batch().eval(), 3
    examples = [tensor for seed in range(images) for tensor in map(torch.from_numpy, detections(seed))]
    mod, params = from_pytorch(model, tuple(examples))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    after = relay.transform.InferType()(static(detection_pipeline()(mod), "padded"))
    assert not any(map(is_dynamic, Graph(after["main"]).nodes))
    compute, seen = runner(after), set()
    for scales in ((1, 1, 0.3), (0.01, 1, 1), (1, 0.01, 0.3), (0.3, 1, 0.01), (0.01, 0.01, 0.01)):
        arrays = [array for seed, scale in enumerate(scales) for array in detections(seed, scale)]
        *found, numbers = compute(*arrays)
        expected = [tensor.detach().numpy() for tensor in model(*map(torch.from_numpy, arrays))]
        assert list(numbers) == [len(boxes) for boxes in expected[:: len(expected) // images]]
        for place, (array, wanted) in enumerate(zip(found, expected)):
            detected, behind = np.split(array, [numbers[place * images // len(expected)]])
            np.testing.assert_allclose(detected, wanted, rtol=1e-4, atol=1e-5)
            assert not behind.any()
        seen.update((place, bool(number)) for place, number in enumerate(numbers))
    assert len(seen) == 2 * images  # each with something and with nothing


def test_no_shape_is_known_only_at_run_time(imported):
    after = relay.transform.InferType()(static(imported, "padded"))
    assert any(map(is_dynamic, Graph(imported["main"]).nodes))
    assert not any(map(is_dynamic, Graph(after["main"]).nodes))
    names = list(map(str, after["main"].attrs["output_names"]))
    assert names[-1] == "num_detections"


def test_only_the_outputs_are_cut(imported):
    after = relay.transform.InferType()(static(imported, "cut"))
    dynamic_ops = {name for name in ops(after) if name.startswith("dyn.")}
    assert dynamic_ops == {"dyn.strided_slice"}
    outputs = after["main"].body.fields
    cut = [part for output in outputs for part in (output.args if pastes(output) else [output])]
    assert ops(after).count("dyn.strided_slice") == len(cut)


def pastes(output):
    """Whether it is made of small masks and boxes, which are cut instead."""
    return op_name(output) == "topi_ext.paste_masks"


def test_static_modules_stay():
    x = relay.var("x", shape=(3, 4))
    mod = module(x, relay.nn.relu(x))
    after, report = apply(MakeDetectionStatic(), mod)
    assert ops(after) == ops(mod) and not report.passes[0].matches


def test_who_asks_for_padded_outputs_is_told_why_there_are_none():
    mod = of_kept(lambda boxes: relay.cumsum(boxes, axis=0))
    with pytest.warns(UserWarning, match="the outputs are not padded: cumsum: it computes along the rows"):
        MakeDetectionStatic("padded")(mod)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MakeDetectionStatic("cut")(mod)


@pytest.mark.parametrize("place", ["x", "dyn.reshape"])
def test_other_dynamic_shapes_are_told_of(place):
    x = relay.var("x", shape=(relay.Any() if place == "x" else 9,))
    shape = relay.var("shape", shape=(1,), dtype="int64")
    mod = module(x, shape, relay.nn.relu(x if place == "x" else relay.reshape(x, shape)))
    with pytest.warns(UserWarning, match=f"not padded: {place}: its shape is known only at run time"):
        MakeDetectionStatic("padded")(mod)


def test_outputs_are_cut_or_padded():
    with pytest.raises(ValueError, match="one of cut, padded"):
        MakeDetectionStatic("short")


# --- graphs by hand


def kept(boxes, scores, ids, most=9):
    return select(boxes, scores, ids, 0.5, max_output_size=most)


def rows(tensor, selection):
    return relay.take(tensor, selection, axis=0, mode="clip")


def size(tensor):
    return relay.take(relay.shape_of(tensor), relay.const(0), axis=0)


def large(boxes, column=0):
    return relay.take(boxes, relay.const(column), axis=1) > relay.const(9.0)


def places(mask):
    return relay.squeeze(relay.argwhere(mask), [1])


def places_among_some(boxes):
    """Which of the rows that a filter leaves a second one leaves."""
    return places(large(rows(boxes, places(large(boxes))), 1))


def kept_of_some(boxes):
    some = rows(boxes, places(large(boxes)))
    scores = relay.take(some, relay.const(0), axis=1)
    ids = relay.cast(relay.zeros_like(scores), "int64")
    return select(some, scores, ids, 0.5, score_threshold=0.25, max_output_size=9)


def as_maps(boxes):
    return relay.expand_dims(boxes, 2, 2)


REFUSED = {
    "reduces over the rows": lambda boxes, kept: relay.sum(rows(boxes, kept), axis=[0]),
    "along the rows": lambda boxes, kept: relay.nn.softmax(rows(boxes, kept), axis=0),
    "computes with the number of detections": lambda boxes, kept: (
        rows(boxes, kept) * relay.cast(size(kept), "float32")
    ),
    "an output is computed from the number of detections": lambda boxes, kept: size(kept),
    "an input besides the rows is padded": lambda boxes, kept: relay.nn.layer_norm(
        relay.const(np.ones((2, 9), "float32")), *[relay.take(rows(boxes, kept), relay.const(0), axis=1)] * 2
    ),
    "it resizes along the rows": lambda boxes, kept: relay.image.resize2d(
        relay.expand_dims(rows(boxes, kept), 0, 2), (6, 4), None, "NCHW"
    ),
    "the rows are not the items of a batch": lambda boxes, kept: relay.nn.group_norm(
        as_maps(rows(boxes, kept)), *[relay.ones((9,), "float32")] * 2, 1, axis=0
    ),
    "single rows": lambda boxes, kept: relay.take(rows(boxes, kept), relay.const(0), axis=0, mode="clip"),
    "trilu is not supported on detections": lambda boxes, kept: relay.trilu(
        rows(boxes, kept), relay.const(0)
    ),
    "its result has rows other than those of its operands": lambda boxes, kept: relay.repeat(
        rows(boxes, kept), 2, axis=0
    ),
    "pads the rows": lambda boxes, kept: relay.nn.pad(rows(boxes, kept), ((0, 1), (0, 0))),
    "masks and boxes have different valid rows": lambda boxes, kept: topi_ext.paste_masks(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept), (9, 9)
    ),
    "maps and rois have different valid rows": lambda boxes, kept: topi_ext.heatmaps_to_keypoints(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept)
    )[0],
    "it is ill-typed": lambda boxes, kept: relay.reshape(rows(boxes, kept), (5, -1)),
    "uses row indices": lambda boxes, kept: places_among_some(boxes) * relay.const(2),
    "the indices of the rows that a filter keeps": lambda boxes, kept: kept_of_some(boxes),
    "results of an NMS other than the kept boxes": lambda boxes, kept: kept_of_some(boxes).args[0],
    "it is computed from the number of detections": lambda boxes, kept: relay.full(
        relay.cast(size(kept), "float32"), relay.shape_of(rows(boxes, kept)), "float32"
    ),
    "indices that may belong to other rows": lambda boxes, kept: rows(boxes, places_among_some(boxes)),
    "at indices that may belong to other rows": lambda boxes, kept: rows(
        kept, relay.argsort(kept, dtype="int64") + relay.const(1, "int64")
    ),
    "rows are taken at indices that may belong to other": lambda boxes, kept: relay.adv_index(
        [kept, relay.argsort(kept, dtype="int64") - relay.const(1, "int64")]
    ),
    "rows are taken from a tensor without rows": lambda boxes, kept: rows(
        relay.const(np.zeros((0, 4), "float32")), kept
    ),
    "mixes rows with other axes": lambda boxes, kept: relay.reshape(rows(boxes, kept), (4, -1)),
}


@pytest.mark.filterwarnings("ignore:MakeDetectionStatic")
@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    inputs = [
        relay.var("boxes", shape=(N, 4)),
        relay.var("scores", shape=(N,)),
        relay.var("ids", shape=(N,), dtype="int64"),
    ]
    mod = module(*inputs, REFUSED[reason](inputs[0], kept(*inputs)))
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert ops(after) == ops(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


ALONG_THE_ROWS = {
    "softmax": lambda boxes: relay.nn.softmax(boxes, axis=0),
    "cumsum": lambda boxes: relay.cumsum(boxes, axis=-2),
    "cumsum of all": lambda boxes: relay.cumsum(boxes),
    "reverse": lambda boxes: relay.reverse(boxes, 0),
    "gather": lambda boxes: relay.gather(boxes, 0, relay.cast(relay.zeros_like(boxes), "int64")),
    "batch norm": lambda boxes: relay.nn.batch_norm(boxes, *[relay.const(np.ones(9, "float32"))] * 4, axis=0)[
        0
    ],
}


@pytest.mark.parametrize("name", ALONG_THE_ROWS)
def test_what_computes_along_the_rows_is_refused(name):
    mod = of_kept(ALONG_THE_ROWS[name])
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert ops(after) == ops(mod)
    assert any("it computes along the rows" in refusal for refusal in refusals(report)), refusals(report)


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


def of_kept(function, most=9):
    """A function of the boxes that an NMS keeps, as a module."""
    inputs = [
        relay.var("boxes", shape=(N, 4)),
        relay.var("scores", shape=(N,)),
        relay.var("ids", shape=(N,), dtype="int64"),
    ]
    return module(*inputs, function(rows(inputs[0], kept(*inputs, most))))


def column(boxes, number=0):
    return relay.take(boxes, relay.const(number), axis=1)


def filtered(boxes, threshold=100.0):
    return rows(boxes, places(column(boxes) > relay.const(threshold)))


def taken_in_order(boxes, order):
    return rows(boxes, relay.cast(order, "int64"))


OF_FILTERED = {
    "filtered": lambda boxes: boxes,
    "filtered again": lambda boxes: filtered(boxes, 300.0),
    "sorted, bounded": lambda boxes: relay.sort(column(boxes), 0, is_ascend=False),
    "sorted": lambda boxes: relay.sort(column(boxes, 1), 0),
    "sorted downwards": lambda boxes: relay.sort(column(boxes, 1), 0, is_ascend=False),
    "each column sorted": lambda boxes: relay.sort(boxes, axis=0),
    "each column sorted downwards": lambda boxes: relay.transpose(
        relay.sort(relay.transpose(boxes, (1, 0)), axis=-1, is_ascend=False), (1, 0)
    ),
    "in order": lambda boxes: taken_in_order(boxes, relay.argsort(column(boxes, 2), 0)),
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


TO_THE_END = np.iinfo("int64").max


def bounds(*lengths):
    lengths = [relay.const(each, "int64") if isinstance(each, int) else each for each in lengths]
    return relay.concatenate([relay.expand_dims(relay.cast(each, "int64"), 0) for each in lengths], 0)


def between(boxes, begin, end, columns=4):
    """boxes[begin:end, :columns], as an importer spells it: the result's type forgets all lengths."""
    inside = relay.minimum(relay.const(begin, "int32") if isinstance(begin, int) else begin, size(boxes))
    return dyn.strided_slice(boxes, bounds(inside, 0), bounds(end, columns), bounds(1, 1), "end")


FEW = 4


def images(number):
    """Inputs, and the boxes that an NMS keeps of each image, which are at most FEW."""
    made = [Image(place, FEW) for place in range(number)]
    inputs = [each for image in made for each in image.inputs]
    return inputs, [image.rows(image.boxes) for image in made]


def in_a_row(parts):
    return relay.concatenate(parts, axis=0)


@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_what_was_put_in_a_row_is_taken_apart(outputs):
    inputs, boxes = images(3)
    first, second, third = map(size, boxes)
    moved = in_a_row(boxes) * relay.const(2.0)
    others = between(moved, first, first + second + third)
    parts = [
        between(moved, 0, first),
        between(moved, first, first + second),
        between(moved, first + second, TO_THE_END),
        between(others, second, second + third),
    ]
    after = static(module(*inputs, relay.Tuple([relay.reshape(part, (-1, 4)) for part in parts])), outputs)
    compute, seen = runner(after), set()
    for scales in ((9, 9, 1), (0.01, 9, 9), (9, 0.01, 0.01), (1, 1, 9), (9, 9, 9), (0.01, 0.01, 0.01)):
        arrays = [array for seed, scale in enumerate(scales) for array in a_image(seed, scale)]
        expected = [2 * array for array in detected(*arrays)]
        numbers = list(map(len, expected))
        *found, counted = compute(*arrays) if outputs == "padded" else (*compute(*arrays), numbers)
        assert list(counted) == numbers
        for array, wanted in zip(found, (*expected, expected[2])):
            np.testing.assert_array_equal(array[: len(wanted)], wanted)
            assert not array[len(wanted) :].any() and (len(array) == FEW or outputs == "cut")
        seen.update(enumerate(numbers))
    assert {(place, number) for place in range(3) for number in (0, FEW)} <= seen


@functools.cache
def _detects(number):
    inputs, boxes = images(number)
    return runner(module(*inputs, relay.Tuple(boxes)))


def detected(*arrays):
    """What `images` keeps of such inputs."""
    return _detects(len(arrays) // 3)(*arrays)


REFUSED_AMONG_OTHERS = {
    "rows other than the leading ones or a concatenated part": lambda first, second: between(
        in_a_row([first, second]), size(second), size(first) + size(second)
    ),
    "rows other than the leading ones": lambda first, second: between(first, 0, size(second)),
    "the slice of another axis": lambda first, second: between(first, 0, TO_THE_END, size(second)),
    "mixes rows with other axes": lambda first, second: dyn.reshape(first, bounds(size(second), -1), False),
    "a shape depends on the number of valid rows": lambda first, second: dyn.reshape(
        first, bounds(size(first) * size(second), -1), False
    ),
    "the operands have different valid rows": lambda first, second: (
        in_a_row([first, second]) + in_a_row([second, first])
    ),
}


@pytest.mark.parametrize("reason", REFUSED_AMONG_OTHERS)
def test_refusals_among_several_images(reason):
    inputs, boxes = images(2)
    mod = module(*inputs, REFUSED_AMONG_OTHERS[reason](*boxes))
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert after.same_as(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_each_image_has_a_number():
    first, second = Image(0), Image(1)
    boxes = first.rows(first.boxes)
    others = relay.transpose(second.rows(second.boxes))
    outputs = [boxes, others, relay.const(np.ones(MAX_KEPT)), relay.stack([boxes], 0)]
    mod = module(*first.inputs, *second.inputs, relay.Tuple(outputs))
    after = static(mod, "padded")
    counted = [list(map(int, rows)) for rows in after["main"].attrs["padded_rows"]]
    assert counted == [[0, 0], [1, 1], [], [1, 0]]
    dynamic, padded = runner(mod), runner(after)
    for scale in (1.0, 0.3, 0.01):
        inputs = *a_image(), *a_image(1, scale)
        expected, (*found, numbers) = dynamic(*inputs), padded(*inputs)
        assert list(numbers) == [len(expected[0]), expected[1].shape[1]]
        for array, wanted, rows in zip(found, expected, counted):
            axis, number = (rows[0], numbers[rows[1]]) if rows else (0, len(array))
            detections, behind = np.split(array, [number], axis)
            np.testing.assert_array_equal(detections, wanted)
            assert not behind.any()


@pytest.mark.parametrize("threshold", [None, 0.5, 0])
@pytest.mark.parametrize("outputs", ["cut", "padded"])
def test_pasted_masks(outputs, threshold):
    mod = with_masks(threshold=threshold)
    after = static(mod, outputs)
    # The small masks are zeroed or cut, not the images; but a threshold of 0 makes ones of zeros.
    assert pastes(after["main"].body.fields[1]) == (threshold != 0)
    dynamic, compute, numbers = runner(mod), runner(after), []
    for scale in (1.0, 0.3, 0.01):
        expected, found = dynamic(*a_image(0, scale)), compute(*a_image(0, scale))
        numbers.append(len(expected[0]))
        for array, wanted in zip(found, expected):
            np.testing.assert_array_equal(array[: numbers[-1]], wanted)
            assert not array[numbers[-1] :].any()
        assert expected[1].any() == (numbers[-1] > 0)
    assert len(set(numbers)) == 3 and 0 in numbers
