"""FillImagesEarly: structure, numbers, memory, and refusals."""

import json

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, module, ops, refusals, run
from tests.ops.objects import objects
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tests.runtime.test_aliases import in_place
from tvm_passes import FillImagesEarly, runtime
from tvm_passes.engine.graph import calls_of

from tvm import relay

TARGET = "cuda -arch=sm_80"
COUNT, SIZE = 9, (40, 60)


def network(threshold=None, images=1, nms=True, count=COUNT):
    """Boxes, their scores and masks, of which an NMS keeps some, and each image gets their pasted masks."""
    boxes = relay.var("boxes", shape=(count, 4))
    scores = relay.var("scores", shape=(count,))
    masks = relay.var("masks", shape=(count, 1, 7, 7))
    kept = relay.const(np.arange(4))
    if nms:
        kept = relay.TupleGetItem(topi_ext.nms(boxes, scores, 0.99, max_output_size=4), 0)
    of_kept = [relay.take(each, kept, axis=0) for each in (masks, boxes)]
    pasted = [topi_ext.paste_masks(*of_kept, SIZE, threshold=threshold) for _ in range(images)]
    shifted = [relay.add(each, relay.const(1, "float32")) for each in pasted[1:]] if not threshold else []
    return module(boxes, scores, masks, relay.Tuple([*pasted[:1], *shifted]))


def arrays():
    masks, boxes = objects(COUNT, SIZE, 7)
    return boxes, np.linspace(1, 0, COUNT, dtype="float32"), masks


@pytest.mark.parametrize("threshold", [None, 0.5, 0])
def test_images_are_filled_beside_the_nms(emulated_cuda, fake_cuda, threshold):  # noqa: F811
    before = network(threshold)
    after, report = apply(FillImagesEarly(TARGET), before)
    assert not refusals(report)
    assert [name for name in ops(after) if name.startswith("topi_ext.")] == [
        "topi_ext.batched_nms",
        "topi_ext.full_after",
        "topi_ext.paste_masks_over",
    ]
    (nms,), (fill,) = (calls_of(after, f"topi_ext.{name}") for name in ("batched_nms", "full_after"))
    assert fill.args[0].same_as(nms.args[1])
    assert_no_second_change(FillImagesEarly(TARGET), after)
    model = runtime.compile(after, emulated_cuda.target, device=emulated_cuda.device, cuda_graph=False)
    (expected,) = run(before, *arrays())
    for _ in range(2):
        np.testing.assert_allclose(model(*arrays()), expected, rtol=1e-5, atol=2e-6)


def test_the_first_nms_counts():
    x, scores = relay.var("x", shape=(COUNT, 4)), [relay.var(f"s{at}", shape=(COUNT,)) for at in range(2)]
    boxes = x
    for each in scores:
        kept = relay.TupleGetItem(topi_ext.nms(boxes, each, 0.9, max_output_size=COUNT), 0)
        boxes = relay.take(boxes, kept, axis=0)
    other = topi_ext.nms(x, relay.sigmoid(scores[0]), 0.9, max_output_size=COUNT)
    masks = relay.var("masks", shape=(COUNT, 1, 7, 7))
    result = relay.Tuple([relay.TupleGetItem(other, 0), topi_ext.paste_masks(masks, boxes, SIZE)])
    after, _ = apply(FillImagesEarly(TARGET), module(x, *scores, masks, result))
    (fill,) = calls_of(after, "topi_ext.full_after")
    assert fill.args[0].name_hint == "s0"


def test_images_are_in_the_memory_that_was_filled():
    after, _ = apply(FillImagesEarly(TARGET), network(images=2))
    graph = json.loads(runtime.build_library(after, TARGET).module["get_graph_json"]())
    assert in_place(graph) == 2
    storage, rows = graph["attrs"]["storage_id"][1], graph["node_row_ptr"]
    filled = [rows[at] for at, node in enumerate(graph["nodes"]) if "full_after" in node["name"]]
    assert len({storage[entry] for entry in filled}) == 2


@pytest.mark.parametrize(
    "mod, target, reason",
    [
        (network(nms=False), TARGET, "no NMS is computed before"),
        (network(count=relay.Any()), TARGET, "the network is dynamic"),
        (network(), "llvm", None),
        (network(), None, None),
    ],
)
def test_what_stays(mod, target, reason):
    after, report = apply(FillImagesEarly(target), mod)
    assert "topi_ext.paste_masks" in ops(after)
    found = refusals(report)
    assert reason in str(found) if reason else not found
