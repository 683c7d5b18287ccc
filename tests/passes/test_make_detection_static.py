"""MakeDetectionStatic: the same detections on fixed shapes, whatever their number, and what has none."""

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models.detection import roi_heads, transform

import topi_ext
from frontends import from_pytorch
from tests.helpers import apply, module, ops, refusals, runner
from tests.ops.detections import clustered_detections
from tests.passes.pictures_of_masks import MOST, Picture, a_picture, with_masks
from tvm_passes import Canonicalize, MakeDetectionStatic, detection_pipeline
from tvm_passes._graph import Graph
from tvm_passes._matchers import op_name
from tvm_passes._selection import select

import tvm
from tvm import relay

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
        self.head = torch.nn.Linear(4, 16)
        self.scores, self.moves = torch.nn.Linear(16, classes), torch.nn.Linear(16, 4 * classes)

    def forward(self, boxes, scores, ids):
        rows = torchvision.ops.remove_small_boxes(boxes, 1e-2)
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        rows = torch.where(scores >= 0.25)[0]
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        boxes = boxes[torchvision.ops.batched_nms(boxes, scores, ids, 0.7)[:20]]
        features = torch.relu(self.head(boxes / 500))
        scores = torch.softmax(self.scores(features) * 3, -1)
        boxes = (boxes[:, None] + self.moves(features).reshape(-1, self.classes, 4))[:, 1:]
        ids = torch.arange(self.classes).view(1, -1).expand_as(scores)
        boxes, scores, ids = boxes.reshape(-1, 4), scores[:, 1:].reshape(-1), ids[:, 1:].reshape(-1)
        rows = torch.where(scores > 0.2)[0]
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:8]
        boxes, scores, ids = boxes[kept], scores[kept], ids[kept]
        masks = torch.sigmoid(boxes[:, :, None, None] / 500 + torch.ones(6, 6))
        masks = masks[torch.arange(boxes.shape[0]), ids][:, None]
        inside = (boxes / 10).clamp(0, 60)
        masks = transform.paste_masks_in_image(masks, inside, (64, 70)) * 2
        away = boxes[:, :, None, None] - torch.arange(0, 525.0, 15).reshape(5, 7)
        return boxes, scores, ids, masks, *roi_heads.heatmaps_to_keypoints(-away * away, inside)


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
    assert ops(after).count("dyn.strided_slice") == len(after["main"].body.fields)


def test_static_modules_stay():
    x = relay.var("x", shape=(3, 4))
    mod = module(x, relay.nn.relu(x))
    after, report = apply(MakeDetectionStatic(), mod)
    assert ops(after) == ops(mod) and not report.passes[0].matches


def test_outputs_are_cut_or_padded():
    with pytest.raises(ValueError, match="one of cut, padded"):
        MakeDetectionStatic("short")


# --- graphs by hand


def kept(boxes, scores, ids):
    return select(boxes, scores, ids, 0.5, max_output_size=9)


def rows(tensor, selection):
    return relay.take(tensor, selection, axis=0, mode="clip")


def size(tensor):
    return relay.take(relay.shape_of(tensor), relay.const(0), axis=0)


REFUSED = {
    "reduces over the rows": lambda boxes, kept: relay.sum(rows(boxes, kept), axis=[0]),
    "along the rows": lambda boxes, kept: relay.nn.softmax(rows(boxes, kept), axis=0),
    "computes with how many": lambda boxes, kept: rows(boxes, kept) * relay.cast(size(kept), "float32"),
    "says how many": lambda boxes, kept: size(kept),
    "in no place of its own": lambda boxes, kept: rows(
        boxes,
        relay.squeeze(relay.argwhere(relay.take(boxes, relay.const(0), axis=1) > relay.const(9.0)), [1]),
    ),
    "nothing is known of cumsum": lambda boxes, kept: relay.cumsum(rows(boxes, kept), axis=0),
    "single rows": lambda boxes, kept: relay.take(rows(boxes, kept), relay.const(0), axis=0, mode="clip"),
    "nothing is known of reverse": lambda boxes, kept: relay.reverse(rows(boxes, kept), 0),
    "pads the rows": lambda boxes, kept: relay.nn.pad(rows(boxes, kept), ((0, 1), (0, 0))),
    "masks and boxes are of different rows": lambda boxes, kept: topi_ext.paste_masks(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept), (9, 9)
    ),
    "maps and rois are of different rows": lambda boxes, kept: topi_ext.heatmaps_to_keypoints(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept)
    )[0],
    "mixes rows with other axes": lambda boxes, kept: relay.reshape(rows(boxes, kept), (4, -1)),
}


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


def test_each_picture_has_a_number():
    first, second = Picture(0), Picture(1)
    boxes = first.rows(first.boxes)
    others = relay.transpose(second.rows(second.boxes))
    outputs = [boxes, others, relay.const(np.ones(MOST)), relay.stack([boxes], 0)]
    mod = module(*first.inputs, *second.inputs, relay.Tuple(outputs))
    after = static(mod, "padded")
    counted = [list(map(int, rows)) for rows in after["main"].attrs["padded_rows"]]
    assert counted == [[0, 0], [1, 1], [], [1, 0]]
    dynamic, padded = runner(mod), runner(after)
    for scale in (1.0, 0.3, 0.01):
        inputs = *a_picture(), *a_picture(1, scale)
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
    # The small masks are zeroed or cut, not the pictures; but a threshold of 0 makes ones of zeros.
    assert (op_name(after["main"].body.fields[1]) == "topi_ext.paste_masks") == (threshold != 0)
    dynamic, compute, numbers = runner(mod), runner(after), []
    for scale in (1.0, 0.3, 0.01):
        expected, found = dynamic(*a_picture(0, scale)), compute(*a_picture(0, scale))
        numbers.append(len(expected[0]))
        for array, wanted in zip(found, expected):
            np.testing.assert_array_equal(array[: numbers[-1]], wanted)
            assert not array[numbers[-1] :].any()
        assert expected[1].any() == (numbers[-1] > 0)
    assert len(set(numbers)) == 3 and 0 in numbers
