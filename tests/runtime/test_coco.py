"""Masks as COCO's dicts, of tensors of every kind."""

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

from topi_ext.encode_masks import reference
from tvm_passes.runtime import coco_masks

import tvm

SIZE = 30, 40
IMAGES = np.random.default_rng(0).integers(0, 2, (5, *SIZE)).astype("uint8")
IMAGES[0], IMAGES[1] = 0, 1
AS = {"torch": torch.from_numpy, "numpy": lambda array: array, "tvm": tvm.nd.array}


@pytest.mark.parametrize("kind", AS)
def test_as_pycocotools(kind):
    found = coco_masks(AS[kind](reference.encoded(IMAGES, capacity=2000)), np.array(SIZE))
    assert found == [coco.encode(np.asfortranarray(image)) for image in IMAGES]


def test_rows_of_a_larger_array():
    array = np.repeat(reference.encoded(IMAGES, capacity=2000), 2, axis=0)[::2]
    assert coco_masks(array, SIZE) == coco_masks(array.copy(), SIZE)
    assert coco_masks(array[:0], SIZE) == []


def test_masks_that_did_not_fit():
    with pytest.raises(ValueError, match="3 of 5 masks take more than 9 bytes, the first is 2"):
        coco_masks(reference.encoded(IMAGES, capacity=9), SIZE)


@pytest.mark.parametrize("wrong", [IMAGES, IMAGES[0].astype("float32"), [b"1"]])
def test_what_are_no_encoded_masks(wrong):
    with pytest.raises(TypeError, match=r"must be a uint8 tensor \(N, capacity\)"):
        coco_masks(wrong, SIZE)
