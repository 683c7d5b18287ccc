"""ONNX models in Relax, beside what ONNX Runtime computes."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from onnx import TensorProto, helper
from torch import nn

import frontends.relax
from frontends.relax import ImportFailure
from frontends.relax._onnx import graph, quantization, resizing
from tests.models.super_resolution import channels_of, super_resolution_model
from tests.relax.modules import QUICK, Of, compiled, run
from tests.relax.onnx_cases import FAMILIES, model_of
from tests.relax.onnx_cases.case import IMAGE, case, integers, random
from tests.relax.onnx_cases.reductions import REDUCING
from tests.relax.onnx_models import FLOAT, INT64, exported, graph_of, in_onnxruntime, of_graph
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of the exporter

TOLERANCES = {"float16": 2e-3}


def assert_as_in_onnxruntime(model, inputs, atol=1e-5):
    expected = in_onnxruntime(model, inputs)
    mod = frontends.relax.from_onnx(model)
    found = run(compiled(mod, QUICK), list(inputs.values()))
    assert list(mod["main"].attrs["output_names"]) == list(expected)
    for (name, theirs), mine in zip(expected.items(), found, strict=True):
        assert mine.dtype == theirs.dtype, name
        tolerance = TOLERANCES.get(str(mine.dtype), atol)
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


# --- operators


def of_opset(family, opset):
    cases = FAMILIES[family].items()
    return {name: each for name, each in cases if each.opsets[0] <= opset <= each.opsets[1]}


OPSETS = {
    "elementwise": [22],
    "shapes": [13, 18],
    "layers": [17, 22],
    "quantization": [13, 21],
    "reductions": [13, 22],
    "sampling": [16, 19],
    "sums of half": [18],
    "sampling since opset 18": [20],
    "reductions since opset 26": [26],
}


@pytest.mark.parametrize("family, opset", [(family, each) for family in OPSETS for each in OPSETS[family]])
def test_operators(family, opset):
    family, _, since = family.partition(" since opset ")
    cases = of_opset(family, opset)
    cases = {name: each for name, each in cases.items() if each.opsets[0] >= int(since or 0)}
    assert_as_in_onnxruntime(*model_of(cases, opset))


@pytest.mark.parametrize("family", ["elementwise", "shapes", "reductions", "quantized once", "only known"])
def test_what_is_known_is_computed_at_import(family):
    model, inputs = model_of(of_opset(family, 18), 18, all_known=True)
    assert not inputs
    assert_as_in_onnxruntime(model, inputs)
    calls = str(frontends.relax.from_onnx(model)).count("R.")
    assert calls < 4 * len(model.graph.output)  # types, and zeros where there is nothing


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
def test_the_nearest_pixel_of_any_size_is_that_of_onnxruntime(coordinates, rounding):
    """Without compiling: what is gathered is known at import."""
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "mode": "nearest"}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    image = helper.make_tensor_value_info("x", FLOAT, [1, 1, 1, "before"])
    sizes = helper.make_tensor_value_info("sizes", INT64, [4])
    result = helper.make_tensor_value_info("y", FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "resize", [image, sizes], [result]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for before, after in [(40, 12), (40, 48), (33, 78), (7, 1), (1, 5), *integers(1, 700, 40, 2).tolist()]:
        pixels = np.arange(before, dtype="float32").reshape(1, 1, 1, -1)
        (expected,) = session.run(None, {"x": pixels, "sizes": np.int64([1, 1, 1, after])})
        assert (
            resizing.nearest_places(before, after, coordinates, rounding).tolist()
            == expected.reshape(-1).tolist()
        )


# --- networks


def seeded(model):
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return model.eval()


@pytest.mark.parametrize("opset", [16, 18])
@pytest.mark.parametrize("name", ["thread", "espcn", "unet", "interpolated"])
def test_super_resolution(name, opset):
    model = super_resolution_model(name)
    assert_as_in_onnxruntime(*exported(model, torch.rand(1, channels_of(name), 12, 16), opset=opset), 1e-4)


BACKBONES = {
    "mobilenet_v3_small": (64, {}),
    "squeezenet1_1": (64, {}),
    "resnet18": (40, {"training": torch.onnx.TrainingMode.PRESERVE}),  # with normalizations
}


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones(name):
    size, options = BACKBONES[name]
    model = seeded(getattr(torchvision.models, name)(weights=None))
    model, inputs = exported(model, torch.rand(1, 3, size, size), **options)
    assert_as_in_onnxruntime(model, inputs, 1e-4)


def test_the_passes_see_what_they_see_in_networks_of_torch():
    """Convolutions with their shuffle, activation and normalization are one operator each."""
    model, inputs = exported(super_resolution_model("thread", channels=16), torch.rand(1, 3, 12, 16))
    mod = convolution_pipeline(QUICK)(frontends.relax.from_onnx(model))
    text = str(mod["main"])
    assert "pixel_shuffle" not in text and text.count("permute_dims") == 2 and "nn.leakyrelu" not in text
    (found,) = run(compiled(mod, QUICK), list(inputs.values()))
    (expected,) = in_onnxruntime(model, inputs).values()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_names_and_shapes():
    model, _ = exported(Of(lambda x, y: (x + 1, y, y * 2)), torch.rand(2, 3), torch.rand(4))
    mod = frontends.relax.from_onnx(model, shapes={"input.0": (5, 7)})
    main = mod["main"]
    assert [parameter.name for parameter in main.params] == ["input.0", "input.1"]
    shapes = [list(map(int, each.shape)) for each in main.ret_ty.fields]
    assert shapes == [[5, 7], [4], [4]]


def test_the_path_of_a_model(tmp_path):
    model, inputs = exported(Of(lambda x: x * 3), torch.rand(2, 3))
    onnx.save(model, tmp_path / "model.onnx")
    call = runtime.compile(frontends.relax.from_onnx(tmp_path / "model.onnx"), QUICK)
    np.testing.assert_array_equal(call(*inputs.values()), 3 * inputs["input.0"])


# --- control flow whose course is known


def loop_model(trips=3, trips_are_known=True):
    """y = y * x + i, three times, with the sum of y of each time beside it."""
    body = graph_of(
        [
            helper.make_node("Mul", ["y", "x"], ["product"]),
            helper.make_node("Cast", ["i"], ["at"], to=FLOAT),
            helper.make_node("Add", ["product", "at"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
        ],
        [("i", INT64, []), ("go_on", TensorProto.BOOL, []), ("y", FLOAT, [2, 3])],
        [("goes_on", TensorProto.BOOL, []), ("next", FLOAT, [2, 3]), ("sum", FLOAT, [])],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["result", "sums"], name="repeat", body=body)
    inputs, weights = [("x", FLOAT, [2, 3])], [("trips", np.int64(trips))]
    if not trips_are_known:
        inputs, weights = [*inputs, ("trips", INT64, [])], []
    return of_graph([loop], inputs, [("result", FLOAT, [2, 3]), ("sums", FLOAT, ["n"])], weights)


def test_a_loop_of_known_length_is_unrolled():
    assert_as_in_onnxruntime(loop_model(), {"x": random(2, 3)})


def test_a_loop_ends_when_its_condition_says_so():
    body = graph_of(
        [
            helper.make_node("Add", ["y", "y"], ["next"]),
            helper.make_node("Less", ["i", "last"], ["goes_on"]),
        ],
        [("i", INT64, []), ("go_on", TensorProto.BOOL, []), ("y", FLOAT, [2])],
        [("goes_on", TensorProto.BOOL, []), ("next", FLOAT, [2])],
    )
    loop = helper.make_node("Loop", ["", "begin", "x"], ["result"], body=body)
    weights = [("last", np.int64(2)), ("begin", np.bool_(True))]
    model = of_graph([loop], [("x", FLOAT, [2])], [("result", FLOAT, [2])], weights)
    assert_as_in_onnxruntime(model, {"x": random(2)})


def if_model(condition_is_known=True):
    """x + 1 if it has three columns, else x - 1."""
    branches = {
        f"{name}_branch": graph_of(
            [helper.make_node(operator, ["x", "one"], [name])], [], [(name, FLOAT, [2, 3])]
        )
        for name, operator in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        helper.make_node("Shape" if condition_is_known else "Cast", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one_th"], ["columns"]),
        helper.make_node("Equal", ["columns", "three"], ["condition"]),
        helper.make_node("If", ["condition"], ["y"], name="choose", **branches),
    ]
    if not condition_is_known:
        nodes[:3] = [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "one"], ["condition"]),
        ]
    weights = [("one", np.float32(1)), ("one_th", np.int64(1)), ("three", np.int64(3))]
    return of_graph(nodes, [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 3])], weights)


def test_the_branch_that_is_taken_is_imported():
    assert_as_in_onnxruntime(if_model(), {"x": random(2, 3)})


OF_NONE = [name for name in REDUCING if name != "ReduceMean"]  # of which onnx and ONNX Runtime disagree
OF_INTEGERS = [name for name in OF_NONE if name != "ReduceL2"]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    "name, dtype",
    [
        *((name, dtype) for name in OF_NONE for dtype in ("float32", "float16")),
        *((name, "int32") for name in OF_INTEGERS),
    ],
)
def test_a_reduction_of_no_elements(name, dtype, keepdims):
    x = np.zeros((2, 0, 3), dtype)
    model = single(name, x, [1], known=[1], keepdims=keepdims)
    ((_, expected),) = in_onnxruntime(model, {"node.0": x}).items()
    mod = frontends.relax.from_onnx(model, {"node.0": x.shape})
    (found,) = run(compiled(mod, QUICK), [x])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


BY_OTHERS = {
    "AffineGrid": lambda: model_of(
        {"node": case("AffineGrid", random(2, 2, 3), [2, 3, 4, 5], known=[1])}, 20
    ),
    "CenterCropPad": lambda: model_of(
        {"node": case("CenterCropPad", random(2, 5, 7), [7, 4], known=[1], axes=[1, 2])}, 18
    ),
    "Attention": lambda: model_of(
        {"node": case("Attention", *(random(2, 3, each, 8) for each in (4, 6, 6)), is_causal=1)}, 23
    ),
    "RMSNormalization": lambda: model_of({"node": case("RMSNormalization", IMAGE, random(9), known=[1])}, 23),
    "RotaryEmbedding": lambda: model_of(
        {
            "node": case(
                *("RotaryEmbedding", random(2, 3, 4, 8), random(50, 4), random(50, 4)),
                *([[0, 1, 2, 3]] * 2,),
                known=[1, 2, 3],
            )
        },
        23,
    ),
}


@pytest.mark.parametrize("name", BY_OTHERS)
def test_what_onnx_defines_by_other_operators(name):
    assert_as_in_onnxruntime(*BY_OTHERS[name]())


# --- refusals


def single(op_type, *inputs, opset=18, **options):
    return model_of({"node": case(op_type, *inputs, **options)}, opset)[0]


AT_IMPORT = "must be known at import"
REFUSED = {
    "unknown": (lambda: single("Det", random(3, 3)), r"no converter to Relax for .*'node' \(Det\).*Relay"),
    "shape": (lambda: single("Reshape", IMAGE, np.int64([-1])), f"'node' .*input 1, 'node.1', .*{AT_IMPORT}"),
    "sizes": (
        lambda: single("Resize", IMAGE, None, None, np.int64([2, 4, 14, 9])),
        f"input 3, 'node.3', .*{AT_IMPORT}",
    ),
    "axes": (lambda: single("Unsqueeze", IMAGE, np.int64([0])), f"input 1, 'node.1', .*{AT_IMPORT}"),
    "rows": (lambda: single("NonZero", random(3, 3)), r"'node' \(NonZero\) .*depend on data.*, to Relay"),
    "pooling": (
        lambda: single(
            "AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_UPPER", opset=19
        ),
        r"'node' \(AveragePool\) .*dilations are not supported with auto_pad",
    ),
    "extremes": (
        lambda: single("ScatterND", IMAGE, [[0]], IMAGE[:1], reduction="max"),
        "the reduction max of floats is not supported",
    ),
    "inexact": (
        lambda: single("Pad", integers(0, 9, 2), [1, 0], np.int64(2**53 + 1), known=[1, 2]),
        "9007199254740993 is not supported, which float64 does not hold",
    ),
    "scale": (
        lambda: single(
            *("Resize", IMAGE, None, np.float32([1, 1, 1, 1.3])),
            known=[2],
            mode="linear",
            coordinate_transformation_mode="align_corners",
        ),
        "the scale 1.29.* makes no whole number of 9 pixels, .* export it with sizes",
    ),
    "bytes": (
        lambda: single(
            "Resize",
            np.zeros((1, 1, 3, 5), "uint8"),
            None,
            np.float32([1, 1, 2, 2]),
            known=[2],
            mode="linear",
        ),
        "uint8 is not supported, only floats",
    ),
    "crop": (
        lambda: single(
            *("Resize", IMAGE, None, None, np.int64([2, 4, 14, 9])),
            known=[3],
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        "its region, the input 1, is not given",
    ),
    "wrap": (lambda: single("Pad", IMAGE, np.int64([1] * 8), known=[1], mode="wrap", opset=19), "mode wrap"),
    "training": (
        lambda: single(
            "BatchNormalization",
            IMAGE,
            *[np.ones(4, "float32")] * 4,
            known=[1, 2, 3, 4],
            training_mode=1,
            outputs=3,
        ),
        "in evaluation mode",
    ),
    "diagonal": (
        lambda: single("Einsum", random(3, 3), equation="ii->i"),
        "not one for each of the letters ii",
    ),
    "cube": (
        lambda: single("GridSample", random(1, 1, 3, 3, 3), random(1, 2, 2, 2, 3), mode="cubic", opset=20),
        "the mode cubic of data of 5 axes is not supported",
    ),
    "outside": (
        lambda: single("Gather", IMAGE, np.int64([4]), known=[1], axis=1),
        "outside of 4",
    ),
    "opset": (lambda: single("Relu", IMAGE, opset=12), "the model is of opset 12: export it for 13 or later"),
    "loop": (
        lambda: loop_model(trips_are_known=False),
        r"'repeat' .*how often it runs depends on data",
    ),
    "long loop": (lambda: loop_model(trips=10**6), "with its loops unrolled, the model has more than"),
    "branch": (
        lambda: if_model(condition_is_known=False),
        r"'choose' .*its condition depends on data",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_says_why(name, capfd, monkeypatch):
    monkeypatch.setattr(graph, "MAX_NODES", 100)
    build, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_onnx(build())
    assert capfd.readouterr() == ("", "")


def test_shapes_of_what_is_no_input():
    model, _ = exported(Of(lambda x: x + 1), torch.rand(2, 3))
    with pytest.raises(ImportFailure, match="'y', which is not an input"):
        frontends.relax.from_onnx(model, shapes={"y": (2, 3)})


def test_every_operator_is_compared_with_onnxruntime():
    tested = {each.op_type for cases in FAMILIES.values() for each in cases.values()}
    assert {*graph.CONVERTERS, *graph.ONLY_KNOWN, *quantization.BY_OTHERS} == tested
