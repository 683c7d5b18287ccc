"""ONNX models in Relax, beside what ONNX Runtime computes."""

import io

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torchvision.models.detection._utils import _topk_min

import frontends.relax
from frontends.relax import ImportFailure
from frontends.relax._onnx import graph, sampling
from tests.models.super_resolution import channels_of, super_resolution_model
from tests.models.yolo import STRIDES, boxes_of, yolo_model
from tests.relax import detectors
from tests.relax.modules import QUICK, Of, compiled, run
from tests.relax.onnx_cases import FAMILIES, IMAGE, case, integers, model_of, random
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of the exporter

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TOLERANCES = {"float16": 2e-3}


def in_onnxruntime(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs)))


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
    "reductions": [13, 22],
    "sampling": [16],
    "sums of half": [18],
    "sampling since opset 18": [20],
}


@pytest.mark.parametrize("family, opset", [(family, each) for family in OPSETS for each in OPSETS[family]])
def test_operators(family, opset):
    family, _, since = family.partition(" since opset ")
    cases = of_opset(family, opset)
    cases = {name: each for name, each in cases.items() if each.opsets[0] >= int(since or 0)}
    assert_as_in_onnxruntime(*model_of(cases, opset))


@pytest.mark.parametrize("family", ["elementwise", "shapes", "reductions", "only known"])
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
            sampling.nearest_places(before, after, coordinates, rounding).tolist()
            == expected.reshape(-1).tolist()
        )


# --- networks


def exported(model, *inputs, opset=17, **options):
    file = io.BytesIO()
    names = [f"input.{at}" for at in range(len(inputs))]
    torch.onnx.export(model, inputs, file, opset_version=opset, dynamo=False, input_names=names, **options)
    return onnx.load_from_string(file.getvalue()), dict(zip(names, (each.numpy() for each in inputs)))


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


def graph_of(nodes, inputs, outputs, weights=()):
    return helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights],
    )


def of_graph(*arguments, opset=17):
    return helper.make_model(
        graph_of(*arguments), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )


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


# --- detectors


def detector(
    images=1, classes=3, boxes=40, most=7, center=0, by="GatherND", iou=0.4, score=0.2, behind=(), end=FLOAT
):
    """A NonMaxSuppression, and what is known of each box that it keeps: image, corners, class and score."""
    thresholds = {"iou": iou, "score": score}
    inputs = ["boxes", "scores", "most", *("" if each is None else name for name, each in thresholds.items())]
    nodes = [
        helper.make_node("NonMaxSuppression", inputs, ["kept"], center_point_box=center),
        helper.make_node("Gather", ["kept", "image_and_box"], ["places"], axis=1),
        helper.make_node("GatherND", ["boxes", "places"], ["corners"]),
        helper.make_node("GatherND", ["scores", "kept"], ["certain"]),
        helper.make_node("Unsqueeze", ["certain", "one"], ["certainty"]),
        helper.make_node("Slice", ["kept", "zero", "two", "one"], ["image_and_class"]),
        helper.make_node("Cast", ["image_and_class"], ["numbers"], to=FLOAT),
        helper.make_node("Concat", ["numbers", "corners", "certainty"], ["found"], axis=1),
    ]
    if by == "Gather":  # of one image
        nodes[1:3] = [
            helper.make_node("Gather", ["kept", "last"], ["box"], axis=1),
            helper.make_node("Reshape", ["box", "flat"], ["place"]),
            helper.make_node("Squeeze", ["boxes", "zero"], ["all_corners"]),
            helper.make_node("Gather", ["all_corners", "place"], ["corners"]),
        ]
    weights = [
        ("most", np.int64([most])),
        *((name, np.float32([each])) for name, each in thresholds.items() if each is not None),
        *((name, np.int64([each])) for name, each in (("zero", 0), ("one", 1), ("two", 2), ("flat", -1))),
        *(("image_and_box", np.int64([0, 2])), ("last", np.int64([2]))),
    ]
    return of_graph(
        [*nodes, *behind],
        [("boxes", FLOAT, [images, boxes, 4]), ("scores", FLOAT, [images, classes, boxes])],
        [("found", FLOAT, ["n", 7]), ("kept", INT64, ["n", 3])] if not behind else [("end", end, None)],
        weights,
    )


def boxes_and_scores(images=1, classes=3, boxes=40, center=0):
    first = np.random.default_rng(7).uniform(0, 60, (images, boxes, 2))
    sizes = np.random.default_rng(8).uniform(5, 40, (images, boxes, 2))
    second = sizes if center else first + sizes * np.where(np.arange(boxes) % 3, 1, -1)[:, None]
    scores = np.random.default_rng(9).uniform(0, 1, (images, classes, boxes)).round(2)  # some are equal
    return {
        "boxes": np.concatenate([first, second], 2).astype("float32"),
        "scores": scores.astype("float32"),
    }


DETECTORS = {
    "one class": {"classes": 1},
    "classes": {},
    "images": {"images": 2},
    "centres": {"center": 1},
    "gathered": {"by": "Gather"},
    "all": {"most": 1000, "score": 0.0},
    "none": {"score": 2.0},
    "touching": {"iou": 0.0},
    "any score": {"score": None, "iou": None},
}


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors(name):
    options = DETECTORS[name]
    sizes = {key: value for key, value in options.items() if key in ("images", "classes", "center")}
    model, inputs = detector(**options), boxes_and_scores(**sizes)
    expected = in_onnxruntime(model, inputs)
    mod = frontends.relax.from_onnx(model)
    found = runtime.compile(mod, QUICK, cut=True)(*inputs.values())
    for key, theirs in expected.items():
        np.testing.assert_allclose(found[key], theirs, rtol=1e-6, err_msg=key)
    padded = runtime.compile(mod, QUICK)(*inputs.values())
    number = len(expected["kept"])
    assert padded["num_detections"] == number and not np.asarray(padded["found"])[number:].any()


BEHIND = {
    "joined": [helper.make_node("Reshape", ["corners", "flat"], ["end"])],
    "largest": [helper.make_node("ReduceMax", ["certainty"], ["end"], keepdims=0)],
    "suppressed again": [
        helper.make_node("Unsqueeze", ["corners", "zero"], ["kept_boxes"]),
        helper.make_node("Unsqueeze", ["certainty", "zero"], ["kept_scores"]),
        helper.make_node("Transpose", ["kept_scores"], ["their_scores"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["kept_boxes", "their_scores", "most", "score"], ["end"]),
    ],
    "from the end": [
        helper.make_node("Mul", ["kept", "zero"], ["zeros"]),
        helper.make_node("Gather", ["zeros", "zero"], ["column"], axis=1),
        helper.make_node("Squeeze", ["column", "one"], ["each"]),
        helper.make_node("Sub", ["each", "one"], ["last_of_them"]),
        helper.make_node("Gather", ["corners", "last_of_them"], ["end"]),
    ],
}


@pytest.mark.parametrize("name", BEHIND)
def test_behind_a_suppression(name):
    end = INT64 if name == "suppressed again" else FLOAT
    assert_found_as_in_onnxruntime(detector(behind=BEHIND[name], end=end), boxes_and_scores())


def assert_found_as_in_onnxruntime(model, inputs, **tolerance):
    expected = in_onnxruntime(model, inputs)
    mod = frontends.relax.from_onnx(model)
    is_cut = "num_detections" in mod["main"].attrs["output_names"]
    found = runtime.compile(mod, QUICK, cut=is_cut)(*inputs.values())
    found = found if isinstance(found, dict) else dict(zip(expected, [found]))
    for name, theirs in expected.items():
        assert tuple(found[name].shape) == theirs.shape
        np.testing.assert_allclose(found[name], theirs, **{"rtol": 1e-6} | tolerance, err_msg=name)


SEEDED = torch.Generator().manual_seed(2)
SCORED = torch.rand(40, 3, generator=SEEDED), torch.rand(40, 4, generator=SEEDED), torch.tensor(0.5)


class Selected(nn.Module):
    """Rows by masks, of masks, joined, and the best of them, as detectors select boxes."""

    def __init__(self, numbers=False):
        super().__init__()
        self.numbers = numbers

    def forward(self, scores, boxes, least):
        certain = torch.where(scores[:, 0] > least)[0]
        scores, boxes = scores[certain], boxes[certain]
        wide = torch.where(boxes[:, 2] > 0.3)[0]
        scores, boxes = scores[wide], boxes[wide]
        tall = torch.where(boxes[:, 3] > 0.5)[0]
        boxes = boxes.scatter(0, tall[:, None].expand(tall.size(0), 4), -boxes[tall])
        boxes, scores = boxes[:, None].expand(boxes.size(0), 3, 4).reshape(-1, 4), scores.reshape(-1)
        large = torch.where(scores > 0.2)[0]
        best, places = scores[large].topk(_topk_min(scores[large], 10, 0))
        places = large[places]
        return boxes[places], best, places // 3 if self.numbers else boxes[places] * 2


def test_rows_that_masks_select():
    """All, some, fewer than the best that are asked for, and none."""
    names = ["boxes", "best", "twice"]
    model, inputs = exported(Selected().eval(), *SCORED, output_names=names)
    machine, numbers = runtime.compile(frontends.relax.from_onnx(model), QUICK, cut=True), []
    for least in (0.0, 0.5, 0.95, 2.0):
        given = inputs | {"input.2": np.asarray(least, "float32")}
        expected, found = in_onnxruntime(model, given), machine(*given.values())
        numbers.append(len(found["best"]))
        for name, theirs in expected.items():
            np.testing.assert_array_equal(found[name], theirs, err_msg=name)
    assert numbers[:2] == [10, 10] and 0 < numbers[2] < 10 and numbers[3] == 0


class Joined(nn.Module):
    """The best of two selections and of rows that are always there."""

    def forward(self, scores, boxes, least):
        parts = [boxes[torch.where(column > least)[0]] for column in scores.T[:2]]
        joined = torch.cat([*parts, boxes[:2]])
        best, places = joined[:, 0].topk(_topk_min(joined, 12, 0))
        return joined[places] + joined.max(), best


def test_rows_of_several_masks():
    assert_found_as_in_onnxruntime(*exported(Joined().eval(), *SCORED, output_names=["boxes", "best"]))


@pytest.mark.parametrize("kind", detectors.KINDS)
def test_detectors_of_torchvision(kind):
    model = detectors.detector(kind)
    found = detectors.found_by_torchvision(model)
    names = [f"output.{at}" for at in range(len(found))]
    network, inputs = exported(OfOneImage(model), detectors.image(), output_names=names)
    assert_found_as_in_onnxruntime(network, inputs, rtol=1e-4, atol=2e-4)
    assert len(found[0]) >= 10


class OfOneImage(Of):
    """A detector that takes its only image, and answers a tuple."""

    def forward(self, image):
        (found,) = self.function([image])
        return tuple(found[name] for name in detectors.NAMES if name in found)


class AllBoxes(nn.Module):
    """A YOLO up to its suppression, as exporters write it for an ONNX NonMaxSuppression."""

    def __init__(self):
        super().__init__()
        self.network = yolo_model("yolov8n", classes=4)

    def forward(self, image):
        found = list(zip(self.network.raw(image), STRIDES))
        boxes = torch.cat([boxes_of(sides, stride) for (sides, _), stride in found])
        return boxes[None], torch.cat([classes.flatten(2) for (_, classes), _ in found], 2).sigmoid()


def test_a_network_with_its_suppression():
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    network, inputs = exported(AllBoxes().eval(), image, output_names=["boxes", "scores"])
    suppression = detector(classes=4, boxes=84, most=10, score=0.0)
    joined = [("boxes", "boxes"), ("scores", "scores")]
    prefixed = onnx.compose.add_prefix(network, "network.", rename_inputs=False, rename_outputs=False)
    model = onnx.compose.merge_models(prefixed, suppression, joined)
    expected = in_onnxruntime(model, inputs)
    found = runtime.compile(frontends.relax.from_onnx(model), QUICK, cut=True)(*inputs.values())
    ours, theirs = (
        {tuple(row): each for row, each in zip(of["kept"], of["found"])} for of in (found, expected)
    )
    # This untrained network amplifies rounding: in a coordinate of 432, torch and ONNX Runtime differ by up
    # to 0.017 from float64 themselves, so that boxes whose overlaps are nearly the threshold may be others.
    same = ours.keys() & theirs.keys()
    assert len(same) >= 0.95 * max(len(ours), len(theirs)) > 10
    for row in same:
        np.testing.assert_allclose(ours[row], theirs[row], rtol=1e-4, atol=0.02)


# --- refusals


def places(scores):
    """Numbers of rows that a mask leaves: where their best are among them."""
    return scores[torch.where(scores > 0.5)[0]].topk(3)[1]


def single(op_type, *inputs, opset=18, **options):
    return model_of({"node": case(op_type, *inputs, **options)}, opset)[0]


def behind(op_type, *inputs, **attributes):
    return detector(behind=[helper.make_node(op_type, inputs, ["end"], name="end", **attributes)])


AT_IMPORT = "must be known at import"
KEPT = "a number of rows that depends on data"
REFUSED = {
    "unknown": (lambda: single("Det", random(3, 3)), r"no converter to Relax for .*'node' \(Det\).*Relay"),
    "shape": (lambda: single("Reshape", IMAGE, np.int64([-1])), f"'node' .*input 1, 'node.1', .*{AT_IMPORT}"),
    "rows": (lambda: single("NonZero", random(3, 3)), r"'node' \(NonZero\) .*depend on data.*, to Relay"),
    "pooling": (
        lambda: single("AveragePool", random(1, 2, 7, 7), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        r"'node' \(AveragePool\) .*reaches past the end: export it with pads",
    ),
    "scale": (
        lambda: single("Resize", IMAGE, None, np.float32([1, 1, 1, 1.3]), known=[2], mode="linear"),
        "the scale 1.29.* makes no whole number of 9 pixels: export it with sizes",
    ),
    "channels": (
        lambda: single("Resize", IMAGE, None, None, np.int64([2, 8, 7, 9]), known=[3]),
        "only the last two axes may change",
    ),
    "crop": (
        lambda: single(
            *("Resize", IMAGE, None, None, np.int64([2, 4, 14, 9])),
            known=[3],
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        "tf_crop_and_resize are not supported",
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
    "indices": (
        lambda: single("MaxPool", random(1, 2, 4, 4), kernel_shape=[2, 2], outputs=2),
        "its output 1, 'node:1', is not supported",
    ),
    "outside": (
        lambda: single("Gather", IMAGE, np.int64([4]), known=[1], axis=1),
        "outside of 4",
    ),
    "division": (lambda: single("Div", integers(1, 5, 3), integers(1, 5, 3)), "integers are divided by"),
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
    "softmax of rows": (lambda: behind("Softmax", "certain", axis=0), KEPT),
    "sum of rows": (lambda: behind("ReduceSum", "certainty"), KEPT),
    "number of rows": (lambda: behind("Shape", "certain"), "'end' is how many rows there are"),
    "computed with the number of rows": (
        lambda: detector(
            behind=[
                helper.make_node("Shape", ["certain"], ["number"]),
                helper.make_node("Cast", ["number"], ["as_float"], to=FLOAT),
                helper.make_node("Mul", ["certain", "as_float"], ["end"]),
            ]
        ),
        "computes with how many rows there are",
    ),
    "branch for no rows": (
        lambda: detector(
            behind=[
                helper.make_node("Size", ["certain"], ["number"]),
                helper.make_node("Equal", ["number", "zero"], ["is_none"]),
                helper.make_node(
                    "If",
                    ["is_none"],
                    ["end"],
                    name="choose",
                    then_branch=graph_of(
                        [helper.make_node("Identity", ["score"], ["a"])], [], [("a", FLOAT, None)]
                    ),
                    else_branch=graph_of(
                        [helper.make_node("Identity", ["certain"], ["b"])], [], [("b", FLOAT, None)]
                    ),
                ),
            ]
        ),
        "'choose' .*its results are not empty then",
    ),
    "rows among others": (lambda: behind("Concat", "certain", "score", axis=0), "rows that a mask selects"),
    "as numbers of other rows": (lambda: exported(Selected(numbers=True), *SCORED)[0], KEPT),
    "where numbers of other rows are not 0": (
        lambda: exported(Of(lambda x: places(x)[torch.where(places(x))[0]]), SCORED[0][:, 0])[0],
        KEPT,
    ),
    "rows of a mask": (
        lambda: exported(Of(lambda x: x[x > 0]), torch.ones(4))[0],
        "rows that a mask selects",
    ),
    "rows beside others": (lambda: behind("Transpose", "corners", perm=[1, 0]), "with this axis in front"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_says_why(name, capfd, monkeypatch):
    monkeypatch.setattr(graph, "MAX_NODES", 300)
    build, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_onnx(build())
    assert capfd.readouterr() == ("", "")


def test_sizes_that_only_the_run_knows_are_refused_with_what_to_pass():
    model, _ = exported(Of(lambda x: x + 1), torch.rand(2, 3), dynamic_axes={"input.0": {0: "batch"}})
    with pytest.raises(ImportFailure, match=r"pass shapes=\{'input.0': \(…, 3\)\}"):
        frontends.relax.from_onnx(model)
    with pytest.raises(ImportFailure, match=r"pass shapes=\{'input.0': \(…, 3\)\}"):
        frontends.relax.from_onnx(model, shapes={"input.0": (None, 3)})
    with pytest.raises(ImportFailure, match="'y', which is not an input"):
        frontends.relax.from_onnx(model, shapes={"y": (2, 3)})


def test_every_operator_is_compared_with_onnxruntime():
    tested = {each.op_type for cases in FAMILIES.values() for each in cases.values()}
    assert {*graph.CONVERTERS, *graph.ONLY_KNOWN} == tested
