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
MASK_OF_PAIRS = np.tril(np.ones((BATCH, LENGTH, LENGTH), "int32"))
KEYS, VALUES = numbers(BATCH, 5, WIDTH, seed=7), numbers(BATCH, 5, 12, seed=8)
ANGLES = numbers(2, 9, 2, seed=9)
TURNED = {"num_heads": 3, "rotary_embedding_dim": 4, "interleaved": 1}


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
        ("Attention", [X, W, B, MASK_OF_PAIRS], 1, {"scale": 0.3}),
        ("Attention", [X, W, B, np.array([4, 2], "int32")], 1, {}),
        ("Attention", [X, W, B, np.array([4, 3, 1, 0], "int32")], 1, {"mask_filter_value": -2.0}),
        ("Attention", [X, W, B, MASK, None, numbers(1, HEADS, LENGTH, LENGTH)], 1, {}),
        ("Attention", [X, numbers(WIDTH, 28), None], 1, {"qkv_hidden_sizes": [8, 8, 12]}),
        ("MultiHeadAttention", [X, KEYS, VALUES, numbers(28)], 1, {}),
        ("MultiHeadAttention", [X, KEYS, VALUES, None, np.array([5, 2], "int32")], 1, {"scale": 0.7}),
        (
            "MultiHeadAttention",
            [X, *[numbers(BATCH, HEADS, 5, 4)] * 2, None, None, numbers(2, 2, 4, 5)],
            1,
            {},
        ),
        ("MultiHeadAttention", [X, X, X, None, ONES, None, *BEFORE], 3, {"unidirectional": 1}),
        ("RotaryEmbedding", [X, IDS.astype("int64"), *ANGLES], 1, None),
        ("RotaryEmbedding", [numbers(2, 3, 4, 6), np.array([2]), *ANGLES], 1, TURNED),
        ("BiasGelu", [X, GAMMA], 1, None),
        ("EmbedLayerNormalization", [IDS, SEGMENTS, ROWS, ROWS, ROWS, GAMMA, BETA, MASK], 2, None),
        ("FastGelu", [X, GAMMA], 1, None),
        ("Gelu", [X], 1, None),
        ("SkipLayerNormalization", [X, X[::-1], GAMMA, BETA, GAMMA], 4, None),
        ("SkipLayerNormalization", [X, X[0], GAMMA], 4, None),
        ("SkipSimplifiedLayerNormalization", [X, X[::-1], GAMMA, BETA], 4, None),
    ],
)
def test_an_operator_as_in_onnx_runtime(operator, arrays, outputs, attributes):
    is_attention = attributes is not None and "num_heads" not in attributes
    heads = {"num_heads": HEADS, **attributes} if is_attention else attributes or {}
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
    ("operator", "arrays", "attributes", "reason"),
    [
        ("Attention", [X, W, B, MASK[:, None, :, None]], {}, "its mask has 4 axes"),
        (
            "Attention",
            [X, W, B, np.full(3, LENGTH, "int32")],
            {},
            "neither a row nor an end for each sequence",
        ),
        ("Attention", [X, W], {"do_rotary": 1}, "its attribute do_rotary=1 is not supported"),
        ("MultiHeadAttention", [X, X[:, :3], X[:, :3]], {"unidirectional": 1}, "as many keys as queries"),
        ("RotaryEmbedding", [X, IDS, ROWS, ROWS], {"scale": 2.0}, "scale are not supported"),
    ],
)
def test_attention_that_is_refused(operator, arrays, attributes, reason):
    model, _ = model_with(operator, arrays, num_heads=HEADS, **attributes)
    with pytest.raises(ImportFailure, match=rf"the node 'it' \(com\.microsoft\.{operator}\) .*{reason}"):
        from_onnx(model)


def test_all_operators_without_a_converter_are_named():
    """Also those that are named as one of ONNX: Unique of ONNX Runtime keeps the order."""
    nodes = [
        helper.make_node("LongformerAttention", ["x", "x", "x"], ["a"], "1", domain=DOMAIN),
        helper.make_node("Unique", ["a"], ["b", "places", "counts"], "2", domain=DOMAIN),
        helper.make_node("Relu", ["b"], ["c"], "3", domain="my.own"),
        helper.make_node("Relu", ["c"], ["y"], "4"),
    ]
    model = model_of(nodes, [tensor_input("x", X.shape)], ["y"], domains=[DOMAIN, "my.own"])
    with pytest.raises(ImportFailure, match="no converter") as raised:
        from_onnx(model)
    named = "the node '1' (com.microsoft.LongformerAttention); the node '2' (com.microsoft.Unique); "
    assert f"for the operator of {named}the node '3' (my.own.Relu): " in str(raised.value)
