"""MakeDetectionStatic on as many leading rows as a number says, such as an ONNX NMS of many classes keeps."""

import warnings

import numpy as np
import onnxruntime
import pytest
import torch

from frontends import from_onnx
from tests.helpers import apply, module, refusals, run, runner
from tests.ops.detections import clustered_detections
from tvm_passes import MakeDetectionStatic, default_pipeline

import tvm
from tvm import relay
from tvm.relay.op.dyn import _make as dynamic
from tvm.relay.ty import is_dynamic

N, CLASSES = 60, 5
NAMES = ["boxes", "scores"]


class NonMaxSuppression(torch.autograd.Function):
    """The operator of ONNX, which torch has no other name for."""

    @staticmethod
    def forward(ctx, boxes, scores, most, iou_threshold, score_threshold):
        return torch.arange(5)[:, None] % torch.tensor([len(scores), scores.shape[1], scores.shape[2]])

    @staticmethod
    def symbolic(g, *inputs):
        return g.op("NonMaxSuppression", *inputs, outputs=1)


class Export(torch.nn.Module):
    """What is kept of all images and classes, with the columns of image, box, class and score."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, boxes, scores):
        scores = scores.permute(0, 2, 1)
        limits = torch.tensor([self.most]), torch.tensor([0.5]), torch.tensor([0.3])
        image, class_id, box = NonMaxSuppression.apply(boxes, scores, *limits).unbind(1)
        kept = boxes[image, box] * 2
        return image[:, None].float(), kept, class_id.int(), scores[image, class_id, box]


class Best(torch.nn.Module):
    """As MMDetection's models are exported: the best of all that is kept, and a row of zeros."""

    def __init__(self, before=0, most=10):
        super().__init__()
        self.before, self.most = before, most

    def forward(self, boxes, scores):
        images = torch.arange(len(scores)).view(-1, 1)
        if self.before:
            _, first = scores.max(-1).values.topk(self.before)
            boxes, scores = boxes[images, first, :], scores[images, first, :]
        scores = scores.permute(0, 2, 1)
        limits = torch.tensor([20]), torch.tensor([0.5]), torch.tensor([0.3])
        image, class_id, box = NonMaxSuppression.apply(boxes, scores, *limits).unbind(1)
        rows = torch.cat([boxes[image, box], scores[image, class_id, box].unsqueeze(1)], 1)
        is_of_image = image == images
        rows = rows.unsqueeze(0).repeat(len(images), 1, 1)
        rows = rows.where(is_of_image.unsqueeze(-1), rows.new_zeros(1))
        labels = class_id.unsqueeze(0).repeat(len(images), 1)
        labels = labels.where(is_of_image, labels.new_ones(1) * -1)
        rows = torch.cat((rows, rows.new_zeros((len(rows), 1, 5))), 1)
        labels = torch.cat((labels, -labels.new_ones((len(rows), 1))), 1)
        if self.most:
            most = torch.minimum(torch.tensor(self.most), torch._shape_as_tensor(rows)[1])
            _, order = rows[:, :, -1].topk(most, dim=1)
        else:
            _, order = rows[:, :, -1].sort(dim=1, descending=True)
        return rows[images, order], labels[images, order]


def inputs_of(images):
    boxes, scores = np.zeros((images, N, 4), "float32"), np.zeros((images, N, CLASSES), "float32")
    for image in range(images):
        boxes[image], of_boxes, ids = clustered_detections(N, CLASSES, image)
        scores[image, np.arange(N), ids % CLASSES] = of_boxes
    return boxes, scores


def imported(model, arrays, folder):
    """The module, and a session of ONNX Runtime."""
    path, example = str(folder / "model.onnx"), tuple(map(torch.from_numpy, arrays))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, example, path, opset_version=13, input_names=NAMES)
    mod, params = from_onnx(path)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("most", [3, 100])
@pytest.mark.parametrize("images", [1, 2])
def test_all_that_an_nms_of_many_classes_keeps(images, most, tmp_path):
    arrays = inputs_of(images)
    mod, session = imported(Export(most), arrays, tmp_path)
    expected = session.run(None, dict(zip(NAMES, arrays)))
    passes = tvm.transform.Sequential([default_pipeline(), MakeDetectionStatic("padded")])
    after, _ = apply(passes, mod)
    assert not is_dynamic(after["main"].ret_type)
    *found, number = run(after, *arrays)
    assert number == len(expected[0]) > 5
    for wanted, given in zip(expected, found):
        np.testing.assert_array_equal(given[:number], wanted)
        assert not given[number:].any()


@pytest.mark.parametrize("before, most", [(0, 10), (30, 10), (30, 0)])
@pytest.mark.parametrize("kept", ["some", "none"])
def test_the_best_of_what_it_keeps(kept, before, most, tmp_path):
    boxes, scores = inputs_of(1)
    arrays = boxes, scores * (kept == "some")
    mod, session = imported(Best(before, most), inputs_of(1), tmp_path)
    expected = session.run(None, dict(zip(NAMES, arrays)))
    passes = tvm.transform.Sequential([default_pipeline(), MakeDetectionStatic("padded")])
    after, _ = apply(passes, mod)
    assert not is_dynamic(after["main"].ret_type)
    *found, number = run(after, *arrays)
    assert number == expected[0].shape[1] and (number > 5) == (kept == "some")
    for wanted, given, as_it_is in zip(expected, found, run(mod, *arrays)):
        np.testing.assert_array_equal(given[:, :number], wanted)
        np.testing.assert_array_equal(as_it_is, wanted)
        assert not given[:, number:].any()


def leading(number_of_axes=1, data=None, **changes):
    """The module, and the slice of the first rows of a matrix, up to a number that is an input."""
    rows = relay.var("rows", shape=data or (7, 3))
    number = relay.var("number", shape=(number_of_axes,), dtype="int64")
    bounds = {"begin": [0] * number_of_axes, "strides": [1] * number_of_axes, "mode": "end", **changes}
    begin, strides = (relay.const(np.array(bounds[name], "int64")) for name in ("begin", "strides"))
    return module(
        rows, number, relay.nn.relu(dynamic.strided_slice(rows, begin, number, strides, bounds["mode"]))
    )


def test_any_number():
    after, report = apply(MakeDetectionStatic("padded"), leading())
    assert not refusals(report)
    matrix, call = np.random.default_rng(0).random((7, 3)).astype("float32"), runner(after)
    for number in (0, 1, 6, 7, 8, 100, -1, -7, -8, -100):
        found, count = call(matrix, np.array([number]))
        expected = matrix[:number]
        assert found.shape == matrix.shape and count == len(expected), number
        np.testing.assert_array_equal(found[:count], expected)
        assert not found[count:].any()


REFUSED = {
    "from the second row on": {"begin": [1]},
    "every other row": {"strides": [2]},
    "several axes": {"number_of_axes": 2},
    "a size": {"mode": "size"},
    "unknown rows": {"data": (relay.Any(), 3)},
}


@pytest.mark.filterwarnings("ignore:MakeDetectionStatic")
@pytest.mark.parametrize("case", REFUSED)
def test_others_stay_dynamic(case):
    after, report = apply(MakeDetectionStatic("padded"), leading(**REFUSED[case]))
    assert is_dynamic(relay.transform.InferType()(after)["main"].ret_type) and refusals(report)
