"""The NMS of exported YOLO networks: an offset relative to the image for each class, padded outputs."""

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_onnx, from_pytorch
from tests.helpers import apply, refusals, runner
from tests.ops.detections import clustered_detections
from tvm_passes import MakeDetectionStatic, default_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

SIZE, CLASSES, EXTRAS, N, MOST = 640, 5, 3, 90, 20


class Export(torch.nn.Module):
    """What follows the head of a network, which is the identity here: (1, 4 + classes + extras, N)."""

    def __init__(self, classes_apart=True, extras=EXTRAS, of_image=1.0):
        super().__init__()
        self.classes_apart, self.extras, self.of_image = classes_apart, extras, of_image

    def forward(self, image, head):
        boxes, scores, extras = head.transpose(1, 2).split([4, CLASSES, self.extras], dim=2)
        scores, classes = scores.max(dim=-1)
        found = head.new_zeros(1, MOST, 6 + self.extras)
        box, score, ids, extra = boxes[0], scores[0], classes[0], extras[0]
        mask = score > 0.3
        box, score, ids, extra = box[mask], score[mask], ids[mask], extra[mask]
        size = torch._shape_as_tensor(image)[2:].max().to(box.dtype)
        shifted = (box / size) * (1 / CLASSES)
        if self.classes_apart:
            offsets = ids.view(ids.shape[0], 1).expand(ids.shape[0], 4)
            shifted = torch.cat((shifted + offsets * (self.of_image / CLASSES), shifted[:, 4:]), dim=-1)
        kept = torchvision.ops.nms(shifted, score, 0.5)[:MOST]
        parts = [box[kept], score[kept].view(-1, 1), ids[kept].view(-1, 1).to(found.dtype), extra[kept]]
        rows = torch.cat(parts, dim=-1)
        width = rows.shape[-1]
        padding = (0, (MOST - rows.shape[0]) * width)
        found[0] = torch.nn.functional.pad(rows.reshape(-1), padding).reshape(MOST, width)
        return found, image[0, :, 0, 0]


def inputs(seed=0, scale=1.0, extras=EXTRAS):
    boxes, scores, ids = clustered_detections(N, CLASSES, seed)
    head = np.zeros((1, 4 + CLASSES + extras, N), "float32")
    head[0, :4] = np.clip(boxes, 0, SIZE).T
    head[0, 4:][ids % CLASSES, np.arange(N)] = scores * scale
    head[0, 4 + CLASSES :] = np.random.default_rng(seed).random((extras, N))
    return np.zeros((1, 3, SIZE, SIZE), "float32"), head


def imported(model, frontend, tmp_path):
    examples = tuple(map(torch.from_numpy, inputs(extras=model.extras)))
    if frontend == "pytorch":
        mod, params = from_pytorch(model, examples)
    else:
        path = tmp_path / "export.onnx"
        torch.onnx.export(model, examples, path, input_names=["image", "head"], opset_version=17)
        mod, params = from_onnx(path)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


def nms_of(mod):
    (nms,) = (node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms")
    return nms


def is_class_aware(mod):
    ids = nms_of(mod).args[2]
    while op_name(ids) in ("cast", "take"):
        ids = ids.args[0]
    return op_name(ids) not in ("zeros", "zeros_like") and not isinstance(ids, relay.Constant)


MODELS = {
    "class-aware": lambda: Export(),
    "without extras": lambda: Export(extras=0),
    "agnostic": lambda: Export(classes_apart=False),
}


@pytest.mark.parametrize("frontend", ["pytorch", "onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_classes_are_compared_and_all_is_static(name, frontend, tmp_path):
    model = MODELS[name]().eval()
    mod, _ = apply(default_pipeline(), imported(model, frontend, tmp_path))
    assert is_class_aware(mod) == (name != "agnostic")
    assert "argwhere" not in [op_name(node) for node in Graph(mod["main"]).nodes]
    after = relay.transform.InferType()(apply(MakeDetectionStatic("padded"), mod)[0])
    nodes = (node for node in Graph(after["main"]).nodes if not isinstance(node, tvm.ir.Op))
    assert not any(is_dynamic(node.checked_type) for node in nodes)
    compute, numbers = runner(after), set()
    for seed, scale in enumerate((1, 0.7, 0.4, 0.1)):
        arrays = inputs(seed, scale, model.extras)
        wanted = model(*map(torch.from_numpy, arrays))[0].numpy()
        found, _ = compute(*arrays)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        numbers.add(int((wanted[0, :, 4] > 0).sum()))
    assert {0, MOST} <= numbers and len(numbers) > 2


@pytest.mark.parametrize("frontend", ["pytorch", "onnx"])
def test_an_offset_smaller_than_the_image_is_refused(frontend, tmp_path):
    model = Export(of_image=0.5).eval()
    mod, report = apply(default_pipeline(), imported(model, frontend, tmp_path))
    assert not is_class_aware(mod)
    assert "an offset of 320.0 may let boxes of different classes overlap" in refusals(report)
