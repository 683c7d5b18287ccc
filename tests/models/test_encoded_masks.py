"""A Mask R-CNN whose masks are run lengths, from PyTorch to COCO's dicts."""

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

import tvm_passes
from frontends import from_pytorch
from tests.helpers import quick
from tests.models.zoo import random_image, tiny_mask_rcnn

from tvm import relay

SIZE = 64, 80


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["dynamic", "padded"])
def test_they_are_those_of_its_images(outputs):
    model = tiny_mask_rcnn(min_size=min(SIZE), max_size=max(SIZE))
    image = random_image(seed=5)[:, : SIZE[0], : SIZE[1]].contiguous()
    mod, params = from_pytorch(model, torch.zeros_like(image))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)

    def detections(masks):
        after = tvm_passes.detection_pipeline("llvm", outputs=outputs, masks=masks)(mod)
        return tvm_passes.runtime.compile(after, quick(), cut=outputs == "padded")(image.numpy())

    pasted, encoded = detections("pasted"), detections("encoded")
    np.testing.assert_array_equal(encoded["boxes"], pasted["boxes"])
    assert len(encoded["boxes"]) > 10
    expected = [coco.encode(np.asfortranarray(each >= 0.5)) for each in pasted["masks"][:, 0]]
    assert tvm_passes.runtime.coco_masks(encoded["masks"], SIZE) == expected
    assert len({each["counts"] for each in expected}) > 10
