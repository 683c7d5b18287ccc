"""A whole network: exported to ONNX, imported, compiled for LLVM, and compared with torch.

Detectors: tests/models/test_detectors.py.
"""

import numpy as np
import torch
import torchvision

from frontends import from_onnx
from tests.frontends.onnx_models import run
from tests.models.detectors import OPSET


def test_classifier(tmp_path):
    torch.manual_seed(0)
    model = torchvision.models.squeezenet1_1(weights=None).eval()
    image = torch.rand(1, 3, 64, 64)
    path = tmp_path / "classifier.onnx"
    torch.onnx.export(model, image, str(path), opset_version=OPSET)
    with torch.no_grad():
        expected = model(image)
    np.testing.assert_allclose(run(from_onnx(path)[0], image.numpy())[0], expected, rtol=1e-4, atol=1e-5)
