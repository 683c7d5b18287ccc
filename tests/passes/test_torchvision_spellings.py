"""RestoreBatchedNMS on every spelling of torchvision's `batched_nms`, traced and scripted."""

import numpy as np
import pytest
import torch
import torchvision

import frontends
from tests.helpers import apply, assert_no_second_change, ops, refusals, runner
from tests.ops.class_by_class import batched_nms as class_by_class
from tests.passes.torchvision_spellings import SPELLINGS, loop, of_0_26
from tvm_passes import detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

FEW, MANY = 40, 1200  # on either side of 4,000 numbers
BEST = 9


def detections(count, seed=0, ids="int64", boxes="float32"):
    """Coordinates are whole numbers, so that the trick is exact; scores differ."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.randint(200, (count, 2), generator=generator)
    size = torch.randint(5, 60, (count, 2), generator=generator)
    scores = (torch.randperm(count, generator=generator) + 1) / (count + 1)
    classes = torch.randint(4, (count,), generator=generator)
    dtype = getattr(torch, boxes)
    return torch.cat([corner, corner + size], 1).to(dtype), scores.to(dtype), classes.to(getattr(torch, ids))


class All(torch.nn.Module):
    def __init__(self, batched_nms=torchvision.ops.batched_nms):
        super().__init__()
        self.batched_nms = batched_nms

    def forward(self, boxes, scores, ids):
        return self.batched_nms(boxes, scores, ids, 0.5)


class Head(torch.nn.Module):
    """As detection heads do it: a filter, which leaves an unknown number of boxes, NMS, the best few."""

    def __init__(self, batched_nms=torchvision.ops.batched_nms):
        super().__init__()
        self.batched_nms = batched_nms

    def forward(self, boxes, scores, ids):
        seen = torch.where(scores > 0.1)[0]
        boxes, scores, ids = boxes[seen], scores[seen], ids[seen]
        kept = self.batched_nms(boxes, scores, ids, 0.5)[:9]
        return boxes[kept], scores[kept], ids[kept]


def traced(model, inputs):
    return torch.jit.trace(model, inputs, check_trace=False)


def scripted(model, _inputs):
    return torch.jit.script(model)


def imported(model, inputs):
    return frontends.from_pytorch(model, inputs)[0]


def nms_calls(mod):
    return [node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms"]


def assert_nothing_else_is_left(mod):
    (call,) = nms_calls(mod)
    assert not {"zeros_like", "max", "min", "multiply", "concatenate", "greater_equal"} & set(ops(mod))
    assert not any(isinstance(node, relay.If) for node in Graph(mod["main"]).nodes)
    return call


def outputs(model, inputs):
    found = model(*inputs)
    return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found,))]


def assert_gives_what(model, mod, *examples):
    """Assert that a module gives exactly what a model does on each tuple of inputs."""
    run = runner(mod)
    for inputs in examples:
        expected, found = outputs(model, inputs), run(*(tensor.numpy() for tensor in inputs))
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def by_class(boxes, scores, ids):
    indices, count = class_by_class(boxes.numpy(), scores.numpy(), ids.numpy(), 0.5)
    return indices[:count]


@pytest.mark.parametrize("spelling", [torchvision.ops.batched_nms, *SPELLINGS])
@pytest.mark.parametrize("compiled", [traced, scripted])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_of_known_number(spelling, compiled, count):
    inputs = detections(count)
    model = compiled(All(spelling), inputs)
    after, _ = apply(detection_pipeline(), imported(model, inputs))
    assert_nothing_else_is_left(after)
    np.testing.assert_array_equal(outputs(model, inputs)[0], by_class(*inputs))
    assert_gives_what(model, after, inputs)
    assert_no_second_change(detection_pipeline(), after)


@pytest.mark.parametrize("spelling", [torchvision.ops.batched_nms, *SPELLINGS])
@pytest.mark.parametrize("compiled", [traced, scripted])
def test_of_unknown_number(spelling, compiled):
    inputs = detections(MANY)
    model = compiled(Head(spelling), inputs)
    mod = imported(model, inputs)
    after, _ = apply(detection_pipeline(), mod)
    call = assert_nothing_else_is_left(after)
    assert int(call.attrs["max_output_size"]) == BEST
    boxes, scores, ids = inputs
    few = boxes, torch.where(torch.arange(MANY) < FEW, scores, 0), ids
    none = boxes, 0 * scores, ids
    assert_gives_what(model, after, inputs, few, none)
    assert_no_second_change(detection_pipeline(), after)


@pytest.mark.parametrize("count", [0, 1, 1000, 1001])
def test_scripted_at_the_edges(count):
    inputs = detections(count)
    model = torch.jit.script(All())
    after, _ = apply(detection_pipeline(), imported(model, inputs))
    assert_gives_what(model, after, inputs)


@pytest.mark.parametrize("ids", ["int64", "int32", "int16", "uint8"])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_class_ids_of_other_types(ids, count):
    inputs = detections(count, ids=ids)
    for compiled in (traced, scripted):
        model = compiled(All(), inputs)
        after, _ = apply(detection_pipeline(), imported(model, inputs))
        assert_nothing_else_is_left(after)
        assert_gives_what(model, after, inputs)


def test_as_imported_the_numbers_are_those_of_torch_too():
    inputs = detections(MANY)
    model = torch.jit.script(Head())
    mod = imported(model, inputs)
    assert any(isinstance(node, relay.If) for node in Graph(mod["main"]).nodes)
    assert_gives_what(model, mod, inputs)


def test_twice_in_one_model():
    class Twice(torch.nn.Module):
        def forward(self, boxes, scores, ids):
            first = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)
            return first, torchvision.ops.batched_nms(boxes[first], scores[first], ids[first], 0.25)

    inputs = detections(MANY)
    model = torch.jit.script(Twice())
    after, _ = apply(detection_pipeline(), imported(model, inputs))
    assert len(nms_calls(after)) == 2
    assert_gives_what(model, after, inputs)


def test_a_scripted_part_of_a_model():
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.jit.script(Head())

        def forward(self, boxes, scores, ids):
            boxes, scores, _ = self.head(boxes + 1, scores, ids)
            return boxes + 1, scores

    inputs = detections(MANY)
    after, _ = apply(detection_pipeline(), imported(Whole(), inputs))
    assert_nothing_else_is_left(after)
    assert_gives_what(Whole(), after, inputs)


def test_the_scripted_model_stays_as_it_was():
    model, inputs = torch.jit.script(Head()), detections(MANY)
    before = str(model.inlined_graph)
    tvm.ir.assert_structural_equal(imported(model, inputs), imported(model, inputs))
    assert str(model.inlined_graph) == before


# Loops that differ in one thing from the one that is known


def every_box(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids >= class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = True
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def ascending(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = True
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=False)[1]]


def mask_is_used(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = True
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]], mask


def other_scores(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], boxes[members, 0], 0.5)]] = True
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def all_at_first(boxes, scores, ids):
    mask = torch.ones_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = False
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def more_in_the_loop(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = True
        mask[0] = False
    indices = torch.where(mask)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def of_indices(boxes, scores, ids):
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for class_id in torch.unique(ids):
        members = torch.where(ids == class_id)[0]
        mask[members[torchvision.ops.nms(boxes[members], scores[members], 0.5)]] = True
    indices = torch.where(mask)[0]
    return indices[indices[indices].sort(descending=True)[1]]


class Loop(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, boxes, scores, ids):
        return self.function(boxes, scores, ids)


@pytest.mark.parametrize(
    "function",
    [every_box, ascending, mask_is_used, other_scores, all_at_first, more_in_the_loop, of_indices],
)
def test_another_loop_is_refused(function):
    with pytest.raises(frontends.ImportFailure, match="changes a tensor from outside the branch or loop"):
        imported(torch.jit.script(Loop(function)), detections(FEW))


@pytest.mark.parametrize(
    "types, reason",
    [
        ({"ids": "float32"}, "class ids for NMS must be integers, not float32"),
        ({"boxes": "float64"}, "boxes for NMS must be of float32 or float16 or bfloat16, not float64"),
    ],
)
def test_types_that_the_operator_does_not_take_are_refused(types, reason):
    with pytest.raises(frontends.ImportFailure, match=reason):
        imported(torch.jit.script(All(loop)), detections(FEW, **types))


def test_branches_that_suppress_in_different_ways_stay():
    class Either(torch.nn.Module):
        def forward(self, boxes, scores, ids):
            seen = torch.where(scores > 0.1)[0]
            boxes, scores, ids = boxes[seen], scores[seen], ids[seen]
            if boxes.numel() > 200:
                return torchvision.ops.nms(boxes, scores, 0.5)
            else:
                return torchvision.ops.nms(boxes, scores, 0.3)

    boxes, scores, ids = detections(FEW + 30)
    model = torch.jit.script(Either())
    after, report = apply(detection_pipeline(), imported(model, (boxes, scores, ids)))
    assert "the branches compute different NMS" in refusals(report)
    few = boxes, torch.where(torch.arange(FEW + 30) < FEW, scores, 0), ids
    assert any(isinstance(node, relay.If) for node in Graph(after["main"]).nodes)
    assert_gives_what(model, after, (boxes, scores, ids), few)


def test_a_branch_by_the_kind_of_device():
    inputs = detections(MANY)
    mod = imported(torch.jit.script(All(of_0_26)), inputs)
    assert ops(mod) == ["topi_ext.batched_nms", "expand_dims", "dyn.strided_slice"]
