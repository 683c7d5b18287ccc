"""RestoreBatchedNMS and FoldPostNMSTopK: what importers make of class-aware NMS, and what looks like it."""

import numpy as np
import pytest
import torch
import torchvision

import frontends
from tests.helpers import apply, assert_no_second_change, module, ops, refusals, run, runner
from tvm_passes import detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

N = 40


def detections(seed=0, count=N, classes=3):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 60
    size = torch.rand(count, 2, generator=generator) * 40 + 5
    ids = torch.randint(classes, (count,), generator=generator)
    return torch.cat([corner, corner + size], 1), torch.rand(count, generator=generator), ids


class Batched(torch.nn.Module):
    """torchvision's own, traced: the offset trick."""

    def __init__(self, most=None):
        super().__init__()
        self.most = most

    def forward(self, boxes, scores, ids):
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)
        return kept if self.most is None else kept[: self.most]


class Filtered(torch.nn.Module):
    """As detection heads do it: behind a filter that leaves an unknown number of boxes."""

    def forward(self, boxes, scores, ids):
        seen = torch.where(scores > 0.3)[0]
        boxes, scores, ids = boxes[seen], scores[seen], ids[seen]
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:7]
        return boxes[kept], scores[kept], ids[kept]


class FixedOffset(torch.nn.Module):
    """Ultralytics' way: the class times a constant."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset

    def forward(self, boxes, scores, ids):
        return torchvision.ops.nms(boxes + ids.float()[:, None] * self.offset, scores, 0.5)


@torch.jit.script
def scripted(boxes: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:9]


class CallsScript(torch.nn.Module):
    """As EfficientDet does: the trace has torchvision's branch, and its loop over classes for many boxes."""

    def forward(self, boxes, scores, ids):
        return boxes[scripted(boxes, scores, ids)]


class OneClass(torch.nn.Module):
    def forward(self, boxes, scores, ids):
        return torchvision.ops.nms(boxes, scores, 0.5), ids


def imported(model, inputs=None):
    return frontends.from_pytorch(model.eval(), inputs or detections())[0]


def imported_by_tvm(model):
    """As TVM's own importer has it, without ours around."""
    inputs = detections()
    shapes = [
        (name, (tuple(tensor.shape), str(tensor.numpy().dtype)))
        for name, tensor in zip(("boxes", "scores", "ids"), inputs)
    ]
    return relay.frontend.from_pytorch(torch.jit.trace(model, inputs), shapes)[0]


def nms_calls(mod):
    return [node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms"]


def class_ids_of(call):
    return ops(module(*relay.analysis.free_vars(call.args[2]), call.args[2]))


@pytest.mark.parametrize(
    "model", [Batched(), Batched(10), Filtered(), FixedOffset(7680), CallsScript(), OneClass()]
)
@pytest.mark.parametrize("classes", [1, 4])
def test_of_pytorch(model, classes):
    mod = imported(model)
    after, report = apply(detection_pipeline(), mod)
    assert "vision.non_max_suppression" not in ops(after)
    assert not any(part.refusals for part in report.passes if part.name != "Canonicalize")
    for seed in range(3):
        inputs = detections(seed, classes=classes)
        expected = model(*inputs)
        found = run(after, *(tensor.numpy() for tensor in inputs))
        for tensor, array in zip(expected if isinstance(expected, tuple) else [expected], found):
            np.testing.assert_array_equal(array, tensor.numpy())
    assert_no_second_change(detection_pipeline(), after)


@pytest.mark.parametrize("model", [Batched(), Batched(10), FixedOffset(7680), OneClass()])
def test_of_tvms_own_importer(model):
    stock = imported_by_tvm(model)
    assert "vision.non_max_suppression" in ops(stock)
    after, _ = apply(detection_pipeline(), stock)
    expected, _ = apply(detection_pipeline(), imported(model))
    assert tvm.ir.structural_equal(after["main"].body, expected["main"].body, map_free_vars=True)


@pytest.mark.parametrize("model", [Batched(), Filtered(), FixedOffset(7680)])
def test_classes_are_compared_and_nothing_of_the_trick_stays(model):
    after, _ = apply(detection_pipeline(), imported(model))
    (call,) = nms_calls(after)
    assert "zeros_like" not in class_ids_of(call)
    assert not {"max", "min", "multiply", "concatenate"} & set(ops(after))
    assert not any(isinstance(node, relay.If) for node in Graph(after["main"]).nodes)


def test_coordinates_that_are_shifted_by_different_numbers_stay():
    after, _ = apply(
        detection_pipeline(), imported(Joined(lambda boxes, shift: as_columns(boxes, boxes[:, 0])))
    )
    assert "zeros_like" in class_ids_of(nms_calls(after)[0])

    def unlike(boxes, shift):
        return torch.cat((boxes[:, :2] + shift[:, None], boxes[:, 2:] + shift.flip(0)[:, None]), 1)

    after, _ = apply(detection_pipeline(), imported(Joined(unlike)))
    assert "concatenate" in ops(after) and "zeros_like" in class_ids_of(nms_calls(after)[0])
    by_a_coordinate = Joined(lambda boxes, _: as_columns(boxes, boxes[:, 0]))
    after, _ = apply(detection_pipeline(), imported(by_a_coordinate))
    assert "zeros_like" in class_ids_of(nms_calls(after)[0])


@pytest.mark.parametrize("model, most", [(Batched(), -1), (Batched(10), 10), (Filtered(), 7)])
def test_the_first_k_are_asked_of_the_nms(model, most):
    after, _ = apply(detection_pipeline(), imported(model))
    (call,) = nms_calls(after)
    assert int(call.attrs["max_output_size"]) == most


def test_negative_coordinates_are_right_where_the_trick_is_not():
    boxes = torch.tensor([[0.0, 0, 10, 10], [-11, -11, -1, -1]])
    inputs = boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 1])
    mod = imported(Batched(), inputs)
    (by_trick,), (by_class,) = (
        run(each, *(tensor.numpy() for tensor in inputs))
        for each in (mod, apply(detection_pipeline(), mod)[0])
    )
    assert by_trick.tolist() == [0] and by_class.tolist() == [0, 1]


def test_no_box_at_all():
    after, _ = apply(detection_pipeline(), imported(Filtered()))
    boxes, scores, ids = (tensor.numpy() for tensor in detections())
    found = run(after, boxes, np.zeros_like(scores), ids)
    assert [array.shape for array in found] == [(0, 4), (0,), (0,)]


class Moved(torch.nn.Module):
    """Looks like the trick: `offset` says what is multiplied with the classes."""

    def __init__(self, offset, ids=lambda ids: ids, iou_threshold=0.5):
        super().__init__()
        self.offset, self.ids, self.iou_threshold = offset, ids, iou_threshold

    def forward(self, boxes, scores, ids):
        moved = boxes + (self.ids(ids).to(boxes) * self.offset(boxes, scores))[:, None]
        return torchvision.ops.nms(moved, scores, self.iou_threshold)


class Repeated(torch.nn.Module):
    def forward(self, boxes, scores, ids):
        return torchvision.ops.nms(boxes + (ids.float() * 4096)[:, None].repeat(1, 4), scores, 0.5)


class Joined(torch.nn.Module):
    """Shifts parts of the coordinates, and joins them."""

    def __init__(self, join):
        super().__init__()
        self.join = join

    def forward(self, boxes, scores, ids):
        moved = self.join(boxes, ids.float() * (boxes.max() + 1))
        return torchvision.ops.nms(moved, scores, 0.5)


def as_halves(boxes, shift):
    return torch.cat((boxes[:, :2] + shift[:, None], boxes[:, 2:] + shift[:, None]), 1)


def as_columns(boxes, shift):
    left, top, right, bottom = boxes.unbind(1)
    return torch.stack((left + shift, shift + top, right + shift, bottom + shift), -1)


def split_by_coordinate(boxes, shift):
    return torch.cat([each + shift[:, None] for each in boxes.split(1, 1)], -1)


@pytest.mark.parametrize(
    "model",
    [
        Joined(as_halves),
        Joined(as_columns),
        Joined(split_by_coordinate),
        Moved(lambda boxes, _: boxes.max() - boxes.min() + 1),
        Moved(lambda boxes, _: boxes.max(1)[0].max() + 1),
        Moved(lambda boxes, _: boxes.flatten().max(0)[0] + 1),
        Repeated(),
    ],
    ids=["halves", "columns", "split", "the extent", "along one axis at a time", "flat", "repeated"],
)
def test_other_spellings_of_the_trick(model):
    after, _ = apply(detection_pipeline(), imported(model))
    (call,) = nms_calls(after)
    assert "zeros_like" not in class_ids_of(call)
    boxes, scores, ids = detections()
    compute = runner(after)
    for moved in (boxes, boxes - 1000, boxes * 0):
        expected = model(moved, scores, ids)
        np.testing.assert_array_equal(compute(moved.numpy(), scores.numpy(), ids.numpy())[0], expected)


@pytest.mark.parametrize(
    "model, reason",
    [
        (Moved(lambda boxes, _: boxes.max() + 0.5), "the largest coordinate plus 0.5, which is less than 1"),
        (Moved(lambda boxes, _: boxes[:, 2:].max() + 1), "the largest coordinate of other boxes"),
        (Moved(lambda _, scores: scores.max() + 1), "the largest coordinate of other boxes"),
        (Moved(lambda boxes, _: boxes.min() + 1), "is not computed from the largest coordinate"),
        (Moved(lambda boxes, _: boxes.max() - boxes[:, 2:].min() + 1), "is not computed from the largest"),
        (Moved(lambda boxes, _: boxes.max() - boxes.max() + 1), "is not computed from the largest"),
        (
            Joined(lambda boxes, shift: torch.stack([boxes[:, at] + shift for at in (2, 3, 0, 1)], 1)),
            "the largest coordinate of other boxes",
        ),
        (Moved(lambda boxes, _: boxes.max()), "nor the largest coordinate plus one"),
        (FixedOffset(100.0), "an offset of 100.0 may let boxes of different classes overlap"),
        (
            Moved(lambda boxes, _: boxes.max() + 1, lambda ids: ids * 0.5),
            "the class ids are not whole",
        ),
        (
            Moved(lambda boxes, _: boxes.max() + 1, iou_threshold=-0.5),
            "at an IoU threshold of -0.5, disjoint boxes suppress each other too",
        ),
    ],
)
def test_what_only_looks_like_the_trick_is_refused(model, reason):
    mod = imported(model)
    after, report = apply(detection_pipeline(), mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)
    (call,) = nms_calls(after)
    assert "zeros_like" in class_ids_of(call)
    inputs = detections()
    np.testing.assert_array_equal(run(after, *(t.numpy() for t in inputs))[0], model(*inputs).numpy())


class Sliced(torch.nn.Module):
    def __init__(self, take):
        super().__init__()
        self.take = take

    def forward(self, boxes, scores, ids):
        return self.take(torchvision.ops.batched_nms(boxes, scores, ids, 0.5))


@pytest.mark.parametrize(
    "take, reason",
    [
        (lambda kept: kept[1:9], "does not begin at the first box"),
        (lambda kept: kept[:9:2], "has a stride other than 1"),
        (lambda kept: kept[:-2], "known only at run time"),
        (lambda kept: (kept[:5], kept + 1), "have users besides the slice"),
    ],
)
def test_other_slices_of_the_kept_boxes_stay(take, reason):
    model = Sliced(take)
    after, report = apply(detection_pipeline(), imported(model))
    (call,) = nms_calls(after)
    assert int(call.attrs["max_output_size"]) == -1
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)
    inputs = detections()
    expected = model(*inputs)
    found = run(after, *(tensor.numpy() for tensor in inputs))
    for tensor, array in zip(expected if isinstance(expected, tuple) else [expected], found):
        np.testing.assert_array_equal(array, tensor.numpy())
