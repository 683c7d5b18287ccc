"""MergeClassLoops: loops over classes as one computation, whatever is kept of each class."""

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_onnx, from_pytorch
from tests.helpers import apply, assert_no_second_change, module, ops, refusals, runner
from tests.ops.detections import clustered_detections
from tvm_passes import Canonicalize, MakeDetectionStatic, MergeClassLoops, default_pipeline
from tvm_passes.engine.graph import Graph
from tvm_passes.pipeline import _restore_detection

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

N, CLASSES = 40, 5


def detections(seed=0, scale=1.0):
    """Boxes, and a score for each box and class; no two are equal."""
    boxes, _, _ = clustered_detections(N, 3, seed)
    scores = np.random.default_rng(seed).permutation(N * CLASSES).reshape(N, CLASSES) / (N * CLASSES)
    return boxes, (scores * scale).astype("float32")


def places(mask):
    return torch.where(mask)[0]


class Loop(torch.nn.Module):
    """Concatenates what `of_class` finds for each class."""

    def forward(self, boxes, scores):
        found = [self.of_class(boxes, scores, one) for one in range(1, CLASSES)]
        return self.finish(*(torch.cat(part) for part in zip(*found)))

    def finish(self, *found):
        return found


class Filtered(Loop):
    def of_class(self, boxes, scores, one):
        rows = places(scores[:, one] > 0.6)
        found = scores[rows, one]
        return boxes[rows], found, torch.full_like(found, one, dtype=torch.int64)


class BestOfEach(Loop):
    """As SSD does."""

    def of_class(self, boxes, scores, one):
        of_class = scores[:, one]
        rows = places(of_class > 0.6)
        best, order = torch.topk(of_class[rows], _at_most(rows, 6))
        rows = rows[order]
        return boxes[rows], best, torch.full_like(best, one, dtype=torch.int64)

    def finish(self, boxes, scores, ids):
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:9]
        return boxes[kept], scores[kept], ids[kept]


def _at_most(rows, most):
    sizes = torch.cat((torch.tensor([most]), torch._shape_as_tensor(rows)[0].unsqueeze(0)))
    return torch.min(sizes).to(torch.int64) if torch.jit.is_tracing() else int(torch.min(sizes))


class BestOfAll(Loop):
    """Without a filter, all lengths are known."""

    def of_class(self, boxes, scores, one):
        best, rows = torch.topk(scores[:, one], 3)
        return boxes[rows], best, torch.full_like(rows, one)


class Suppressed(Loop):
    """As it is written by hand, with an NMS for each class."""

    def of_class(self, boxes, scores, one):
        of_class = scores[:, one : one + 1].squeeze(1)
        mask = of_class > 0.6
        boxes, of_class = boxes[mask], of_class[mask]
        kept = torchvision.ops.nms(boxes, of_class, 0.5)[:4]
        rows = torch.cat([boxes[kept], of_class[kept, None]], 1)
        return rows, torch.full((rows.shape[0],), one)


class SuppressedOnly(Loop):
    def of_class(self, boxes, scores, one):
        kept = torchvision.ops.nms(boxes, scores[:, one], 0.5)
        return boxes[kept], scores[kept, one]


class OwnBoxes(Loop):
    """Each class has boxes and a threshold of its own."""

    def of_class(self, boxes, scores, one):
        moved = torch.stack([boxes + 3 * number for number in range(CLASSES)], 1)
        of_class = scores.unbind(1)[one]
        rows = places(of_class >= 0.5 + one / 20)
        return moved[:, one][rows] / 2, torch.sqrt(of_class[rows])


class Appended(Loop):
    """The same, appended to what there is already."""

    def forward(self, boxes, scores):
        found = boxes[:0]
        for one in range(CLASSES):
            rows = places(scores[:, one] > 0.6)
            found = torch.cat([found, boxes[rows]])
        return (found,)


MODELS = {
    each.__name__: each()
    for each in (
        *(Filtered, BestOfEach, BestOfAll, Suppressed, SuppressedOnly),
        *(OwnBoxes, Appended),
    )
}
SEARCHES = ("argwhere", "topk", "dyn.topk", "topi_ext.batched_nms")
INPUTS = [detections(seed) for seed in range(3)] + [detections(3, 0.63), detections(4, 0.3)]


def imported(model):
    mod, params = from_pytorch(model, tuple(map(torch.from_numpy, detections())))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


@pytest.fixture(scope="module", params=list(MODELS))
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def merged(model):
    after, report = apply(_restore_detection(), imported(model))
    (outcome,) = (each for each in report.passes if each.name == "MergeClassLoops")
    assert outcome.rewrites and not outcome.refusals
    return after


def test_each_search_is_one(merged):
    found = [name for name in ops(merged) if name in SEARCHES]
    assert len(found) == len(set(found))


def assert_equal(model, compute, cut=lambda outputs: outputs):
    numbers = set()
    for arrays in INPUTS:
        expected = model(*map(torch.from_numpy, arrays))
        found = cut(compute(*arrays))
        numbers.add(len(expected[0]))
        assert len(expected) == len(found)
        for wanted, array in zip(expected, found):
            np.testing.assert_allclose(array, wanted.numpy(), rtol=1e-6)
    return numbers


def test_the_same_numbers(model, merged):
    numbers = assert_equal(model, runner(merged))
    assert isinstance(model, BestOfAll) or len(numbers) > 2


def test_the_merged_loops_become_static(model, merged):
    static = tvm.transform.Sequential([MakeDetectionStatic("padded"), Canonicalize()])
    after = relay.transform.InferType()(apply(static, merged)[0])
    nodes = (node for node in Graph(after["main"]).nodes if not isinstance(node, tvm.ir.Op))
    assert not any(is_dynamic(node.checked_type) for node in nodes)
    if isinstance(model, BestOfAll):
        return

    def cut(outputs):
        *found, number = outputs
        return [array[:number] for array in found]

    assert_equal(model, runner(after), cut)


def test_from_onnx(tmp_path):
    path = tmp_path / "loop.onnx"
    inputs = tuple(map(torch.from_numpy, detections()))
    torch.onnx.export(MODELS["BestOfEach"], inputs, path, input_names=["boxes", "scores"], opset_version=17)
    mod, params = from_onnx(path)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    after, _ = apply(default_pipeline(), mod)
    assert "argwhere" not in ops(after) and ops(after).count("topk") == 1
    assert_equal(MODELS["BestOfEach"], runner(after))


def test_a_second_application_changes_nothing(merged):
    assert_no_second_change(MergeClassLoops(), merged)


# --- what stays


def kept(scores, one, threshold=0.5):
    of_class = relay.take(scores, relay.const(one), axis=1)
    rows = relay.squeeze(relay.argwhere(of_class > relay.const(threshold)), [1])
    return relay.take(of_class, rows, axis=0)


def stays(mod):
    after, report = apply(MergeClassLoops(), mod)
    return after.same_as(mod), refusals(report)


def scores():
    return relay.var("scores", shape=(N, CLASSES))


def test_what_is_used_by_itself_is_no_loop():
    """Those of several images are: they are told apart again behind a head that sees them all."""
    data = scores()
    parts = [kept(data, one) for one in range(3)]
    every = relay.concatenate(parts, axis=0)
    assert stays(module(data, relay.Tuple([every, relay.shape_of(parts[0])]))) == (True, [])


def test_different_parts_stay():
    data = scores()
    parts = [kept(data, 0), relay.exp(kept(data, 1))]
    assert stays(module(data, relay.concatenate(parts, axis=0))) == (True, [])


def test_parts_without_a_search_stay():
    data = scores()
    parts = [relay.take(data, relay.const(one), axis=1) for one in range(3)]
    assert stays(module(data, relay.concatenate(parts, axis=0))) == (True, [])


@pytest.mark.parametrize(
    "of_class, reason",
    [
        (lambda found: relay.cumsum(found, axis=0), "it computes along the rows"),
        (lambda found: relay.argmin(found, axis=0, keepdims=True), "argmin reduces over the rows"),
    ],
)
def test_what_padding_would_change_is_refused(of_class, reason):
    data = scores()
    parts = [of_class(kept(data, one)) for one in range(3)]
    unchanged, reasons = stays(module(data, relay.concatenate(parts, axis=0)))
    assert unchanged and len(reasons) == 1 and reason in reasons[0]


def test_sums_over_the_rows_of_each_class():
    data = scores()
    parts = [relay.sum(kept(data, one), axis=0, keepdims=True) for one in range(3)]
    mod = module(data, relay.concatenate(parts, axis=0))
    after, _ = apply(MergeClassLoops(), mod)
    assert ops(after).count("sum") == 1
    for array in (detections()[1], np.zeros((N, CLASSES), "float32")):  # and nothing is kept
        (found,), (expected,) = runner(after)(array), runner(mod)(array)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_operator_without_a_form_for_all_classes_is_refused():
    data = scores()
    parts = [relay.nn.prelu(relay.expand_dims(kept(data, one), 1), relay.const([0.5])) for one in range(3)]
    unchanged, reasons = stays(module(data, relay.concatenate(parts, axis=0)))
    assert unchanged and reasons == ["nn.prelu has no form for all classes at once"]
