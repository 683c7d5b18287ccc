"""Networks of ONNX files whose sizes are symbolic, from the import to the virtual machine: any width runs."""

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import nn

import frontends
import tvm_passes
from tests.frontends.onnx_models import (
    assert_matches_reference,
    compiled,
    model_of,
    operators,
    tensor_input,
    weights,
)

WIDTHS = (32, 75, 160)


class Features(nn.Module):
    """What recognisers of text begin with: a column of channels for every fourth column of the image."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, (2, 1), 1, groups=8), nn.Conv2d(8, 16, 1), nn.MaxPool2d(2)),
        )

    def forward(self, image):
        features = self.layers(image)
        batch, channels, height, width = features.shape
        return features.reshape(batch, channels * height, width)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.lstm = Features(), nn.LSTM(32, 12, bidirectional=True)
        self.head = nn.Linear(24, 10)

    def forward(self, image):
        return self.head(self.lstm(self.features(image).permute(2, 0, 1))[0]).softmax(2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.norm, self.qkv = Features(), nn.LayerNorm(32), nn.Linear(32, 96)
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        tokens = self.features(image).permute(0, 2, 1)
        batch, length, channels = tokens.shape
        qkv = self.qkv(self.norm(tokens)).reshape(batch, length, 3, 4, channels // 4)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(-2, -1) / 3).softmax(-1)
        return self.head((weights @ value).transpose(1, 2).reshape(batch, length, channels)).softmax(2)


class Upscaled(nn.Module):
    """A detector of text: what it sees at a coarse scale is upscaled, in each of the usual ways."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.transposed, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(8, 1, 3, 2, 1, 1)
        self.shuffled = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, image):
        fine = self.first(image)
        coarse = self.second(fine.relu())
        nearest = nn.functional.interpolate(coarse, scale_factor=2, mode="nearest")
        bilinear = nn.functional.interpolate(coarse, scale_factor=2, mode="bilinear")
        return self.last(
            fine + self.transposed(coarse) + self.shuffled(coarse) + nearest + bilinear
        ).sigmoid()


def exported(network, names):
    """A network as torch exports it, with the named axes symbolic."""
    torch.manual_seed(0)
    file = io.BytesIO()
    image, axes = torch.rand(2, 1, 16, 64), {"x": names, "y": {0: "a", 1: "b"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says about tracing
        torch.onnx.export(
            *(network().eval(), image, file),
            **{"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes, "opset_version": 16},
        )
    return onnx.load_from_string(file.getvalue())


def by_onnx_runtime(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays)))


def assert_equals_onnx_runtime(model, shapes, passes, given=None):
    mod, params = frontends.from_onnx(model, given)
    computed = tvm_passes.runtime.compile(passes(mod), "llvm", params)
    expect = by_onnx_runtime(model)
    for seed, shape in enumerate(shapes):
        x = np.random.default_rng(seed).normal(size=shape).astype("float32")
        (expected,) = expect(x)
        found = np.asarray(computed(x))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [Recurrent, Attention])
@pytest.mark.parametrize("batches", [(1, 1, 1), (3, 1, 2)])
def test_a_recogniser_of_any_width(network, batches):
    model = exported(network, {0: "batch", 3: "width"})
    given = {"x": (1, 1, 16, None)} if set(batches) == {1} else None
    shapes = [(batch, 1, 16, width) for batch, width in zip(batches, WIDTHS)]
    assert_equals_onnx_runtime(model, shapes, tvm_passes.default_pipeline(), given)


@pytest.mark.parametrize("passes", [tvm_passes.default_pipeline(), tvm_passes.subpixel_pipeline("llvm")])
def test_an_upscaling_network_of_any_size(passes):
    model = exported(Upscaled, {0: "batch", 2: "height", 3: "width"})
    shapes = [(1, 1, 24, 32), (1, 1, 8, 76), (2, 1, 12, 4)]
    assert_equals_onnx_runtime(model, shapes, passes)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_that_a_size_decides_keeps_the_channels(operator, mode, stride):
    """With a stride of 1 no size decides it."""
    given = {"kernel_shape": [3, 2], "strides": [stride, stride], "auto_pad": mode}
    kernel = {"w": np.random.default_rng(0).normal(size=(5, 4, 3, 2)).astype("float32")}
    kernel = kernel if operator == "Conv" else {}
    node = helper.make_node(operator, ["x", *kernel], ["y"], **given)
    model = model_of([node], [tensor_input("x", ("n", 4, "h", 7))], ["y"], weights(**kernel))
    mod, _ = frontends.from_onnx(model)
    channels, width = mod["main"].ret_type.shape[1::2]
    assert (channels, width) == (5 if kernel else 4, -(-7 // stride))
    assert ("dyn.nn.pad" in operators(mod)) == (stride > 1)
    compute = compiled(mod)
    for height in (4, 5):
        x = np.random.default_rng(1).normal(size=(2, 4, height, 7)).astype("float32")
        (expected,) = by_onnx_runtime(model)(x)
        np.testing.assert_allclose(compute(x)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_network_over_any_number_of_steps(operator, direction):
    """TVM's own needs the number."""
    values, count = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    gates, hidden = {"RNN": 1, "LSTM": 4, "GRU": 3}[operator], 3
    shapes = {"w": (gates * hidden, 2), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    constants = {name: values.normal(size=(count, *each)).astype("float32") for name, each in shapes.items()}
    attributes = {"hidden_size": hidden, "direction": direction}
    if operator == "RNN":
        attributes["activations"] = ["Relu", "Tanh"][:count]
    outputs = ["y", "last", "cell"][: 3 if operator == "LSTM" else 2]
    state = ["", "", "h"][: 2 if operator == "GRU" else 3]
    nodes = [
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node(operator, ["negative", *constants, *state[1:]], outputs, **attributes),
    ]
    inputs = [tensor_input("x", ("steps", "batch", 2))]
    inputs += [tensor_input("h", (count, "batch", hidden))] if "h" in state else []
    model = model_of(nodes, inputs, outputs, weights(**constants))
    given = {"x": (None, 2, 2)} if operator == "GRU" else None
    compute = compiled(frontends.from_onnx(model, given)[0])
    for steps, batch in ((1, 2), (6, 2 if given else 1)):
        arrays = [values.normal(size=(steps, batch, 2)), values.normal(size=(count, batch, hidden))]
        arrays = [each.astype("float32") for each in arrays][: len(inputs)]
        for found, wanted in zip(compute(*arrays), by_onnx_runtime(model)(*arrays)):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_batch_that_must_be_known_is_refused():
    weights_of = {"w": np.ones((1, 9, 2), "float32"), "r": np.ones((1, 9, 3), "float32")}
    node = helper.make_node("GRU", ["x", *weights_of], ["y"], "it", hidden_size=3)
    model = model_of([node], [tensor_input("x", (5, "batch", 2))], ["y"], weights(**weights_of))
    with pytest.raises(
        frontends.ImportFailure, match=r"batch must be known; .*: pass shapes=\{.x.: \(5, \?, 2\)\}"
    ):
        frontends.from_onnx(model)


CHANNELS = r"'nn.conv2d' only where the number of channels is known: .*\(1, \?, 8, 6\)"
STATIC = r"'reverse_sequence' only for static shapes: pass shapes=\{'x': \(2, \?, 3\)\} with a number"
BATCH = r"only for static shapes: pass shapes=\{'x': \(\?, 4, 3\)\}"
TO_CONVERT = r"needs sizes that are known; some .*: pass shapes=\{'x': \(2, \?, 8, 1\)\} with a number"
STEPS = "the number of its steps, which is axis 1 of its input 0, must be known; .*with a number"
OF_TIME = {"batch_axis": 0, "time_axis": 1}


@pytest.mark.parametrize(
    ("operator", "shape", "attributes", "given", "reason"),
    [
        ("Conv", (1, "c", 8, 6), {"kernel_shape": [1, 1]}, None, CHANNELS),
        ("ReverseSequence", (2, "t", 3), OF_TIME, None, STATIC),
        ("ReverseSequence", (2, "t", 3), OF_TIME, {"x": (None, 4, 3)}, BATCH),
        ("DFT", (2, "n", 8, 1), {"axis": 2}, None, TO_CONVERT),
        ("RoiAlign", (1, "c", 8, 8), {}, None, "the number of channels must be known"),
        ("Scan", (2, "t"), {"num_scan_inputs": 1, "scan_input_axes": [1]}, None, STEPS),
    ],
)
def test_a_size_that_must_be_known_is_named(operator, shape, attributes, given, reason):
    constants = {
        "Conv": {"w": np.ones((2, 4, 1, 1), "float32")},
        "ReverseSequence": {"n": [1, 2]},
        "RoiAlign": {"rois": np.ones((1, 4), "float32"), "of": [0]},
    }
    constants = constants.get(operator, {})
    if operator == "Scan":
        column = helper.make_tensor_value_info("column", 1, [2])
        body = [helper.make_node("Neg", ["column"], ["negative"])]
        results = [helper.make_tensor_value_info("negative", 1, [2])]
        attributes = {**attributes, "body": helper.make_graph(body, "body", [column], results)}
    nodes = [
        helper.make_node("Relu", ["x"], ["z"]),  # behind which no channels are found by the weights
        helper.make_node(operator, ["z", *constants], ["y"], **attributes),
    ]
    model = model_of(nodes, [tensor_input("x", shape)], ["y"], weights(**constants), opset=17)
    with pytest.raises(frontends.ImportFailure, match=reason) as refusal:
        frontends.from_onnx(model, given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("opset", [18, 21])
def test_a_group_normalization(opset):
    values = np.random.default_rng(0)
    count = 6 if opset == 21 else 2  # a scale for each channel, or before for each group
    scale, bias = values.normal(size=(2, count)).astype("float32")
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)
    inputs = [tensor_input("x", ("batch", 6, "height", "width"))]
    mod, _ = frontends.from_onnx(model_of([node], inputs, ["y"], weights(scale=scale, bias=bias), opset))
    compute = compiled(mod)
    for shape in ((1, 6, 4, 5), (3, 6, 2, 9)):
        x = values.normal(size=shape).astype("float32")
        expected = nn.functional.group_norm(torch.from_numpy(x), 2).numpy()
        factor, offset = (np.repeat(each, 6 // count)[:, None, None] for each in (scale, bias))
        np.testing.assert_allclose(compute(x)[0], expected * factor + offset, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_channels_that_are_symbolic_are_those_of_the_weights(is_quantized):
    image = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype("float32")
    kernel = np.random.default_rng(1).normal(size=(6, 2, 3, 3)).astype("float32")
    nodes = [helper.make_node("Conv", ["image", "kernel"], ["y"], group=2)]
    given = weights(kernel=kernel)
    if is_quantized:
        steps = ("QuantizeLinear", "image", "small"), ("DequantizeLinear", "small", "back")
        nodes = [helper.make_node(name, [what, "scale", "zero"], [made]) for name, what, made in steps]
        nodes.append(helper.make_node("Conv", ["back", "kernel"], ["y"], group=2))
        given += weights(scale=np.float32(0.03), zero=np.int8(3))
    sizes = ["batch", "channels", "height", "width"]
    model = model_of(nodes, [tensor_input("image", sizes)], ["y"], given, opset=21)
    mod, _ = frontends.from_onnx(model)
    assert [getattr(size, "value", None) for size in mod["main"].params[0].checked_type.shape] == [
        *(None, 4, None, None)
    ]
    assert_matches_reference(mod, model, image, atol=1e-4)


class Restoring(nn.Module):
    """As in SwinIR and FFDNet: pads to whole windows, and tells all pixels how noisy they are."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, image, noise):
        rows, columns = image.shape[2:]
        x = nn.functional.pad(image, (0, -columns % 4, 0, -rows % 4), "reflect")
        x = self.first(torch.cat([x, noise.repeat(1, 1, x.shape[2], x.shape[3])], 1))
        x = x.view(1, 2, -1, x.shape[2], x.shape[3]).sum(1)
        return self.last(x)[:, :, :rows, :columns]


def test_channels_stay_known_where_rows_and_columns_are_padded_repeated_and_reshaped():
    """TVM's own forgets them, and compiles no convolution of what comes of that."""
    torch.manual_seed(0)
    network, file = Restoring().eval(), io.BytesIO()
    example = torch.rand(1, 3, 9, 11), torch.rand(1, 1, 1, 1)
    torch.onnx.export(
        network, example, file, input_names=["image", "noise"], dynamic_axes={"image": {2: "h", 3: "w"}}
    )
    compute = compiled(frontends.from_onnx(onnx.load_from_string(file.getvalue()))[0])
    for size in ((9, 11), (8, 5)):
        image = torch.rand(1, 3, *size)
        with torch.no_grad():
            expected = network(image, example[1]).numpy()
        (found,) = compute(image.numpy(), example[1].numpy())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
