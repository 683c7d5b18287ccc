"""MakeDetectionStatic: the same detections on fixed shapes, whatever their number, and what has none."""

import warnings

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models.detection import roi_heads, transform

from frontends import from_pytorch
from tests.helpers import apply, module, ops, runner
from tests.passes.images_of_masks import a_image, with_masks
from tests.passes.kept_rows import INPUTS, detections, is_dynamic, of_kept, static
from tvm_passes import MakeDetectionStatic, detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay


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


def test_outputs_are_cut_once(imported):
    once = static(imported, "cut")
    again, report = apply(MakeDetectionStatic("cut"), once)
    tvm.ir.assert_structural_equal(again, once)
    assert not report.passes[0].matches


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
