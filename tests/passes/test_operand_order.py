"""Operands of commutative operators in either order: every rule finds as much in the graph turned round."""

from collections import Counter

import numpy as np
import pytest
import torch

import frontends
from tests.helpers import module, numbers, ops, run
from tests.models.super_resolution import channels_of, super_resolution_model
from tests.passes import test_fold_preprocessing as preprocessing
from tests.passes import test_restore_batched_nms as nms
from tests.passes import test_restore_multiscale_roi_align as regions
from tvm_passes import detection_pipeline, subpixel_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph
from tvm_passes.engine.match import COMMUTATIVE

import tvm
from tvm import relay

MIRRORED = {"greater": "less", "greater_equal": "less_equal"}
MIRRORED |= {less: greater for greater, less in MIRRORED.items()}
CUDA = "cuda -arch=sm_90"


def turned_round(mod):
    """The module with the operands of commutative and comparing calls in the other order."""
    graph = Graph(relay.transform.InferType()(mod)["main"])
    replacements = {}
    for node in graph.nodes:
        name = op_name(node)
        if name in COMMUTATIVE or name in MIRRORED:
            left, right = node.args
            replacements[node] = relay.Call(relay.op.get(MIRRORED.get(name, name)), [right, left])
    assert replacements
    return tvm.IRModule.from_expr(graph.rebuilt(replacements))


def traced(model, inputs):
    mod, params = frontends.from_pytorch(model.eval(), inputs)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


def super_resolution(name, **options):
    inputs = torch.rand(1, channels_of(name), 24, 32, generator=torch.Generator().manual_seed(0))
    return traced(super_resolution_model(name, **options), inputs)


def pyramid(frontend, folder):
    return regions.IMPORTS[frontend](regions.Pooled(), regions.inputs_of(), folder)


def normalised_image(_folder):
    x, (factor, offset) = preprocessing.camera(), map(preprocessing.per_channel, ([0.5, 2, 3], [1, 2, 3]))
    normalised = relay.add(relay.multiply(preprocessing.planes(x), factor), offset)
    return module(x, preprocessing.padded(preprocessing.resized(normalised)))


def dense_with_bias(_folder):
    x = relay.var("x", shape=(5, 24))
    dense = relay.nn.dense(x, relay.const(numbers(6, 24, seed=1)))
    return module(x, relay.add(relay.reshape(dense, (5, 6)), relay.const(numbers(1, 6, seed=2))))


MODELS = {
    "batched NMS": (lambda _: nms.imported(nms.Batched()), detection_pipeline()),
    "the best of a batched NMS": (lambda _: nms.imported(nms.Batched(10)), detection_pipeline()),
    "NMS behind a filter": (lambda _: nms.imported(nms.Filtered()), detection_pipeline()),
    "NMS with a fixed offset": (lambda _: nms.imported(nms.FixedOffset(7680)), detection_pipeline()),
    "NMS of one class": (lambda _: nms.imported_by_tvm(nms.OneClass()), detection_pipeline()),
    "regions from PyTorch": (lambda folder: pyramid("PyTorch", folder), detection_pipeline()),
    "regions from ONNX": (lambda folder: pyramid("ONNX", folder), detection_pipeline()),
    "preprocessing": (normalised_image, detection_pipeline()),
    "dense layers": (dense_with_bias, detection_pipeline(CUDA)),
    "biases and residuals": (
        lambda _: super_resolution("edsr_x4", channels=16, blocks=1, prelu=True, clamp=True),
        subpixel_pipeline(CUDA),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_rules_find_as_much_in_either_order(name, tmp_path):
    build, passes = MODELS[name]
    mod = build(tmp_path)
    expected = Counter(_regardless_of_order(passes(mod)))
    assert Counter(_regardless_of_order(passes(turned_round(mod)))) == expected


def _regardless_of_order(mod):
    return [min(name, MIRRORED.get(name, name)) for name in ops(mod)]


def test_of_an_offset_in_the_other_order_the_results_are_the_same():
    model = nms.Batched()
    after = detection_pipeline()(turned_round(nms.imported(model)))
    inputs = nms.detections()
    (found,) = run(after, *(tensor.numpy() for tensor in inputs))
    np.testing.assert_array_equal(found, model(*inputs).numpy())


def test_an_offset_that_is_the_sum_of_two_computed_terms_is_refused():
    offset = lambda boxes, scores: boxes.max() + (scores.max() + 1)  # noqa: E731
    report = nms.apply(detection_pipeline(), nms.imported(nms.Moved(offset)))[1]
    assert any("a sum without a constant term" in reason for reason in nms.refusals(report))
