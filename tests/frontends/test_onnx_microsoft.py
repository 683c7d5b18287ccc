"""Operators of the domain com.microsoft, which are ONNX Runtime's own, versus ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import model_of, run, tensor_input
from tests.helpers import numbers

DOMAIN = "com.microsoft"
BATCH, LENGTH, WIDTH, HEADS, PAST = 2, 4, 8, 2, 3
ONES, MASK = np.ones((BATCH, PAST + LENGTH), "int32"), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], "int32")
X, W, B = numbers(BATCH, LENGTH, WIDTH), numbers(WIDTH, 3 * WIDTH, seed=1), numbers(3 * WIDTH, seed=2)
BEFORE = numbers(2, BATCH, HEADS, PAST, WIDTH // HEADS, seed=3)
SCALE, ZERO = np.float32(0.1), np.uint8(128)
QUANTISED_X = np.clip(np.round(X / SCALE) + ZERO, 0, 255).astype("uint8")
QUANTISED_W = np.clip(np.round(W / SCALE), -128, 127).astype("int8")
GAMMA, BETA = numbers(WIDTH, seed=4), numbers(WIDTH, seed=5)
IDS = np.array([[1, 0, 2, 3], [3, 2, 2, 1]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1], [1, 0, 0, 1]], "int32")
ROWS = numbers(4, WIDTH, seed=6)


def model_with(operator, arrays, outputs=1, **attributes):
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    given = {name: array for name, array in zip(names, arrays) if name}
    inputs = [tensor_input(name, array.shape, array.dtype) for name, array in given.items()]
    results = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(operator, names, results, "it", domain=DOMAIN, **attributes)
    return model_of([node], inputs, results, domains=[DOMAIN]), given


@pytest.mark.parametrize(
    ("operator", "arrays", "outputs", "attributes"),
    [
        ("Attention", [X, W], 1, {}),
        ("Attention", [X, W, B], 1, {"unidirectional": 1}),
        ("Attention", [X, W, B, MASK], 1, {}),
        ("Attention", [X, W, B, MASK], 1, {"unidirectional": 1}),
        ("Attention", [X, W, None, None, BEFORE], 2, {}),
        ("Attention", [X, W, B, ONES, BEFORE], 2, {"unidirectional": 1}),
        ("BiasGelu", [X, GAMMA], 1, None),
        ("EmbedLayerNormalization", [IDS, SEGMENTS, ROWS, ROWS, ROWS, GAMMA, BETA, MASK], 2, None),
        ("FastGelu", [X, GAMMA], 1, None),
        ("Gelu", [X], 1, None),
        ("SkipLayerNormalization", [X, X[::-1], GAMMA, BETA, GAMMA], 1, None),
    ],
)
def test_an_operator_as_in_onnx_runtime(operator, arrays, outputs, attributes):
    heads = {} if attributes is None else {"num_heads": HEADS, **attributes}
    model, given = model_with(operator, arrays, outputs, **heads)
    found = run(from_onnx(model)[0], *given.values())
    for one, expected in zip(found, by_onnx_runtime(model, given, found)):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK])
def test_quantised_attention(mask):
    arrays = {"x": QUANTISED_X, "w": QUANTISED_W, "b": B, "s": SCALE, "t": SCALE, "m": mask, "z": ZERO}
    names = ["" if array is None else name for name, array in arrays.items()]
    node = helper.make_node("QAttention", names, ["y"], "it", domain=DOMAIN, num_heads=HEADS)
    constants = [
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in arrays.items()
        if name != "x" and array is not None
    ]
    model = model_of([node], [tensor_input("x", X.shape, "uint8")], ["y"], constants, domains=[DOMAIN])
    found = run(from_onnx(model)[0], QUANTISED_X)
    (expected,) = by_onnx_runtime(model, {"x": QUANTISED_X}, found)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def by_onnx_runtime(model, given, found):
    for value, array in zip(model.graph.output, found):
        value.CopyFrom(tensor_input(value.name, None, array.dtype))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, given)


@pytest.mark.parametrize(
    ("arrays", "attributes", "reason"),
    [
        ([X, W, B, np.full(BATCH, LENGTH, "int32")], {}, "its mask must be a matrix"),
        ([X, W, B, MASK], {"scale": 0.5}, "its attribute scale=0.5 is not supported"),
        ([X, W, B, MASK], {"qkv_hidden_sizes": [8, 8, 8]}, "different hidden sizes"),
    ],
)
def test_attention_that_is_refused(arrays, attributes, reason):
    model, _ = model_with("Attention", arrays, num_heads=HEADS, **attributes)
    with pytest.raises(ImportFailure, match=rf"the node 'it' \(com\.microsoft\.Attention\) .*{reason}"):
        from_onnx(model)


def test_all_operators_without_a_converter_are_named():
    """Also those that are named as one of ONNX: Unique of ONNX Runtime keeps the order."""
    nodes = [
        helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["a"], "1", domain=DOMAIN, num_heads=HEADS),
        helper.make_node("Unique", ["a"], ["b", "places", "counts"], "2", domain=DOMAIN),
        helper.make_node("Relu", ["b"], ["c"], "3", domain="my.own"),
        helper.make_node("Relu", ["c"], ["y"], "4"),
    ]
    model = model_of(nodes, [tensor_input("x", X.shape)], ["y"], domains=[DOMAIN, "my.own"])
    with pytest.raises(ImportFailure, match="no converter") as raised:
        from_onnx(model)
    named = "the node '1' (com.microsoft.MultiHeadAttention); the node '2' (com.microsoft.Unique); "
    assert f"for the operator of {named}the node '3' (my.own.Relu): " in str(raised.value)
