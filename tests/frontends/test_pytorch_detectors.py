"""from_pytorch of detectors: whole or inside a model, and what is done with each detection."""

from typing import Optional

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.detection import roi_heads, transform

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import assert_computes, names, numbers
from tests.helpers import ops
from tests.models.zoo import detection_model, random_image
from tests.ops.objects import heatmaps, objects
from tvm_passes.engine.graph import Graph

from tvm import relay


class Detecting(nn.Module):
    """A detector inside another model, which takes and returns tensors."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, image):
        found = self.detector([image])
        if torch.jit.is_scripting():
            return found[1][0]["boxes"]
        return found[0]["boxes"]


class RetinaNet(nn.Module):
    """A detector by its name, and by what it takes and returns, that takes no time."""

    def forward(self, images: list[torch.Tensor], targets: Optional[list[dict[str, torch.Tensor]]] = None):
        found = [{"boxes": image * 2} for image in images]
        if torch.jit.is_scripting():
            return {"loss": images[0].sum()}, found
        return found


@pytest.mark.parametrize("name", ["maskrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large"])
def test_a_scripted_detector(name):
    detector = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None).eval()
    reason = rf"a scripted {type(detector).__name__} .* pass the nn\.Module that .*, or a traced one"
    with pytest.raises(ImportFailure, match=reason):
        from_pytorch(torch.jit.script(detector), torch.rand(3, 320, 320))


def test_a_scripted_detector_inside_a_model():
    for model in (Detecting(torch.jit.script(RetinaNet())), torch.jit.script(Detecting(RetinaNet()))):
        with pytest.raises(ImportFailure, match="a scripted RetinaNet "):
            from_pytorch(model, torch.rand(3, 8, 8))


def test_a_traced_detector(tmp_path):
    image = torch.rand(3, 8, 8)
    traced = torch.jit.trace(Detecting(RetinaNet()), image)
    torch.jit.save(traced, tmp_path / "traced.pt")
    for model in (traced, nn.Sequential(traced), torch.jit.load(tmp_path / "traced.pt")):
        assert_computes(model, image)


@pytest.fixture(scope="module")
def mask_rcnn():
    return detection_model("maskrcnn_resnet50_fpn", min_size=128, max_size=128)


@pytest.mark.slow
def test_a_batch_of_one_and_an_image_differ_in_the_input_alone(mask_rcnn):
    image, _ = from_pytorch(mask_rcnn, random_image())
    batch, _ = from_pytorch(mask_rcnn, random_image()[None])
    assert names(image) == names(batch)
    assert [len(mod["main"].params[0].checked_type.shape) for mod in (image, batch)] == [3, 4]


class Pasting(nn.Module):
    def forward(self, masks, boxes):
        return transform.paste_masks_in_image(masks, boxes, (20, 30))


class FindingKeypoints(nn.Module):
    def forward(self, maps, rois):
        places, scores = roi_heads.keypointrcnn_inference(maps, [rois])
        return places[0], scores[0]


@pytest.mark.parametrize(
    "model, operator, arrays",
    [
        (Pasting(), "topi_ext.paste_masks", objects(4, (20, 30), side=7)),
        (FindingKeypoints(), "topi_ext.heatmaps_to_keypoints", heatmaps(4, 3, (7, 7), image_size=(20, 30))),
    ],
)
def test_what_is_done_with_each_detection_is_one_operator(model, operator, arrays):
    functions = transform.paste_masks_in_image, roi_heads.heatmaps_to_keypoints
    tensors = tuple(map(torch.from_numpy, arrays))
    mod, params = from_pytorch(model, tensors)
    assert [name for name in ops(mod) if name.startswith("topi_ext.")] == [operator]
    assert not any(isinstance(node, relay.Let) for node in Graph(mod["main"]).nodes)
    assert functions == (transform.paste_masks_in_image, roi_heads.heatmaps_to_keypoints)
    expected = model(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, tensor in zip(numbers(mod, params, *tensors), expected):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_several_images(mask_rcnn):
    mod, _ = from_pytorch(mask_rcnn, [random_image(96, 128), random_image(128, 96)])
    assert names(mod)[0] == ["images0", "images1"]
    assert names(mod)[1][2:5] == ["output0.labels", "output0.masks", "output1.boxes"]
