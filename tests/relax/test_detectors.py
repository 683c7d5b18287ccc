"""Detectors of torchvision in Relax, beside what torchvision finds."""

import copy

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import detection
from torchvision.models.detection import roi_heads
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import frontends.relax
from frontends.relax import ImportFailure, _operators
from frontends.relax.from_pytorch import OfOneImage
from tests.relax.detectors import CHANNELS, KINDS, detector, found_by_torchvision, image
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


class Suppressed(nn.Module):
    def forward(self, boxes, scores):
        return frontends.relax.nms(boxes, scores, 0.5)


def test_scores_of_minus_infinity_take_part_without_a_threshold():
    """As in torchvision's own; NaN comes first there, too."""
    boxes = torch.arange(6.0)[:, None] * 3 + torch.tensor([0.0, 0, 2, 2])
    scores = torch.tensor([-torch.inf, 0.5, -torch.inf, torch.nan, 0.25, torch.inf])
    expected = torchvision.ops.nms(boxes, scores, 0.5)
    mod = frontends.relax.from_pytorch(Suppressed(), (boxes, scores))
    for kept, count in (Suppressed()(boxes, scores), run(compiled(mod, QUICK), [boxes, scores])):
        np.testing.assert_array_equal(kept, expected)
        assert count == 6


class Levels(nn.Module):
    out_channels = CHANNELS

    def __init__(self, strides):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, CHANNELS, 7, stride, 3) for stride in strides])

    def forward(self, images):
        return {str(level): conv(images).relu() for level, conv in enumerate(self.convolutions)}


def with_levels(strides):
    """A Faster R-CNN with regions of several levels."""
    model = detector("faster")
    torch.manual_seed(0)
    model.backbone = Levels(strides)
    model.rpn.anchor_generator = AnchorGenerator(((8, 16, 32),) * len(strides), ((0.5, 2.0),) * len(strides))
    names = list(map(str, range(len(strides))))
    pool = MultiScaleRoIAlign(names, 3, 2, canonical_scale=24, canonical_level=4)
    model.roi_heads.box_roi_pool, model.roi_heads.score_thresh = pool, 0.25
    return model


@pytest.mark.parametrize("strides", [(4, 8, 16), (4, 16), (8, 8), (4, 8, 8)])
def test_the_levels_are_those_from_the_first_scale_to_the_last(strides):
    model = with_levels(strides)
    expected = found_by_torchvision(model)
    model.roi_heads.box_roi_pool.scales = None  # found anew
    with torch.no_grad():
        *results, count = OfOneImage(model)(image()).values()
    assert count == len(expected[0]) > 5
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine[:count], theirs, rtol=1e-5, atol=1e-5)


def test_levels_of_which_torchvision_pools_none_are_refused():
    with pytest.raises(ImportFailure, match="pools no region unless the last is the smallest"):
        frontends.relax.from_pytorch(with_levels((16, 8)), image())


def test_the_scales_are_those_of_the_first_image_that_was_seen():
    model = with_levels((8, 16))
    with torch.no_grad():
        model([torch.rand(3, 1, 1)])
        low = torch.rand(3, 3, 60)
        *results, count = OfOneImage(model)(low).values()
        (expected,) = model([low])
    assert count == len(expected["boxes"])
    np.testing.assert_allclose(results[0][:count], expected["boxes"], rtol=1e-5, atol=1e-5)


def test_candidates_that_are_nan_take_no_place_of_others():
    model, seen = detector("ssd"), image()
    seen[0, 10:14, 20] = torch.nan
    with torch.no_grad():
        *results, count = OfOneImage(model)(seen).values()
        (expected,) = model([seen])
    assert count == len(expected["boxes"]) > 5
    np.testing.assert_allclose(results[0][:count], expected["boxes"], rtol=1e-5, atol=1e-5)


def test_there_are_no_more_rows_than_candidates():
    model = detector("faster")
    model.rpn._post_nms_top_n["testing"] = model.roi_heads.detections_per_img = 10**6
    with torch.no_grad():
        boxes, *_, count = OfOneImage(model)(image()).values()
    expected = found_by_torchvision(model)
    assert len(boxes) == 80 * 4  # 40 proposals of each level, and classes
    np.testing.assert_allclose(boxes[:count], expected[0], rtol=1e-5, atol=1e-5)


def test_results_of_ones_own_are_refused():
    class WithFeatures(detection.RetinaNet):
        def forward(self, images, targets=None):
            return [{**found, "features": images[0].mean()} for found in super().forward(images)]

    model = detector("retinanet")
    model.__class__ = WithFeatures
    with pytest.raises(ImportFailure, match="WithFeatures also returns features"):
        frontends.relax.from_pytorch(model, image())
