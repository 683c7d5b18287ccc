"""Models that ONNX Runtime has optimized, and the operators that it fuses others to, versus ONNX Runtime."""

import io

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import nn

from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import compiled, model_of, run, tensor_input, weights
from tests.helpers import numbers

DOMAIN = "com.microsoft"
IMAGE, KERNEL, BIAS, ADDED = numbers(1, 4, 7, 8), numbers(6, 4, 3, 3), numbers(6), numbers(1, 6, 5, 6)
LEFT, RIGHT, ROW = numbers(3, 5), numbers(5, 4), numbers(4)
X, GAMMA = numbers(2, 4, 8), numbers(8)
PADS = np.array([1, 0, 1, 2])
# Operator, inputs, constant inputs behind them, and attributes; one model has all those of a name.
CASES = {
    "convolutions": [
        ("FusedConv", [IMAGE, KERNEL, BIAS, ADDED], [], {"activation": "Relu"}),
        ("FusedConv", [IMAGE, KERNEL, None, ADDED], [], {"activation": "HardSwish"}),
        ("FusedConv", [IMAGE, KERNEL], [], {"activation": "Clip", "activation_params": [-0.2, 0.6]}),
        ("FusedConv", [IMAGE, KERNEL], [], {"activation": "LeakyRelu", "activation_params": [0.2]}),
        (
            "FusedConv",
            [IMAGE, numbers(6, 2, 3, 3), BIAS],
            [],
            {"activation": "HardSigmoid", "activation_params": [0.3, 0.4], "group": 2, "pads": [1, 0, 1, 2]},
        ),
        ("ConvTransposeWithDynamicPads", [IMAGE, numbers(4, 5, 3, 3)], [PADS], {"strides": [2, 2]}),
    ],
    "products": [
        ("FusedGemm", [LEFT, RIGHT, ROW], [], {"activation": "Relu"}),
        ("FusedGemm", [LEFT, RIGHT], [], {"activation": "LeakyRelu", "activation_alpha": 0.2}),
        (
            "FusedGemm",
            [LEFT.T, RIGHT.T, ROW],
            [],
            {"activation": "Tanh", "transA": 1, "transB": 1, "beta": 0.3},
        ),
        ("FusedMatMul", [LEFT, RIGHT], [], {"alpha": 0.5}),
        ("FusedMatMul", [numbers(2, 3, 5, 4), numbers(2, 3, 6, 5)], [], {"transA": 1, "transB": 1}),
        ("FusedMatMul", [numbers(4, 2, 3, 5), numbers(2, 3, 5, 6)], [], {"transBatchA": 1}),
        (
            "FusedMatMul",
            [numbers(5, 2, 3, 4), numbers(6, 2, 3, 5)],
            [],
            {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
        ),
        ("FusedMatMul", [ROW, numbers(6, 4)], [], {"transA": 1, "transB": 1}),
        ("TransposeMatMul", [numbers(2, 5, 3), numbers(2, 5, 4)], [], {"transA": 1}),
        ("CDist", [LEFT, numbers(4, 5, seed=1)], [], {"metric": "euclidean"}),
        ("CDist", [LEFT, numbers(4, 5, seed=1)], [], {}),
    ],
    "others": [
        ("QuickGelu", [X], [], {}),
        ("QuickGelu", [X], [], {"alpha": 1.0}),
        ("ExpandDims", [X], [np.int32(-1)], {}),
        ("Range", [], [np.float32(1), np.float32(6)], {}),
        ("Inverse", [numbers(2, 3, 3)], [], {}),
        ("Inverse", [numbers(2, 6, 6)], [], {}),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_operators_as_in_onnx_runtime(name):
    nodes, given, constants = [], {}, {}
    for at, (operator, arrays, fixed, attributes) in enumerate(CASES[name]):
        names = [f"{at}.{place}" for place in range(len(arrays) + len(fixed))]
        given.update((key, array) for key, array in zip(names, arrays) if array is not None)
        constants.update(zip(names[len(arrays) :], fixed))
        known = [key if key in given or key in constants else "" for key in names]
        nodes.append(helper.make_node(operator, known, [f"{at}.y"], domain=DOMAIN, **attributes))
    inputs = [tensor_input(key, array.shape, array.dtype) for key, array in given.items()]
    results = [f"{at}.y" for at in range(len(nodes))]
    model = model_of(nodes, inputs, results, weights(**constants), domains=[DOMAIN])
    expected = session_of(model).run(None, given)
    for case, found, right in zip(CASES[name], run(from_onnx(model)[0], *given.values()), expected):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-5, err_msg=str(case[0]))


def test_layer_norms_that_onnx_lacks():
    """ONNX Runtime writes these into ONNX's own domain: without a mean, and before opset 17."""
    arrays = {"x": X, "scale": GAMMA, "of_two": numbers(4, 8)}
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "scale"], ["a", "b"], epsilon=1e-3),
        helper.make_node("SimplifiedLayerNormalization", ["x", "of_two"], ["c"], axis=1),
        helper.make_node("LayerNormalization", ["x", "scale", "scale"], ["d", "e", "f"]),
    ]
    inputs = [tensor_input(name, array.shape) for name, array in arrays.items()]
    model = model_of(nodes, inputs, list("abcdef"), opset=13)
    for found, right in zip(run(from_onnx(model)[0], *arrays.values()), session_of(model).run(None, arrays)):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_determinants_spectra_and_truth():
    signal = numbers(2, 32, 1)
    given = {
        "m": numbers(2, 4, 4),
        "pair": numbers(2, 2),
        "signal": signal,
        "x": np.float32([np.nan, 0, 0.3]),
    }
    constants = {"step": np.int64(4), "window": np.hanning(8).astype("float32"), "length": np.int64(8)}
    nodes = [
        helper.make_node("Det", ["m"], ["a"]),
        helper.make_node("Det", ["pair"], ["b"]),
        helper.make_node("STFT", ["signal", "step", "", "length"], ["c"]),
        helper.make_node("STFT", ["signal", "step", "window", "length"], ["d"], onesided=0),
        helper.make_node("Cast", ["x"], ["truth"], to=onnx.TensorProto.BOOL),
        helper.make_node("Cast", ["truth"], ["e"], to=onnx.TensorProto.FLOAT),
    ]
    inputs = [tensor_input(name, array.shape) for name, array in given.items()]
    model = model_of(nodes, inputs, list("abcde"), weights(**constants), opset=17)
    for found, right in zip(run(from_onnx(model)[0], *given.values()), session_of(model).run(None, given)):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "shape", "attributes", "reason"),
    [
        ("Det", (5, 5), {}, "matrices of up to 4 rows, not 5"),
        ("DFT", (1, 5, 2), {"inverse": 1, "onesided": 1}, "versions of ONNX disagree"),
    ],
)
def test_what_is_refused(operator, shape, attributes, reason):
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    with pytest.raises(ImportFailure, match=reason):
        from_onnx(model_of([node], [tensor_input("x", shape)], ["y"], opset=17))


def on_tensors(operator, *arrays, results=1, **attributes):
    """What is imported of an operator that ONNX Runtime has on GPUs only."""
    names = [f"x{place}" for place in range(len(arrays))]
    inputs = [tensor_input(name, array.shape) for name, array in zip(names, arrays)]
    made = [f"y{place}" for place in range(results)]
    node = helper.make_node(operator, names, made, domain=DOMAIN, **attributes)
    found = map(
        torch.from_numpy, run(from_onnx(model_of([node], inputs, made, domains=[DOMAIN]))[0], *arrays)
    )
    return next(found) if results == 1 else tuple(found)


def last(images):
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norms(channels_last):
    scale, bias, skip = numbers(6, seed=1), numbers(6, seed=2), numbers(1, 6, seed=3)
    total = torch.from_numpy(ADDED + skip[..., None, None] + bias[:, None, None])
    right = nn.functional.group_norm(total, 3, *map(torch.from_numpy, (scale, bias)), 1e-3)
    order = last if channels_last else np.asarray
    attributes = {"groups": 3, "epsilon": 1e-3, "channels_last": channels_last}
    arrays = order(ADDED), scale, bias, skip, bias
    found = on_tensors("SkipGroupNorm", *arrays, results=2, activation=1, **attributes)
    for one, wanted in zip(found, (nn.functional.silu(right), total)):
        torch.testing.assert_close(one, torch.from_numpy(order(wanted.numpy())))
    alone = on_tensors("GroupNorm", order(total.numpy()), scale, bias, activation=0, **attributes)
    torch.testing.assert_close(alone, torch.from_numpy(order(right.numpy())))


def test_convolutions_whose_channels_come_last():
    """In NhwcConv, those of the weights do, too."""
    image, kernel, bias, added = map(torch.from_numpy, (IMAGE, KERNEL, BIAS, ADDED))
    right = nn.functional.conv2d(image, kernel, bias)
    found = on_tensors("NhwcConv", last(IMAGE), last(KERNEL), BIAS)
    torch.testing.assert_close(found, right.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)
    found = on_tensors("NhwcFusedConv", last(IMAGE), KERNEL, BIAS, last(ADDED), activation="Relu")
    right = (right + added).relu()
    torch.testing.assert_close(found, right.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


def test_what_is_fused_for_gpus_only():
    x, bias = torch.from_numpy(X), torch.from_numpy(GAMMA)
    left, right = (x + bias).split(4, -1)
    torch.testing.assert_close(on_tensors("BiasSplitGelu", X, GAMMA), left * nn.functional.gelu(right))
    total, kept = on_tensors("BiasDropout", X, GAMMA, X, results=2)
    torch.testing.assert_close(total, 2 * x + bias)
    assert kept.all()
    joined = on_tensors("BiasSoftmax", X, X[:, :1], axis=1, is_inner_broadcast=1)
    torch.testing.assert_close(joined, (x + x[:, :1]).flatten(1).softmax(-1).reshape(x.shape))
    found = on_tensors("FusedMatMulActivation", X, X, activation="Relu", transB=1)
    torch.testing.assert_close(found, (x @ x.mT).relu(), rtol=1e-4, atol=1e-5)


def test_attention_of_packed_tensors():
    query, key, value = (numbers(2, 4, 2, 4, seed=seed) for seed in range(3))
    heads = (torch.from_numpy(each).transpose(1, 2) for each in (query, key, value))
    right = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 4, 8)
    packed = on_tensors("MultiHeadAttention", np.stack([query, key, value], 3), num_heads=2)
    torch.testing.assert_close(packed, right)
    pairs = np.stack([key, value], 3)
    of_keys = on_tensors("MultiHeadAttention", query.reshape(2, 4, 8), pairs, num_heads=2)
    torch.testing.assert_close(of_keys, right)


class Network(nn.Module):
    """A network in which ONNX Runtime finds something to fuse at each step."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(*each, 3, 2, 1) for each in ((3, 8), (8, 16)))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, image):
        features = self.convolutions[1](self.convolutions[0](image).relu()).clamp(0, 6)
        rows = features.flatten(2).transpose(1, 2)
        parts = self.qkv(self.norms[0](rows)).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query @ key.transpose(-2, -1)) * 8**-0.5
        rows = rows + self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        rows = self.norms[1](rows)
        rows = rows * torch.sigmoid(1.702 * rows)
        return self.mlp(rows.mean(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    written = io.BytesIO()
    names = {"input_names": ["image"], "output_names": ["y"], "dynamic_axes": {"image": {0: "n"}}}
    torch.onnx.export(Network().eval(), torch.zeros(1, 3, 16, 16), written, opset_version=17, **names)
    return onnx.load_from_string(written.getvalue())


def session_of(model, **options):
    asked = onnxruntime.SessionOptions()
    for name, value in options.items():
        setattr(asked, name, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), asked, ["CPUExecutionProvider"])


def optimized(model, level, folder):
    path = folder / "optimized.onnx"
    level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    session_of(
        model, graph_optimization_level=level, optimized_model_filepath=str(path), log_severity_level=3
    )
    return onnx.load(str(path))


def test_a_network_that_onnx_runtime_has_optimized(network, tmp_path):
    fused = optimized(network, "EXTENDED", tmp_path)
    found = {node.op_type for node in fused.graph.node if node.domain == DOMAIN}
    assert {"FusedConv", "FusedGemm", "FusedMatMul", "QuickGelu"} <= found
    image = numbers(2, 3, 16, 16)
    (right,) = session_of(network).run(None, {"image": image})
    np.testing.assert_allclose(compiled(from_onnx(fused)[0])(image)[0], right, rtol=1e-4, atol=1e-5)


def test_a_layout_of_one_processor_is_refused(network, tmp_path):
    with pytest.raises(ImportFailure, match="with ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"):
        from_onnx(optimized(network, "ALL", tmp_path))
