"""The NMS of TensorRT's plugins, imported, against what its plugins compute, in NumPy."""

import numpy as np
import pytest
from onnx import helper

from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import model_of, tensor_input
from tests.helpers import apply
from tvm_passes import MakeDetectionStatic, default_pipeline, runtime

import tvm
from tvm.relay.ty import is_dynamic

B, N, C, MOST = 2, 40, 3, 12
EFFICIENT = {
    "plugin_version": "1",
    "score_threshold": 0.5,
    "iou_threshold": 0.5,
    "max_output_boxes": MOST,
    "background_class": -1,
}
BATCHED = {"scoreThreshold": 0.5, "iouThreshold": 0.5, "keepTopK": MOST, "topK": 9, "numClasses": C}
OF_ROWS = {"score_threshold": 0.5, "iou_threshold": 0.5, "keep_topk": MOST, "topk": 9, "num_classes": C}


def arrays(seed=0, boxes_of=1):
    """Whole corners, so that IoUs are exact, and scores of which none tie."""
    rng = np.random.default_rng(seed)
    corner, size = rng.integers(0, 8, (2, B, N, boxes_of, 2))
    boxes = np.concatenate([corner, corner + size + 1], -1).astype("float32") / 16
    return boxes, rng.permutation(B * N * C).reshape(B, N, C).astype("float32") / (B * N * C)


OUTPUTS = ["num", "boxes_", "scores_", "classes"]


def imported(operator, attributes, boxes, outputs=OUTPUTS, domain="TRT"):
    node = helper.make_node(operator, ["boxes", "scores"], outputs, domain=domain, **attributes)
    inputs = [tensor_input("boxes", boxes.shape), tensor_input("scores", (B, N, C))]
    mod, _ = from_onnx(model_of([node], inputs, outputs))
    assert not is_dynamic(mod["main"].ret_type)
    return mod


def run(mod, *inputs):
    after, _ = apply(default_pipeline(), mod)
    return list(runtime.compile(after, "llvm")(*inputs).values())


def iou(a, b, more=0):
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = np.prod(np.maximum(high + more - low, 0))
    return common / (np.prod(a[2:] - a[:2] + more) + np.prod(b[2:] - b[:2] + more) - common)


def kept(boxes, scores, suppresses, apart=True, of_class=N, background=-1):
    """Rows of (box, score, class) of one image, in descending order of score."""
    pairs = [
        (scores[place, one], boxes[place, one % boxes.shape[1]], one)
        for one in range(C)
        for place in np.argsort(-scores[:, one])[:of_class]
        if one != background
    ]
    rows = []
    for score, box, one in sorted(pairs, key=lambda pair: -pair[0]):
        if not any(suppresses(box, other) for _, other, its in rows if its == one or not apart):
            rows.append((score, box, one))
    return rows[:MOST]


def padded(rows, padding=0):
    count = len(rows)
    boxes, scores = np.zeros((MOST, 4), "float32"), np.zeros(MOST, "float32")
    classes = np.full(MOST, padding)
    for at, (score, box, one) in enumerate(rows):
        boxes[at], scores[at], classes[at] = box, score, one
    return np.int32([count]), boxes, scores, classes


def assert_equal(found, images, padding=0):
    wanted = [np.stack(each) for each in zip(*(padded(rows, padding) for rows in images))]
    assert max(len(rows) for rows in images) > 3
    for ours, theirs in zip(found, wanted):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("boxes_of", [1, C])
@pytest.mark.parametrize(
    "extra", [{}, {"class_agnostic": 1}, {"background_class": 1}, {"iou_threshold": 0.25}]
)
def test_efficient_nms(boxes_of, extra):
    boxes, scores = arrays(boxes_of=boxes_of)
    attributes = {**EFFICIENT, **extra}
    found = run(imported("EfficientNMS_TRT", attributes, boxes), boxes, scores)
    assert [str(each.dtype) for each in found] == ["int32", "float32", "float32", "int32"]

    def of_image(box, score):
        score = np.where(score >= 0.5, score, -1)
        rows = kept(
            box,
            score,
            lambda a, b: iou(a, b) >= attributes["iou_threshold"],
            apart=not attributes.get("class_agnostic"),
            background=attributes["background_class"],
        )
        return [row for row in rows if row[0] > 0]

    assert_equal(found, list(map(of_image, boxes, scores)))


def test_an_iou_of_the_threshold_suppresses():
    boxes = np.zeros((B, N, 1, 4), "float32")
    boxes[:, :, 0] = np.arange(N)[:, None] * 2 + np.float32([0, 0, 1, 1])
    boxes[:, 1, 0] = [0, 0, 1, 0.5]  # an IoU of exactly 0.5 with the first
    scores = np.zeros((B, N, C), "float32")
    scores[:, 0, 0], scores[:, 1, 0], scores[:, 2, 0] = 0.9, 0.8, 0.5  # exactly the score threshold
    count, *_ = run(imported("EfficientNMS_TRT", EFFICIENT, boxes), boxes, scores)
    assert count.ravel().tolist() == [2, 2]
    count, *_ = run(imported("BatchedNMS_TRT", BATCHED, boxes), boxes, scores)
    assert count.ravel().tolist() == [2, 2]  # there, both comparisons are strict


def test_logits_and_centres():
    boxes, scores = arrays()
    logits = np.log(scores + 1e-3) - np.log(1 - scores + 1e-3)
    plain = run(
        imported("EfficientNMS_TRT", EFFICIENT, boxes[:, :, 0]),
        boxes[:, :, 0],
        1 / (1 + np.exp(-logits)),
    )
    low, high = boxes[..., :2], boxes[..., 2:]
    centres = np.concatenate([(low + high) / 2, high - low], -1)
    attributes = {**EFFICIENT, "score_activation": 1, "box_coding": 1}
    found = run(imported("EfficientNMS_TRT", attributes, centres), centres, logits)
    for ours, theirs in zip(found, plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("boxes_of", [1, C])
@pytest.mark.parametrize("operator", ["BatchedNMS_TRT", "BatchedNMSDynamic_TRT"])
@pytest.mark.parametrize("extra", [{}, {"isNormalized": 0}, {"backgroundLabelId": 0, "clipBoxes": 0}])
def test_batched_nms(operator, boxes_of, extra):
    boxes, scores = arrays(1, boxes_of)
    boxes = boxes * 4  # beyond the image
    attributes = {**BATCHED, "shareLocation": int(boxes_of == 1), **extra}
    found = run(imported(operator, attributes, boxes), boxes, scores)
    assert [str(each.dtype) for each in found] == ["int32", "float32", "float32", "float32"]
    more = 0 if attributes.get("isNormalized", 1) else 1

    def of_image(box, score):
        rows = kept(
            box,
            np.where(score > 0.5, score, -1),
            lambda a, b: iou(a, b, more) > 0.5,
            of_class=9,
            background=attributes.get("backgroundLabelId", -1),
        )
        clips = attributes.get("clipBoxes", 1)
        return [(s, np.clip(b, 0, 1) if clips else b, c) for s, b, c in rows if s > 0]

    assert_equal(found, list(map(of_image, boxes, scores)), padding=-1)


def test_rows_of_boxes_and_scores():
    boxes, scores = arrays(2)
    plain = run(imported("BatchedNMS_TRT", {**BATCHED, "clipBoxes": 0}, boxes), boxes, scores)
    rows, classes = run(
        imported("TRTBatchedNMS", OF_ROWS, boxes, ["rows", "classes"], "mmdeploy"), boxes, scores
    )
    np.testing.assert_array_equal(rows, np.concatenate([plain[1], plain[2][..., None]], 2))
    np.testing.assert_array_equal(classes, plain[3])
    assert classes.dtype == np.int32


def test_anchors_are_refused():
    node = helper.make_node(
        "EfficientNMS_TRT", ["boxes", "scores", "anchors"], ["n", "b", "s", "c"], domain="TRT"
    )
    inputs = [
        tensor_input("boxes", (B, N, 4)),
        tensor_input("scores", (B, N, C)),
        tensor_input("anchors", (1, N, 4)),
    ]
    with pytest.raises(ImportFailure, match="it decodes boxes by a third input, the anchors"):
        from_onnx(model_of([node], inputs, ["n", "b", "s", "c"]))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"numClasses": 7}, "its scores are of 3 classes, not 7"),
        ({"shareLocation": 0}, "shareLocation does not agree with the shape of its boxes"),
        ({"unknown": 1}, "its attribute unknown=1 is not supported"),
    ],
)
def test_what_does_not_agree_is_refused(extra, reason):
    with pytest.raises(ImportFailure, match=reason):
        imported("BatchedNMS_TRT", {**BATCHED, **extra}, arrays()[0])


def test_other_operators_of_these_domains_are_refused():
    boxes, _ = arrays()
    with pytest.raises(ImportFailure, match=r"no converter for the operator of .*TRT\.Sigmoid"):
        imported("Sigmoid", {}, boxes)


def test_it_is_static_already():
    boxes, _ = arrays()
    mod = imported("EfficientNMS_TRT", EFFICIENT, boxes)
    after = MakeDetectionStatic("padded")(default_pipeline()(mod))
    assert tvm.ir.structural_equal(after, default_pipeline()(mod))
