"""RestoreDeformableAttention: what samples of each level become, and what looks like it."""

import warnings

import numpy as np
import pytest
import torch

import topi_ext
from frontends import from_onnx, from_pytorch
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, ops, refusals, run
from tests.models.attention import DeformableAttention, attention_inputs
from tvm_passes import Canonicalize, InMixedPrecision, RestoreDeformableAttention, detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

PASSES = tvm.transform.Sequential([Canonicalize(), RestoreDeformableAttention()])
NAME = "topi_ext.deformable_attention"
HEADS, WIDTH, QUERIES = 2, 8, 6
SHAPES = (6, 5), (3, 3), (2, 1)


def through_pytorch(model, inputs, folder):
    return from_pytorch(model, tuple(inputs))[0]


def through_onnx(model, inputs, folder):
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, tuple(inputs), str(path), opset_version=16, input_names=["v", "p", "w"])
    return from_onnx(path)[0]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("joined, counts", [("stack", (3, 3, 3)), ("concat", (1, 4, 2))])
@pytest.mark.parametrize("imported", [through_pytorch, through_onnx])
def test_restored(imported, joined, counts, images, tmp_path):
    model = DeformableAttention(SHAPES, counts, joined).eval()
    inputs = attention_inputs(SHAPES, counts, QUERIES, HEADS, WIDTH, images)
    mod = imported(model, inputs, tmp_path)
    after = PASSES(mod)
    assert ops(after).count(NAME) == 1 and "image.grid_sample" not in ops(after)
    (found,) = run(after, *(each.numpy() for each in inputs))
    np.testing.assert_allclose(found, model(*inputs).numpy(), rtol=1e-5, atol=1e-5)
    assert_no_second_change(RestoreDeformableAttention(), after)


# --- by hand


def attention_by_hand(change=()):
    """The module, with some part of it `change`d."""
    maps = [relay.var(f"map{i}", shape=(2, 4, side, side)) for i, side in enumerate((6, 3))]
    parts = {
        "points": ("float32", "float32"),
        "sample": {"layout": "NCHW"},
        "join": lambda samples: relay.concatenate(samples, 3),
        "weights": (2, 1, 5, 6),
        "product": relay.multiply,
        "sum": lambda product: relay.sum(product, axis=3),
        "result": lambda total, product, samples: total,
        **dict(change),
    }
    grids = [
        relay.var(f"grid{i}", shape=(2, 2, 5, 3), dtype=dtype) for i, dtype in enumerate(parts["points"])
    ]
    options = parts["sample"] if isinstance(parts["sample"], list) else [parts["sample"]] * 2
    samples = [relay.image.grid_sample(*each, **how) for *each, how in zip(maps, grids, options)]
    weights = relay.var("weights", shape=parts["weights"])
    product = parts["product"](parts["join"](samples), weights)
    return module(*maps, *grids, weights, parts["result"](parts["sum"](product), product, samples))


def numbers_of(mod, seed=0):
    random = np.random.default_rng(seed)
    shapes = ([int(length) for length in each.type_annotation.shape] for each in mod["main"].params)
    return [random.uniform(-1.2, 1.2, shape).astype("float32") for shape in shapes]


SAME = {
    "as it is": {},
    "the other order": {"product": lambda samples, weights: weights * samples},
    "kept dimension": {"sum": lambda product: relay.sum(product, axis=-1, keepdims=True)},
    "all but the other axes": {"sum": lambda product: relay.sum(product, axis=[0, 1, 2], exclude=True)},
    "centres at the corners": {"sample": {"layout": "NCHW", "align_corners": False}},
    "stacked": {"join": lambda samples: relay.reshape(relay.stack(samples, 3), (2, 4, 5, 6))},
    "stacked, as in ONNX": {
        "join": lambda samples: relay.reshape(
            relay.concatenate([relay.expand_dims(each, 3) for each in samples], 3), (2, 4, 5, 6)
        )
    },
    "reshaped on the way": {
        "join": lambda samples: relay.squeeze(relay.expand_dims(relay.concatenate(samples, -1), 0), [0])
    },
    "a single level": {"join": lambda samples: samples[0], "weights": (2, 1, 5, 3)},
}


@pytest.mark.parametrize("case", SAME)
def test_spellings(case):
    mod = attention_by_hand(SAME[case])
    after = assert_same_numbers(RestoreDeformableAttention(), mod, *numbers_of(mod), rtol=1e-5, atol=1e-5)
    assert ops(after).count(NAME) == 1


REFUSED = {
    "side by side": {
        "join": lambda samples: relay.reshape(relay.concatenate(samples, 3), (2, 4, 6, 5)),
        "weights": (2, 1, 6, 5),
    },
    "not over the points only": {"sum": lambda product: relay.sum(product, axis=[2, 3])},
    "not one for each item, query and point": {"weights": (2, 4, 5, 6)},
    "not bilinear": {"sample": {"layout": "NCHW", "method": "nearest"}},
    "zeros around the map": {"sample": {"layout": "NCHW", "padding_mode": "border"}},
    "all alike": {"sample": [{"align_corners": True}, {"align_corners": False}]},
    "the points are not all of type": {"points": ("float64", "float64")},  # as exported by torch 2.4
    "not all of type float32 or float16": {"points": ("float32", "float16")},
    "used elsewhere": {"result": lambda total, product, samples: relay.Tuple([total, samples[0]])},
    "the samples are used": {"result": lambda total, product, samples: relay.Tuple([total, product])},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    mod = attention_by_hand(REFUSED[reason])
    after, report = apply(RestoreDeformableAttention(), mod)
    assert ops(after) == ops(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_samples_of_volumes_are_refused():
    volume, grid = relay.var("volume", shape=(2, 4, 3, 6, 6)), relay.var("grid", shape=(2, 3, 2, 5, 3))
    samples = relay.image.grid_sample(volume, grid, layout="NCDHW")
    mod = module(volume, grid, relay.sum(samples * relay.const(2.0), axis=3))
    after, report = apply(RestoreDeformableAttention(), mod)
    assert ops(after) == ops(mod) and "not bilinear, in NCHW" in refusals(report)[0]


NOT_MEANT = {
    "along another axis": lambda samples: relay.reshape(relay.concatenate(samples, 2), (2, 4, 5, 6)),
    "points of each level apart": lambda samples: relay.reshape(relay.stack(samples, 4), (2, 4, 5, 6)),
    "reshaped before they are joined": lambda samples: relay.reshape(
        relay.concatenate([relay.reshape(each, (2, 4, 5, 3, 1)) for each in samples], 3), (2, 4, 5, 6)
    ),
    "something else, too": lambda samples: relay.concatenate([samples[0], relay.nn.relu(samples[1])], 3),
}


@pytest.mark.parametrize("case", NOT_MEANT)
def test_what_is_something_else_is_left(case):
    mod = attention_by_hand({"join": NOT_MEANT[case]})
    after, report = apply(RestoreDeformableAttention(), mod)
    assert ops(after) == ops(mod) and not any(each.matches for each in report.passes)


# --- in a pipeline


def test_half_precision_keeps_points_and_weights():
    value = relay.var("value", shape=(1, 16, 6, 6))
    weights = relay.const(np.full((16, 16, 1, 1), 0.1, "float32"))
    maps = relay.nn.conv2d(value, weights)
    pixels = relay.transpose(relay.reshape(maps, (1, 16, 36)), (0, 2, 1))
    points, shares = relay.var("points", shape=(1, 5, 2, 2)), relay.var("shares", shape=(1, 5, 2))
    attention = topi_ext.deformable_attention(pixels, points, shares, levels=[(6, 6, 2)])
    result = relay.nn.dense(relay.reshape(attention, (5, 16)), relay.const(np.full((4, 16), 0.1, "float32")))
    after = InMixedPrecision()(module(value, points, shares, result))
    (call,) = (node for node in Graph(after["main"]).nodes if op_name(node) == NAME)
    assert [arg.checked_type.dtype for arg in call.args] == ["float16", "float32", "float32"]
    assert call.checked_type.dtype == "float16"


def test_in_the_pipeline(tmp_path):
    counts = 3, 3, 3
    model = DeformableAttention(SHAPES, counts).eval()
    mod = through_pytorch(model, attention_inputs(SHAPES, counts, QUERIES, HEADS, WIDTH), tmp_path)
    assert ops(detection_pipeline("cuda -arch=sm_90")(mod)).count(NAME) == 1
