"""Whole torchvision models: exported to ONNX, imported, compiled for LLVM, and compared with torch."""

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_onnx
from tests.frontends.onnx_models import compiled
from tests.models.detectors import OPSET, detect, example, export, share_found, small_detector


@pytest.mark.slow
def test_mask_rcnn_computes_what_torch_computes(tmp_path):
    model = small_detector("maskrcnn_resnet50_fpn")
    mod, params = from_onnx(export(model, tmp_path / "maskrcnn.onnx"))
    assert params == {}
    assert list(mod["main"].attrs["input_names"]) == ["image"]

    compute = compiled(mod)
    for seed in (0, 1):  # the second is another picture than it was exported with
        expected = detect(model, example(seed))
        found = dict(zip(mod["main"].attrs["output_names"], compute(example(seed)[None].numpy())))
        assert len(expected["boxes"]) >= 10
        assert abs(len(found["boxes"]) - len(expected["boxes"])) <= 0.05 * len(expected["boxes"])
        assert share_found(found, expected) >= 0.95


def test_classifier(tmp_path):
    torch.manual_seed(0)
    model = torchvision.models.squeezenet1_1(weights=None).eval()
    image = torch.rand(1, 3, 64, 64)
    path = tmp_path / "classifier.onnx"
    torch.onnx.export(model, image, str(path), opset_version=OPSET)
    with torch.no_grad():
        expected = model(image)
    np.testing.assert_allclose(compiled(from_onnx(path)[0])(image.numpy())[0], expected, rtol=1e-4, atol=1e-5)
