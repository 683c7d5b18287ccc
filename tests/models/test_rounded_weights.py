"""What rounding the weights of a backbone together is worth."""

import copy

import pytest
import torch

from tests.models.zoo import detection_model, random_image
from tvm_passes.convolution.rounding import rounded_together


@pytest.fixture(scope="module")
def backbone():
    return detection_model("maskrcnn_resnet50_fpn", min_size=192, max_size=256).backbone.double()


@torch.no_grad()
def error(backbone, image, rounded):
    """Of the feature maps, relative, with each convolution's weights rounded."""
    changed = copy.deepcopy(backbone)
    for layer in changed.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.weight.copy_(rounded(layer.weight))
    exact, found = (
        torch.cat([each.flatten() for each in model(image).values()]) for model in (backbone, changed)
    )
    return float((found - exact).norm() / exact.norm())


def test_a_quarter_of_the_error_of_rounded_weights_goes(backbone):
    image = random_image(192, 256, seed=9)[None].double() * 4 - 2

    def together(weight):
        return torch.from_numpy(rounded_together(weight.numpy(), "float16"))

    nearest = error(backbone, image, lambda weight: weight.half())
    assert error(backbone, image, together) < 0.75 * nearest
    assert 1e-4 < nearest < 1e-2
