"""Boxes that are shifted apart by class, in networks of one's own: the classes are compared instead."""

import numpy as np
import pytest
import torch

import frontends.relax
import tvm_passes
from frontends.relax import nms
from tests.relax.modules import QUICK, Of, compiled, run
from tests.relax.test_passes import operators
from tvm_passes.relax import RestoreBatchedNMS
from tvm_passes.relax.graph import Graph, op_name

COUNT, CLASSES = 24, 3
RANDOM = torch.Generator().manual_seed(5)
CORNERS = torch.randint(0, 40, (COUNT, 2), generator=RANDOM).float()
BOXES = torch.cat([CORNERS, CORNERS + 20], 1)
SCORES = torch.randperm(COUNT, generator=RANDOM).float() / COUNT
IDS = torch.arange(COUNT) % CLASSES
INPUTS = BOXES, SCORES, IDS


def as_torchvision(boxes, scores, ids):
    offsets = ids.to(boxes) * (boxes.max() + torch.tensor(1).to(boxes))
    return nms(boxes + offsets[:, None], scores, 0.3)


def as_yolo(boxes, scores, ids):
    column = ids[:, None].float() * 7680
    return nms(column + boxes, scores, 0.3, score_threshold=0.1, max_output_size=9)


def by_extent(boxes, scores, ids):
    offsets = ids.to(boxes) * (boxes.max() - boxes.min() + 1)
    return nms(boxes + offsets[:, None], scores, 0.3)


def restored(function, inputs=INPUTS):
    module = frontends.relax.from_pytorch(Of(function), inputs)
    with tvm_passes.recording() as report:
        result = RestoreBatchedNMS()(module)
    return module, result, {outcome.reason for outcome in report.passes[0].refusals}


@pytest.mark.parametrize("function", [as_torchvision, as_yolo, by_extent])
def test_classes_are_compared(function):
    _, result, refused = restored(function)
    assert not refused and not {"relax.add", "relax.multiply"} & set(operators(result))
    (call,) = (v for _, v in Graph(result["main"]).bindings if op_name(v) == "topi_ext.batched_nms")
    parameters = result["main"].params
    assert call.args[0].same_as(parameters[0])
    found = run(compiled(result, QUICK), [each.numpy() for each in INPUTS])
    for mine, theirs in zip(found, function(*INPUTS), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    of_one_class = nms(BOXES, SCORES, 0.3, max_output_size=len(found[0]))[1]
    assert 0 < int(of_one_class) < int(found[1])


def moved(offset, ids=lambda ids: ids.float(), threshold=0.3):
    """Boxes that are shifted in some other way."""
    return lambda boxes, scores, given: nms(boxes + (ids(given) * offset(boxes))[:, None], scores, threshold)


REFUSED = {
    "an offset of 100.0 may let boxes": moved(lambda _: 100),
    "the largest coordinate plus 0.5, which is less than 1": moved(lambda boxes: boxes.max() + 0.5),
    "not computed from the largest coordinate of the boxes": moved(lambda boxes: (boxes * 0.5).max() + 1),
    "offset is not computed from the largest": moved(lambda boxes: boxes.max() - (boxes + 1).min() + 1),
    "neither a constant nor the largest coordinate plus one": moved(lambda boxes: boxes.max() * 2),
    "the class ids are not whole numbers": moved(lambda _: 7680, lambda ids: ids.float() * 0.5),
    "at an IoU threshold of -0.5, disjoint boxes": moved(lambda _: 7680, threshold=-0.5),
    "is not a product of class ids": moved(lambda _: 7680, lambda ids: ids.to(torch.int16)),  # it overflows
    "not a product of class ids and a scalar": lambda boxes, scores, ids: nms(boxes + boxes, scores, 0.3),
    "the NMS has class ids already": lambda boxes, scores, ids: frontends.relax.batched_nms(
        boxes + ids.float()[:, None] * 7680, scores, ids, 0.3
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_may_not_keep_classes_apart_stays(reason):
    module, result, refused = restored(REFUSED[reason])
    assert any(reason in each for each in refused), refused
    assert operators(result).count("relax.add") == operators(module).count("relax.add")


def test_boxes_divided_by_the_size_of_the_image():
    """An offset of 1 is then the whole image, of which the network takes one."""

    def build(boxes, scores, ids, image):
        boxes = boxes / 64 + image.mean() * 0
        return nms(boxes + ids.float()[:, None], scores, 0.3)

    def of_the_same_scale(boxes, scores, ids, image):
        return (*nms(boxes / 64 + (ids.float() * (4096 / 64))[:, None], scores, 0.3), image)

    image = torch.zeros(1, 3, 64, 64)
    _, _, refused = restored(build, (*INPUTS, image))
    assert refused == {"what is added to the boxes is not a product of class ids and a scalar"}
    _, result, refused = restored(of_the_same_scale, (*INPUTS, image))
    assert not refused and "relax.multiply" not in operators(result)


def test_nothing_is_found_where_nothing_is_shifted():
    _, _, refused = restored(lambda boxes, scores, ids: (*nms(boxes, scores, 0.3), ids))
    assert not refused
    _, _, refused = restored(lambda boxes, scores, ids: (*nms(boxes + 1, scores, 0.3), ids))
    assert not refused
