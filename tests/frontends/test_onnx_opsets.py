"""One network as each opset spells it, from 9 to the newest of the installed onnx, computes the same."""

import numpy as np
import onnx
import pytest
from onnx import helper

from frontends import from_onnx
from tests.frontends.onnx_models import model_of, run, tensor_input, weights

X = np.random.default_rng(0).normal(size=(1, 4, 5, 6)).astype("float32")


class Spelling:
    """Nodes whose settings an opset has as inputs, or as attributes."""

    def __init__(self, opset):
        self.opset, self.nodes, self.constants = opset, [], {}

    def add(self, operator, *inputs, count=1, since=99, settings=None, **attributes):
        """A node; from the opset `since` on its settings are inputs, which come in their order."""
        inputs = list(inputs)
        for name, value in (settings or {}).items():
            if self.opset < since:
                attributes[name] = value
                continue
            inputs.append(f"{name}{len(self.nodes)}")
            dtype = "float32" if isinstance(value, float) or name == "scales" else "int64"
            self.constants[inputs[-1]] = np.array(value, dtype)
        outputs = [f"{operator}{len(self.nodes)}:{place}" for place in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs if count > 1 else outputs[0]


def network(opset):
    """Of operators that have changed: Slice (10), TopK (10), Resize, Clip, Pad (11), ReduceSum (13), ..."""
    net = Spelling(opset)
    x = net.add("Slice", "x", since=10, settings={"starts": [0, 1], "ends": [3, 5], "axes": [1, 2]})
    x = net.add("Clip", x, since=11, settings={"min": -1.0, "max": 1.5})
    x = net.add("Pad", x, since=11, settings={"pads": [0, 0, 1, 0, 0, 0, 1, 2]})
    parts = {"num_outputs": 2} if opset >= 18 else {}
    first, second = net.add("Split", x, count=2, axis=2, **parts)
    x = net.add("Mul", first, net.add("Dropout", second))
    scales = [1.0, 1.0, 2.0, 2.0]
    if opset < 10:
        x = net.add("Upsample", x, since=9, settings={"scales": scales}, mode="nearest")
    elif opset < 11:
        x = net.add("Resize", x, since=10, settings={"scales": scales}, mode="nearest")
    else:
        like_upsample = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        net.constants["roi"] = np.zeros(0, "float32")  # which opsets 11 and 12 require
        x = net.add(
            "Resize", x, "roi", since=11, settings={"scales": scales}, mode="nearest", **like_upsample
        )
    net.constants.update({f"of{i}": np.float32([1, 2, 0.5]) + i for i in range(4)})
    x = net.add("BatchNormalization", x, *(f"of{i}" for i in range(4)))
    x = net.add("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])
    x = net.add("MaxPool", x, kernel_shape=[2, 2])
    mean = net.add("ReduceMean", x, since=18, settings={"axes": [2]}, keepdims=1)
    sums = net.add("ReduceSum", x, since=13, settings={"axes": [2]}, keepdims=1)
    x = net.add("Squeeze", net.add("Add", mean, sums), since=13, settings={"axes": [2]})
    x = net.add("Softmax", x, axis=2)
    best, _ = net.add("TopK", x, count=2, since=10, settings={"k": [2]} if opset >= 10 else {"k": 2}, axis=2)
    x = net.add("Unsqueeze", best, since=13, settings={"axes": [0, 4]})
    x = net.add("Reshape", x, since=5, settings={"shape": [3, -1]})
    net.nodes[-1].output[0] = "y"
    model = model_of(net.nodes, [tensor_input("x", X.shape)], ["y"], weights(**net.constants), opset)
    model.graph.output[0].CopyFrom(tensor_input("y", (3, 2)))
    onnx.checker.check_model(model)  # that it is spelled as the opset has it
    return model


def expected():
    x = np.pad(X[:, :3, 1:5].clip(-1, 1.5), ((0, 0), (0, 0), (1, 1), (0, 2)))
    x = (x[:, :, :3] * x[:, :, 3:]).repeat(2, 2).repeat(2, 3)
    scale, bias, mean, variance = (np.float32([1, 2, 0.5]).reshape(3, 1, 1) + i for i in range(4))
    x = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    x = np.nanmean(windows, (4, 5))
    x = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((4, 5))
    x = x.mean(2) + x.sum(2)
    x = np.exp(x) / np.exp(x).sum(2, keepdims=True)
    return -np.sort(-x, 2)[:, :, :2].reshape(3, -1)


@pytest.mark.parametrize("opset", range(9, onnx.defs.onnx_opset_version() + 1))
def test_the_same_network_in_each_opset(opset):
    (found,) = run(from_onnx(network(opset))[0], X)
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axes"), [(9, (1, 2, 3)), (12, (1, 2, 3)), (13, (1,))])
def test_softmax_takes_all_axes_from_one_on_before_opset_13(operator, opset, axes):
    node = helper.make_node(operator, ["x"], ["y"], axis=1)
    (found,) = run(from_onnx(model_of([node], [tensor_input("x", X.shape)], ["y"], opset=opset))[0], X)
    expected = np.exp(X) / np.exp(X).sum(axes, keepdims=True)
    np.testing.assert_allclose(found, expected if operator == "Softmax" else np.log(expected), rtol=1e-5)
