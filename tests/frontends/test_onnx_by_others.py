"""Operators without a converter that ONNX defines by others, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import defs, helper

from frontends import from_onnx
from tests.frontends.onnx_models import compiled, model_of, tensor_input, weights

VALUES = np.random.default_rng(0)


def numbers(*shape):
    return VALUES.normal(size=shape).astype("float32")


THETA, HEADS = numbers(2, 2, 3), [numbers(2, 3, length, 8) for length in (4, 6, 6)]
ANGLES = {"cos": numbers(50, 4), "sin": numbers(50, 4)}
CASES = {  # operator, opset, inputs, constants, attributes
    "AffineGrid": ("AffineGrid", 20, [THETA], {"size": [2, 3, 4, 5]}, {}),
    "AffineGrid to the corners": ("AffineGrid", 20, [THETA], {"size": [2, 3, 4, 5]}, {"align_corners": 1}),
    "AffineGrid of a volume": ("AffineGrid", 20, [numbers(1, 3, 4)], {"size": [1, 2, 3, 4, 5]}, {}),
    "CenterCropPad": ("CenterCropPad", 18, [numbers(2, 5, 7)], {"size": [7, 4]}, {"axes": [1, 2]}),
    "HannWindow": ("HannWindow", 17, [], {"size": 7}, {}),
    "Attention": ("Attention", 23, HEADS, {}, {"scale": 0.2}),
    "Attention of what came before": ("Attention", 23, HEADS, {"mask": numbers(4, 6)}, {"is_causal": 1}),
    "RMSNormalization": ("RMSNormalization", 23, [numbers(2, 5)], {"scale": numbers(5)}, {"epsilon": 1e-3}),
    "RotaryEmbedding": ("RotaryEmbedding", 23, HEADS[:1], {**ANGLES, "at": [[0, 1, 2, 3]] * 2}, {}),
}


def model_with(operator, opset, arrays, constants, attributes, sizes=True):
    """The operator twice, once with twice its input, and the difference of the results."""
    if opset > defs.onnx_opset_version():
        pytest.skip(f"this onnx does not know opset {opset}")
    names = [f"x{place}" for place in range(len(arrays))]
    again = ["twice", *names[1:]][: len(names)]
    nodes = [
        helper.make_node(operator, [*names, *constants], ["first"], "it", **attributes),
        helper.make_node("Add", names[:1] * 2 if names else ["first"] * 2, ["twice"]),
        helper.make_node(operator, [*again, *constants], ["second"], "again", **attributes),
        helper.make_node("Sub", ["first", "second"], ["difference"]),
    ]
    shapes = [
        array.shape if sizes else [f"{name}_{axis}" for axis in range(array.ndim)]
        for name, array in zip(names, arrays)
    ]
    inputs = [tensor_input(name, shape) for name, shape in zip(names, shapes)]
    constants = {name: np.asarray(value) for name, value in constants.items()}
    model = model_of(nodes, inputs, ["first", "difference"], weights(**constants), opset)
    for output in model.graph.output:
        output.ClearField("type")
    return model, dict(zip(names, arrays))


@pytest.mark.parametrize("sizes", [True, False], ids=["known sizes", "unknown sizes"])
@pytest.mark.parametrize("case", CASES)
def test_operator(case, sizes):
    model, inputs = model_with(*CASES[case], sizes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = compiled(from_onnx(model)[0])(*inputs.values())
    for mine, theirs in zip(found, session.run(None, inputs)):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
