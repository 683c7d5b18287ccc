"""Models whose nodes are in any order, as a conversion to float16 leaves them, versus ONNX Runtime."""

import random

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from frontends import from_onnx
from frontends._onnx.order import in_order
from tests.frontends.onnx_models import model_of, run, tensor_input
from tests.helpers import numbers

SHAPE = 2, 6
X = numbers(*SHAPE)


def chain(*operators):
    """Each takes what the one before it gives, and the input."""
    nodes = [
        helper.make_node(operator, [f"x{place}", "x0"][: 1 + (operator in ("Add", "Mul"))], [f"x{place + 1}"])
        for place, operator in enumerate(operators)
    ]
    return model_of(nodes, [tensor_input("x0", SHAPE)], [f"x{len(operators)}"])


def with_a_branch():
    """Both branches read what a node outside makes, and one has nodes in the wrong order."""
    inner = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Abs", ["s"], ["a"])]
    of = helper.make_tensor_value_info
    then = helper.make_graph(inner, "then", [], [of("b", onnx.TensorProto.FLOAT, SHAPE)])
    other = helper.make_graph(
        [helper.make_node("Exp", ["s"], ["c"])], "other", [], [of("c", onnx.TensorProto.FLOAT, SHAPE)]
    )
    nodes = [
        helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Sigmoid", ["x0"], ["s"]),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node("ReduceSum", ["x0"], ["total"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
    ]
    return model_of(nodes, [tensor_input("x0", SHAPE)], ["y"])


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order(seed):
    model = chain("Relu", "Add", "Sigmoid", "Mul", "Exp", "Add")
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": X})
    nodes = list(model.graph.node)
    random.Random(seed).shuffle(nodes)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    given = shuffled.SerializeToString()
    np.testing.assert_allclose(run(from_onnx(shuffled)[0], X)[0], expected[0], 1e-5, 1e-6)
    assert shuffled.SerializeToString() == given


@pytest.mark.parametrize("sign", [1, -1])
def test_branches(sign):
    model, given = with_a_branch(), sign * np.abs(X)
    (expected,) = onnxruntime.InferenceSession(in_order(model).SerializeToString()).run(None, {"x0": given})
    np.testing.assert_allclose(run(from_onnx(model)[0], given)[0], expected, 1e-5, 1e-6)


def test_converted_to_float16():
    model = convert_float_to_float16(chain("Relu", "Add", "Sigmoid"), keep_io_types=True)
    assert in_order(model) is not model
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": X})
    np.testing.assert_allclose(run(from_onnx(model)[0], X)[0], expected, 2e-3, 2e-3)


def test_those_in_order_are_not_copied():
    model = chain("Relu", "Add")
    assert in_order(model) is model


def test_a_long_chain_from_its_end():
    model = chain(*["Relu"] * 3000)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [node.input[0] for node in in_order(model).graph.node] == [f"x{place}" for place in range(3000)]
