"""RestoreGroupNorm: spellings of a normalization of groups, what looks like one, and what becomes of it."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

import frontends
import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tvm_passes import (
    Canonicalize,
    ConvertToNHWC,
    InMixedPrecision,
    RestoreGroupNorm,
    RestoreLayerNorm,
    default_pipeline,
    detection_pipeline,
    subpixel_pipeline,
)
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph, calls_of

import tvm
from tvm import relay

NAME = "topi_ext.group_norm"
SHAPE = (2, 6, 5, 7)
RESTORE = tvm.transform.Sequential([RestoreLayerNorm(), RestoreGroupNorm()])


def of_channels(*shape, seed=1):
    return relay.const(numbers(*shape, seed=seed))


def spelled(x, axes, epsilon=1e-3):
    """(x - mean) / sqrt(variance + epsilon)"""
    difference = x - relay.mean(x, axis=axes, keepdims=True)
    variance = relay.mean(difference * difference, axis=axes, keepdims=True)
    return difference / relay.sqrt(variance + relay.const(epsilon))


def of_rows(x, norm, rows=(2, 3, -1), back=SHAPE):
    """What `norm` makes of the rows to which images are reshaped, as images."""
    return relay.reshape(norm(relay.reshape(x, rows)), back)


def instance_of_rows(rows, *affine):
    affine = affine or (of_channels(3), of_channels(3, seed=2))
    return relay.nn.instance_norm(rows, *affine, epsilon=1e-3)


SPELLINGS = {
    "group_norm": (lambda x: relay.nn.group_norm(x, of_channels(6), of_channels(6, seed=2), 3), 3),
    "group_norm without gamma": (
        lambda x: relay.nn.group_norm(x, of_channels(6), of_channels(6, seed=2), 3, scale=False),
        3,
    ),
    "instance_norm": (lambda x: relay.nn.instance_norm(x, of_channels(6), of_channels(6, seed=2)), 6),
    "instance_norm in NHWC": (lambda x: relay.nn.instance_norm(x, *[of_channels(7)] * 2, axis=3), 7),
    "instances, spelled": (lambda x: spelled(x, [2, 3]), 6),
    "instances in NHWC, spelled": (lambda x: spelled(x, [1, 2]), 7),
    "images, spelled": (lambda x: spelled(x, [1, 2, 3]), 1),
    "spelled, with gamma and beta": (
        lambda x: spelled(x, [2, 3]) * of_channels(6, 1, 1) + of_channels(6, 1, 1, seed=2),
        6,
    ),
    "instances of rows": (lambda x: of_rows(x, instance_of_rows), 3),
    "spelled rows": (lambda x: of_rows(x, lambda rows: spelled(rows, [2])), 3),
    "spelled rows with numbers of groups": (
        lambda x: of_rows(
            x, lambda rows: spelled(rows, [2]) * of_channels(3, 1) + of_channels(1, 3, 1, seed=2)
        ),
        3,
    ),
    "spelled groups of five axes": (
        lambda x: of_rows(x, lambda rows: spelled(rows, [2, 3, 4]), (2, 3, 2, 5, 7)),
        3,
    ),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(case):
    build, groups = SPELLINGS[case]
    x = relay.var("x", shape=SHAPE)
    mod = module(x, build(x))
    after = assert_same_numbers(RESTORE, mod, numbers(*SHAPE) + 3, rtol=1e-4, atol=1e-4)
    assert ops(after) == [NAME]
    (call,) = calls_of(after, NAME)
    assert call.attrs["groups"] == groups
    assert_no_second_change(RESTORE, after)


def test_structure():
    x, gamma, beta = relay.var("x", shape=SHAPE), of_channels(6), of_channels(6, seed=2)
    mod = module(x, relay.nn.relu(relay.nn.group_norm(x, gamma, beta, 3, epsilon=1e-3)))
    expected = topi_ext.group_norm(x, gamma, beta, groups=3, epsilon=1e-3, activation="relu")
    expected = relay.transform.InferType()(module(x, expected))
    tvm.ir.assert_structural_equal(RestoreGroupNorm()(mod), expected)


def test_ones_and_zeros_are_not_read():
    x, ones, zeros = (
        relay.var("x", shape=SHAPE),
        *(relay.const(np.full(6, number, "float32")) for number in (1, 0)),
    )
    mod = module(x, relay.nn.instance_norm(x, ones, zeros))
    (call,) = calls_of(RestoreGroupNorm()(mod), NAME)
    assert (call.attrs["has_gamma"], call.attrs["has_beta"]) == (0, 0)


ACTIVATIONS = {
    "relu": (relay.nn.relu, "relu"),
    "leaky_relu": (lambda y: relay.nn.leaky_relu(y, 0.1), "leaky_relu"),
    "clip": (lambda y: relay.clip(y, 0, 6), "clip"),
    "silu": (lambda y: y * relay.sigmoid(y), "silu"),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations(case):
    function, name = ACTIVATIONS[case]
    x = relay.var("x", shape=SHAPE)
    mod = module(x, function(relay.nn.group_norm(x, of_channels(6), of_channels(6), 2)))
    after = assert_same_numbers(RestoreGroupNorm(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [NAME] and str(calls_of(after, NAME)[0].attrs["activation"]) == name
    assert_no_second_change(RestoreGroupNorm(), after)


def test_what_follows_an_activation_is_left():
    x = relay.var("x", shape=SHAPE)
    y = relay.nn.relu(relay.nn.instance_norm(x, of_channels(6), of_channels(6), center=False))
    mod = module(x, relay.clip(y + of_channels(6, 1, 1), 0, 2))
    after = assert_same_numbers(RestoreGroupNorm(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [NAME, "add", "clip"]


def double(x):
    return relay.nn.group_norm(x, *[relay.const(numbers(6), "float64")] * 2, 3)


REFUSED = {
    "float64 would be computed in float32": (double, "float64"),
    "over other axes": (lambda x: spelled(x, [0, 2, 3]), "float32"),
    "epsilon is not a number above 0": (
        lambda x: relay.nn.group_norm(x, of_channels(6), of_channels(6), 3, epsilon=0.0),
        "float32",
    ),
    "neither the second axis nor the last": (
        lambda x: relay.nn.instance_norm(x, of_channels(5), of_channels(5), axis=2),
        "float32",
    ),
    "reshapes as if the channels were the second axis": (
        lambda x: relay.nn.group_norm(x, of_channels(7), of_channels(7), 7, axis=3),
        "float32",
    ),
    "not groups of the channels of one image": (
        lambda x: of_rows(x, lambda rows: spelled(rows, [2]), (2, 5, -1)),
        "float32",
    ),
    "not constants with a number for each group": (
        lambda x: of_rows(x, lambda rows: spelled(rows, [2]) * of_channels(3, 70)),
        "float32",
    ),
    "bounds of the clip": (
        lambda x: relay.clip(relay.nn.instance_norm(x, of_channels(6), of_channels(6)), 2, 1),
        "float32",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    build, dtype = REFUSED[reason]
    x = relay.var("x", shape=SHAPE, dtype=dtype)
    mod = module(x, build(x))
    after, report = apply(RESTORE, mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)
    assert_no_second_change(RESTORE, after)


def test_rows_of_several_images_are_refused():
    x = relay.var("x", shape=SHAPE)
    _, report = apply(RESTORE, module(x, of_rows(x, lambda rows: spelled(rows, [2]), (1, 12, -1))))
    assert "not groups of the channels of one image" in refusals(report)[0]


def test_an_unknown_number_of_channels_is_refused():
    x = relay.var("x", shape=(2, relay.Any(), 5, 7))
    gamma, beta = (relay.var(name, shape=(relay.Any(),)) for name in ("gamma", "beta"))
    _, report = apply(RestoreGroupNorm(), module(x, gamma, beta, relay.nn.instance_norm(x, gamma, beta)))
    assert refusals(report) == ["the number of channels is known only at run time"]


@pytest.mark.parametrize("behind", [relay.nn.relu, lambda y: relay.reshape(y, SHAPE)])
def test_data_that_are_used_elsewhere_are_refused(behind):
    x = relay.var("x", shape=SHAPE)
    rows = relay.reshape(x, (2, 3, -1))
    y = relay.nn.instance_norm(rows, of_channels(3), of_channels(3))
    after, report = apply(RestoreGroupNorm(), module(x, relay.Tuple([y, behind(y)])))
    assert len(ops(after)) == 3 and "used elsewhere" in refusals(report)[0]


@pytest.mark.parametrize("also", [False, True])
def test_half_precision_between_casts(also):
    x = relay.var("x", shape=SHAPE, dtype="float16")
    wide = relay.cast(x, "float32")
    y = relay.nn.group_norm(wide, of_channels(6), of_channels(6), 3)
    result = relay.cast(y, "float16")
    mod = module(x, relay.Tuple([result, y]) if also else result)
    data = numbers(*SHAPE, dtype="float16")
    after = assert_same_numbers(RestoreGroupNorm(), mod, data, rtol=1e-3, atol=1e-3)
    assert ops(after) == (["cast", NAME, "cast"] if also else [NAME])


# --- behind it


def network_of(norm):
    x = relay.var("x", shape=(1, 8, 6, 5))
    y = norm(convolution(x, 8, 8))
    return module(x, convolution(y, 8, 8))


def affine_norm(y, **options):
    return topi_ext.group_norm(y, of_channels(8), of_channels(8), groups=4, activation="silu", **options)


def test_half_precision_keeps_gamma_and_beta():
    (call,) = calls_of(InMixedPrecision()(network_of(affine_norm)), NAME)
    assert [arg.checked_type.dtype for arg in call.args] == ["float16", "float32", "float32"]
    assert call.checked_type.dtype == "float16"


def test_its_axis_moves_to_nhwc():
    mod = network_of(affine_norm)
    after = assert_same_numbers(ConvertToNHWC(), mod, numbers(1, 8, 6, 5), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["layout_transform", "nn.conv2d", NAME, "nn.conv2d", "layout_transform"]
    assert calls_of(after, NAME)[0].attrs["axis"] == 3


def test_an_axis_that_is_none_of_nhwc_stays():
    """Groups of columns would be of an inner axis."""
    mod = network_of(lambda y: topi_ext.group_norm(y, groups=1, axis=3))
    after = assert_same_numbers(ConvertToNHWC(), mod, numbers(1, 8, 6, 5), rtol=1e-4, atol=1e-5)
    assert calls_of(after, NAME)[0].attrs["axis"] == 3


# --- from the frontends


class Block(torch.nn.Module):
    def __init__(self, norm, activation, channels=16):
        super().__init__()
        self.first = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.norms = torch.nn.ModuleList([norm(channels), norm(channels)])
        self.between = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.last = torch.nn.Conv2d(channels, 3, 3, padding=1)
        self.activation = activation

    def forward(self, x):
        x = self.activation(self.norms[0](self.first(x)))
        return self.last(self.activation(self.norms[1](self.between(x))))


NORMS = {
    "group": lambda channels: torch.nn.GroupNorm(4, channels),
    "group, plain": lambda channels: torch.nn.GroupNorm(4, channels, affine=False),
    "instance": torch.nn.InstanceNorm2d,
    "instance, affine": lambda channels: torch.nn.InstanceNorm2d(channels, affine=True),
}


def trained(norm, activation=functional.relu):
    torch.manual_seed(0)
    network = Block(NORMS[norm], activation).eval()
    with torch.no_grad():
        for each in network.norms.parameters():
            each.uniform_(0.5, 1.5)
    return network, torch.rand(1, 3, 8, 12)


def imported(network, image, source, folder):
    if source == "torch":
        mod, params = frontends.from_pytorch(network, image)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(network, (image,), str(folder / "norm.onnx"), opset_version=17)
        mod, params = frontends.from_onnx(folder / "norm.onnx")
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("source", ["torch", "onnx"])
@pytest.mark.parametrize("pipeline", [default_pipeline, lambda: subpixel_pipeline("llvm")])
def test_imported(norm, source, pipeline, tmp_path):
    network, image = trained(norm)
    after = pipeline()(imported(network, image, source, tmp_path))
    assert ops(after).count(NAME) == 2 and not {"mean", "nn.relu", "reshape"} & set(ops(after))
    (found,) = run(after, image.numpy())
    np.testing.assert_allclose(found, network(image).detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", [functional.relu, functional.silu])
@pytest.mark.parametrize("pipeline", [subpixel_pipeline, detection_pipeline])
def test_on_tensor_cores(norm, activation, pipeline, tmp_path):
    """Nothing is left between a normalization and the convolutions around it."""
    after = pipeline("cuda -arch=sm_90")(imported(*trained(norm, activation), "torch", tmp_path))
    graph, norms = Graph(after["main"]), calls_of(after, NAME)
    assert len(norms) == 2
    for call in norms:
        assert call.checked_type.dtype == "float16"
        assert [int(length) for length in call.checked_type.shape] == [1, 8, 12, 16]
        assert {op_name(each) for each in (call.args[0], *graph.users(call))} == {"topi_ext.conv2d_nhwc"}


@pytest.mark.parametrize("opset", [18, 21])
def test_the_operator_of_onnx(opset, tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, names = onnx.helper, ("scale", "bias")
    numbers_of = {name: numbers(3 if opset == 18 else 6, seed=seed) for seed, name in enumerate(names)}
    node = helper.make_node("GroupNormalization", ["x", *names], ["y"], num_groups=3)
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, SHAPE) for name in "xy")
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in numbers_of.items()]
    model = helper.make_model(
        helper.make_graph([node], "norm", [x], [y], constants), opset_imports=[helper.make_opsetid("", opset)]
    )
    onnx.save(model, tmp_path / "norm.onnx")
    mod, _ = frontends.from_onnx(tmp_path / "norm.onnx")
    after = tvm.transform.Sequential([Canonicalize(), RESTORE])(mod)
    assert ops(after) == [NAME]
    scale, bias = (torch.from_numpy(np.repeat(each, 6 // len(each))) for each in numbers_of.values())
    expected = functional.group_norm(torch.from_numpy(numbers(*SHAPE)), 3, scale, bias)
    np.testing.assert_allclose(run(after, numbers(*SHAPE))[0], expected, 1e-5, 1e-5)
