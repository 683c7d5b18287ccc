"""Detectors of torchvision in Relax, beside what torchvision finds."""

import copy

import numpy as np
import pytest
import torch
from torchvision.models import detection
from torchvision.models.detection import roi_heads

import frontends.relax
from frontends.relax import ImportFailure, _operators
from frontends.relax.from_pytorch import OfOneImage
from tests.relax.detectors import KINDS, detector, found_by_torchvision, image
from tests.relax.modules import QUICK, compiled, run
from topi_ext.batched_nms import reference
from tvm_passes.relax import convolution_pipeline


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_shapes_find_what_torchvision_finds(kind):
    model = detector(kind)
    with torch.no_grad():
        *results, count = OfOneImage(model)(image()).values()
    expected = found_by_torchvision(model)  # which has its own methods again
    assert 5 < count == len(expected[0]) < len(results[0])
    for mine, theirs in zip(results, expected, strict=True):
        # Not to the bit: a product of matrices with more rows may round otherwise.
        np.testing.assert_allclose(mine[:count], theirs, rtol=1e-5, atol=1e-5)
        assert len(mine) == (30 if kind == "retinanet" else 20) and not mine[count:].any()


@pytest.mark.parametrize(("kind", "passes"), [("both", True), ("fcos", True), ("ssd", False)])
def test_in_relax_they_are_found_too(kind, passes):
    model = detector(kind)
    module = frontends.relax.from_pytorch(model, image())
    if passes:
        module = convolution_pipeline(QUICK)(module)
    executable = compiled(module, QUICK)
    *results, count = run(executable, [image().numpy()])
    expected = found_by_torchvision(model)
    assert 5 < count == len(expected[0]) < len(results[0])
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine[:count], theirs, atol=1e-3, rtol=1e-3)
        assert not mine[count:].any()


class OwnRetinaNet(detection.RetinaNet):
    def postprocess_detections(self, *arguments):
        return super().postprocess_detections(*arguments)


class OwnHeads(roi_heads.RoIHeads):
    def postprocess_detections(self, *arguments):
        return super().postprocess_detections(*arguments)


def own_heads(model):
    model.roi_heads.__class__ = OwnHeads
    return model


def own_retinanet(model):
    model.__class__ = OwnRetinaNet
    return model


@pytest.mark.parametrize("kind, change", [("retinanet", own_retinanet), ("faster", own_heads)])
def test_methods_of_ones_own_are_not_replaced(kind, change):
    with pytest.raises(ImportFailure, match=r"has its own postprocess_detections, of .*test_detectors"):
        frontends.relax.from_pytorch(change(detector(kind)), image())


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_made_is_on_the_device_of_the_image(kind, monkeypatch):
    """Not on the CPU, with which other devices do not mix."""
    suppress = _operators.batched_nms

    def suppress_on_one_device(*arguments):
        assert {each.device.type for each in arguments if isinstance(each, torch.Tensor)} == {"meta"}
        return suppress(*arguments)

    monkeypatch.setattr(_operators, "batched_nms", suppress_on_one_device)
    model = copy.deepcopy(detector(kind)).to("meta")  # without the anchors that detectors share
    with torch.no_grad():
        results = OfOneImage(model)(image().to("meta")).values()
    assert {each.device.type for each in results} == {"meta"}


def test_the_best_are_kept_where_there_are_more():
    model = detector("faster")
    model.roi_heads.score_thresh = 0.1
    with torch.no_grad():
        *results, count = OfOneImage(model)(image()).values()
    expected = found_by_torchvision(model)
    assert count == 20 == len(expected[0])
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_nothing_found_is_a_count_of_zero():
    model = detector("ssd")
    model.score_thresh = 1.0
    with torch.no_grad():
        *results, count = OfOneImage(model)(image()).values()
    assert count == 0 and not any(each.any() for each in results)


def test_the_model_stays_in_training():
    model = detector("retinanet").train()
    model.backbone.eval()
    with pytest.raises(ImportFailure, match="one image, 3xHxW, float32"):
        frontends.relax.from_pytorch(model, image()[None])
    frontends.relax.from_pytorch(model, image())
    assert model.training and model.head.training and not model.backbone.training


def test_the_operator_of_torch_is_as_the_oracle():
    boxes, scores = torch.rand(50, 4).cumsum(1), torch.rand(50)
    ids = torch.randint(0, 3, (50,))
    options = {"score_threshold": 0.2, "max_output_size": 30}
    indices, count = frontends.relax.batched_nms(boxes, scores, ids, 0.4, **options)
    expected = reference.batched_nms(boxes.numpy(), scores.numpy(), ids.numpy(), 0.4, **options)
    np.testing.assert_array_equal(indices, expected[0])
    assert count == expected[1]
