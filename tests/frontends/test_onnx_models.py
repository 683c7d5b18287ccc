"""Whole torchvision models: exported to ONNX, imported, compiled for LLVM, and compared with torch."""

import warnings

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_onnx
from tests.frontends.onnx_models import compiled
from tests.models.zoo import detection_model, picture

HEIGHT, WIDTH = 128, 160
DETECTION_OUTPUTS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": ["boxes", "labels", "scores"],
    "maskrcnn_resnet50_fpn": ["boxes", "labels", "scores", "masks"],
}


def export(model, image, path, outputs):
    """Write a model at opset 16, from an example that every size is fixed by."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about sizes that it takes for constant
        torch.onnx.export(
            model, image, str(path), opset_version=16, input_names=["image"], output_names=outputs
        )
    return path


@pytest.fixture(scope="session")
def detector(request, tmp_path_factory):
    """A torchvision detector by name, and where it is exported to."""
    name = request.param
    model = detection_model(name, min_size=HEIGHT, max_size=WIDTH)
    path = tmp_path_factory.mktemp("onnx") / f"{name}.onnx"
    return model, export(model, picture(HEIGHT, WIDTH)[None], path, DETECTION_OUTPUTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("detector", DETECTION_OUTPUTS, indirect=True)
def test_detector(detector):
    model, path = detector
    mod, params = from_onnx(path)
    assert params == {}
    assert list(mod["main"].attrs["input_names"]) == ["image"]
    names = list(mod["main"].attrs["output_names"])

    compute = compiled(mod)
    for seed in (0, 1):  # the second is another picture than it was exported with
        image = picture(HEIGHT, WIDTH, seed=seed)[None]
        with torch.no_grad():
            expected = {name: value.numpy() for name, value in model(image)[0].items()}
        found = dict(zip(names, compute(image.numpy())))
        assert len(expected["boxes"]) > 0
        assert abs(len(found["boxes"]) - len(expected["boxes"])) <= 0.05 * len(expected["boxes"])
        assert np.mean([_is_found(found, expected, i) for i in range(len(expected["boxes"]))]) >= 0.9


def _is_found(found, expected, i):
    """Whether a detection is among those found, wherever: rounding changes the order of equal scores."""
    alike = (
        (found["labels"] == expected["labels"][i])
        & np.isclose(found["scores"], expected["scores"][i], rtol=0, atol=2e-3)
        & np.isclose(found["boxes"], expected["boxes"][i], rtol=0, atol=0.2).all(axis=1)
    )
    if "masks" in expected and alike.any():
        return np.abs(found["masks"][alike] - expected["masks"][i]).mean(axis=(1, 2, 3)).min() < 1e-2
    return alike.any()


def test_classifier(tmp_path):
    torch.manual_seed(0)
    model = torchvision.models.squeezenet1_1(weights=None).eval()
    image = torch.rand(1, 3, 64, 64)
    path = export(model, image, tmp_path / "classifier.onnx", ["logits"])
    with torch.no_grad():
        expected = model(image)
    np.testing.assert_allclose(compiled(from_onnx(path)[0])(image.numpy())[0], expected, rtol=1e-4, atol=1e-5)
