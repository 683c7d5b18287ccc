"""ONNX models in which data decide how many rows there are, in Relax, beside what ONNX Runtime computes."""

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import helper
from torch import nn
from torchvision.models.detection._utils import _topk_min

import frontends.relax
from frontends.relax import ImportFailure
from tests.models.yolo import STRIDES, boxes_of, yolo_model
from tests.relax import detectors
from tests.relax.modules import QUICK, Of
from tests.relax.onnx_models import FLOAT, INT64, exported, graph_of, in_onnxruntime, of_graph
from tvm_passes import runtime

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of the exporter


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


INFINITE = torch.tensor([-torch.inf, 0.5, -torch.inf, 0.25, -torch.inf, 0.1])


class OfAnyScore(nn.Module):
    """The best rows of a mask, or of its best ones, suppressed without a threshold of their score."""

    def __init__(self, best):
        super().__init__()
        self.best = best

    def forward(self, scores, boxes, mask):
        at = torch.where(mask)[0]
        scores, boxes = scores[at], boxes[at]
        if self.best:
            scores, places = scores.topk(_topk_min(scores, 4, 0))
            boxes = boxes[places]
        kept = torchvision.ops.nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept]


@pytest.mark.parametrize("best", [False, True])
def test_scores_of_minus_infinity_take_part_without_a_threshold(best):
    boxes = torch.arange(6.0)[:, None] * 3 + torch.tensor([0.0, 0, 2, 2])
    mask = torch.tensor([False, True, True, True, True, False])
    model, inputs = exported(OfAnyScore(best).eval(), INFINITE, boxes, mask, output_names=["boxes", "scores"])
    machine = runtime.compile(frontends.relax.from_onnx(model), QUICK, cut=True)
    for each in (mask, torch.zeros(6, dtype=torch.bool), ~mask, torch.ones(6, dtype=torch.bool)):
        given = [*inputs.values()][:2] + [each.numpy()]
        expected = in_onnxruntime(model, dict(zip(inputs, given)))
        for name, found in machine(*given).items():
            np.testing.assert_array_equal(found, expected[name], err_msg=name)


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


def behind(op_type, *inputs, **attributes):
    return detector(behind=[helper.make_node(op_type, inputs, ["end"], name="end", **attributes)])


KEPT = "a number of rows that depends on data"
REFUSED = {
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
def test_what_cannot_be_imported_says_why(name, capfd):
    build, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_onnx(build())
    assert capfd.readouterr() == ("", "")
