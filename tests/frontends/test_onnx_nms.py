"""ONNX's NonMaxSuppression, imported and after the passes, against what ONNX says, box by box."""

import numpy as np
import pytest
from onnx import helper

from frontends import from_onnx
from frontends._onnx.nms import JUST_BELOW_1, MIN_POSITIVE
from tests.frontends.onnx_models import compiled, model_of, operators, run, tensor_input, weights
from tvm_passes import MakeDetectionStatic, detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

OPTIONS = ("most", "iou", "score")
THRESHOLDS = [0.0, 1e-30, 0.1, 1 / 4, 1 / 3, 0.45, 0.5, 0.7, 1.0]


def nms_model(constants=(), run_time=(), shape=(2, 3, 12), boxes_only=False, center=0):
    """A model with options that are constants, {name: array}, or inputs, {name: rank}, or not given."""
    constants, run_time = dict(constants), dict(run_time)
    images, _, count = shape
    given = [name if name in constants or name in run_time else "" for name in OPTIONS]
    while given and not given[-1]:
        given.pop()
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", *given], ["rows"], center_point_box=center)
    ]
    if boxes_only:
        nodes.append(helper.make_node("Gather", ["rows", "column"], ["index"], axis=1))
        constants["column"] = np.array(2)
    inputs = [tensor_input("boxes", (images, count, 4)), tensor_input("scores", shape)]
    for name, rank in run_time.items():
        inputs.append(tensor_input(name, (1,) * rank, "int64" if name == "most" else "float32"))
    return model_of(nodes, inputs, ["index" if boxes_only else "rows"], weights(**constants))


def arrays(seed, shape=(2, 3, 12)):
    """Whole corners in any order, so that IoUs are exact, and scores of which many tie."""
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, 6, (shape[0], shape[2], 4)).astype("float32")
    return boxes, rng.integers(1, 9, shape).astype("float32") / 8


def expected(boxes, scores, most=0, iou=0.0, score=-np.inf):
    """What ONNX says, for corners in any order."""
    rows = []
    first, second = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    for image, of_classes in enumerate(scores):
        for class_, of_boxes in enumerate(of_classes):
            kept = []
            for box in np.argsort(-of_boxes, kind="stable"):
                if of_boxes[box] > score and len(kept) < most:
                    ious = (overlap(first[image], second[image], box, other) for other in kept)
                    if not any(value > np.float32(iou) for value in ious):
                        kept.append(box)
            rows += [(image, class_, box) for box in kept]
    return np.array(rows, "int64").reshape(-1, 3)


def overlap(first, second, a, b):
    common = np.prod(np.maximum(np.minimum(second[a], second[b]) - np.maximum(first[a], first[b]), 0))
    both = np.prod(second[a] - first[a]) + np.prod(second[b] - first[b])
    return np.float32(0) if common <= 0 else common / (both - common)


def before_and_after(model):
    mod, _ = from_onnx(model)
    after = detection_pipeline()(mod)
    assert "vision.all_class_non_max_suppression" not in operators(after)
    return compiled(mod), compiled(after)


def check(model, inputs, wanted, computes=None):
    for compute in computes or before_and_after(model):
        (found,) = compute(*inputs)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("iou", THRESHOLDS)
def test_constant_thresholds(iou):
    model = nms_model({"most": np.array([100]), "iou": np.float32([iou]), "score": np.float32([0.25])})
    computes = before_and_after(model)
    for seed in range(10):
        inputs = arrays(seed)
        check(model, inputs, expected(*inputs, 100, iou, 0.25), computes)


@pytest.mark.parametrize("rank", [0, 1])
def test_options_known_at_run_time(rank):
    model = nms_model(run_time={name: rank for name in OPTIONS})
    computes = before_and_after(model)
    for seed, iou in enumerate(THRESHOLDS * 3):
        options = seed % 4, iou, (seed % 3) / 4
        given = [np.full((1,) * rank, value, dtype) for value, dtype in zip(options, ("int64", "f4", "f4"))]
        check(model, (*arrays(seed), *given), expected(*arrays(seed), *options), computes)


@pytest.mark.parametrize("most", [1, 2, 100, 2**31, 2**32 + 1, 2**63 - 1])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_constant_number_of_boxes(most, shape):
    model = nms_model({"most": np.full(shape, most)})
    check(model, arrays(0), expected(*arrays(0), most))


@pytest.mark.parametrize("most", [{}, {"most": np.array([0])}, {"most": np.array(-1)}])
def test_no_box_is_wanted(most):
    model = nms_model({**most, "iou": np.float32(0.5)})
    mod, _ = from_onnx(model)
    assert operators(mod) == []
    (found,) = run(mod, *arrays(0))
    assert (found.dtype, found.shape) == ("int64", (0, 3))


def test_no_score_threshold_is_none_after_the_passes():
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6]]], "float32")
    scores = np.array([[[-5, -0.5, 0], [-3, 0.5, -9]]], "float32")
    mod, _ = from_onnx(nms_model({"most": np.array(9), "iou": np.float32(0.5)}, shape=(1, 2, 3)))
    (found,) = run(detection_pipeline()(mod), boxes, scores)
    np.testing.assert_array_equal(found, expected(boxes, scores, 9, 0.5))


@pytest.mark.parametrize("threshold", [None, -np.inf])
def test_scores_of_minus_infinity_take_part_unless_there_is_a_threshold(threshold):
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6]]], "float32")
    scores = np.array([[[-np.inf, -np.inf, 0.5], [-np.inf, np.inf, -1]]], "float32")
    given = {} if threshold is None else {"score": np.float32(threshold)}
    model = nms_model({"most": np.array(9), "iou": np.float32(0.5), **given}, shape=(1, 2, 3))
    (found,) = run(detection_pipeline()(from_onnx(model)[0]), boxes, scores)
    first = [(0, 0, 2)] if given else [(0, 0, 2), (0, 0, 0)]
    np.testing.assert_array_equal(found, [*first, (0, 1, 1), (0, 1, 2)])


def test_centre_and_size():
    rng = np.random.default_rng(0)
    corner, size = rng.integers(0, 4, (2, 12, 2)), rng.integers(0, 6, (2, 12, 2))
    corners = np.concatenate([corner, corner + size], axis=2).astype("float32")
    centred = np.concatenate([corner + size / 2, size], axis=2).astype("float32")
    model = nms_model({"most": np.array(9), "iou": np.float32(1 / 3)}, center=1)
    check(model, (centred, arrays(0)[1]), expected(corners, arrays(0)[1], 9, 1 / 3))


def test_a_negative_size_overlaps_nothing():
    boxes = np.array([[[2, 2, 4, 4], [2, 2, -4, 4], [2, 2, -4, -4], [2, 2, 4, 4]]], "float32")
    scores = np.array([[[4, 3, 2, 1]]], "float32")
    model = nms_model({"most": np.array(9), "iou": np.float32(0.5)}, shape=(1, 1, 4), center=1)
    check(model, (boxes, scores), [[0, 0, 0], [0, 0, 1], [0, 0, 2]])


@pytest.mark.parametrize("boxes_only, shape", [(True, (1, 1, 12)), (False, (1, 1, 12)), (True, (2, 3, 12))])
@pytest.mark.parametrize("iou", THRESHOLDS)
def test_the_passes_bring_back_the_threshold_of_the_model(boxes_only, shape, iou):
    constants = {"most": np.array([10]), "iou": np.float32([iou])}
    mod = detection_pipeline()(from_onnx(nms_model(constants, shape=shape, boxes_only=boxes_only))[0])
    (call,) = [node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms"]
    assert call.args[4].data.numpy().tobytes() == np.float32(iou).tobytes()


def test_all_columns_of_one_image_and_one_class_are_those_of_one_nms():
    """As YOLOv7's end-to-end exports take the image beside the box, and both together."""
    shape, options = (
        (1, 1, 12),
        {"most": np.int64([5]), "iou": np.float32([0.5]), "score": np.float32([0.25])},
    )
    model = nms_model(options, shape=shape)
    for name, column in (("image", 0), ("box", 2)):
        index = helper.make_tensor(name + "_column", 7, (), [column])
        model.graph.initializer.append(index)
        model.graph.node.append(helper.make_node("Gather", ["rows", index.name], [name], axis=1))
        model.graph.output.append(helper.make_tensor_value_info(name, 7, ["k"]))
    mod, _ = from_onnx(model)
    after = detection_pipeline()(mod)
    assert [name for name in operators(after) if "nms" in name or "suppression" in name] == [
        "topi_ext.batched_nms"
    ]
    static = MakeDetectionStatic("padded")(after)
    assert [list(rows) for rows in static["main"].attrs["padded_rows"]] == [[0, 0]] * 3
    compute = compiled(static)
    for seed in range(3):
        boxes, scores = arrays(seed, shape)
        for scale in (1, 0):
            wanted = expected(boxes, scores * scale, 5, 0.5, 0.25)
            *found, number = compute(boxes, scores * np.float32(scale))
            assert number == len(wanted)
            for each, of_each in zip(found, (wanted, wanted[:, 0], wanted[:, 2])):
                np.testing.assert_array_equal(each[:number], of_each)


def test_the_next_float_at_run_time():
    bits = np.random.default_rng(0).integers(0x00800000, 0x7F7FFFFF, 1_000_000)
    octave = np.arange(0x3F000000, 0x3F800000)  # all from 0.5 to 1; others differ by a power of 2
    values = np.concatenate([bits, octave]).astype("int32").view("float32")
    above = values / JUST_BELOW_1
    np.testing.assert_array_equal(above, np.nextafter(values, np.float32(np.inf)))
    np.testing.assert_array_equal(above * JUST_BELOW_1, values)
    assert MIN_POSITIVE > 0 and MIN_POSITIVE / np.float32(2) == 0
