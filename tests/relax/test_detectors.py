"""Detectors of torchvision in Relax, beside what torchvision finds."""

import numpy as np
import pytest
import torch
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import mobilenet_backbone

import frontends.relax
from frontends.relax import ImportFailure, _rcnn
from frontends.relax.from_pytorch import OfOneImage
from tests.relax.modules import LLVM, compiled, run
from topi_ext.batched_nms import reference

CLASSES = 5


def detector(kind):
    """A small one, whose random weights find something."""
    torch.manual_seed(0)
    backbone = mobilenet_backbone(
        backbone_name="mobilenet_v3_small", weights=None, fpn=True, returned_layers=[1, 2]
    )
    anchors = detection.rpn.AnchorGenerator(((8, 16), (16, 32), (32, 64)), ((0.5, 1.0, 2.0),) * 3)
    options = {"min_size": 64, "max_size": 96, "box_score_thresh": 0.05, "box_detections_per_img": 20}
    options.update({f"rpn_{when}_nms_top_n_test": 40 for when in ("pre", "post")})
    if kind is detection.MaskRCNN:
        options["mask_head"] = detection.mask_rcnn.MaskRCNNHeads(256, (256,), 1)
    model = kind(backbone, CLASSES, rpn_anchor_generator=anchors, **options)
    heads = model.rpn.head.cls_logits, model.rpn.head.bbox_pred
    for module in (*heads, model.roi_heads.box_predictor.cls_score, model.roi_heads.box_predictor.bbox_pred):
        torch.nn.init.normal_(module.weight, std=0.3)
    return model.eval()


def image():
    return torch.rand(3, 50, 70, generator=torch.Generator().manual_seed(1))


KINDS = {"faster": detection.FasterRCNN, "mask": detection.MaskRCNN}
NAMES = ("boxes", "scores", "labels", "masks")


def found_by_torchvision(model):
    with torch.no_grad():
        (found,) = model([image()])
    return [found[name].numpy() for name in NAMES if name in found]


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_shapes_find_what_torchvision_finds(kind):
    model = detector(KINDS[kind])
    with _rcnn.static(model) as counts, torch.no_grad():
        *results, count = OfOneImage(model, counts.pop)(image())
    expected = found_by_torchvision(model)  # which has its own methods again
    assert 5 < count == len(expected[0])
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(mine[:count], theirs)
        assert len(mine) == model.roi_heads.detections_per_img and not mine[count:].any()


def test_in_relax_they_are_found_too():
    model = detector(detection.MaskRCNN)
    executable = compiled(frontends.relax.from_pytorch(model, image()), LLVM)
    *results, count = run(executable, [image().numpy()])
    expected = found_by_torchvision(model)
    assert 5 < count == len(expected[0])
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine[:count], theirs, atol=2e-3, rtol=1e-3)
        assert not mine[count:].any()


def test_the_model_stays_in_training():
    model = detector(detection.FasterRCNN).train()
    with pytest.raises(ImportFailure, match="one image, 3xHxW, float32"):
        frontends.relax.from_pytorch(model, image()[None])
    frontends.relax.from_pytorch(model, image())
    assert model.training and model.rpn.training


def test_other_models_are_refused():
    with pytest.raises(ImportFailure, match="Linear is none of the detectors that can be imported"):
        frontends.relax.from_pytorch(torch.nn.Linear(2, 2), image())


def test_the_operator_of_torch_is_as_the_oracle():
    boxes, scores = torch.rand(50, 4).cumsum(1), torch.rand(50)
    ids = torch.randint(0, 3, (50,))
    indices, count = torch.ops.topi_ext.batched_nms(boxes, scores, ids, 0.4, 0.2, 30)
    expected = reference.batched_nms(
        boxes.numpy(), scores.numpy(), ids.numpy(), 0.4, score_threshold=0.2, max_output_size=30
    )
    np.testing.assert_array_equal(indices, expected[0])
    assert count == expected[1]
