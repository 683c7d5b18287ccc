"""Masks as COCO's dicts, of tensors of every kind."""

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

from topi_ext.encode_masks import reference
from tvm_passes.batch.table import detections_schema, table_of
from tvm_passes.runtime import coco_masks
from tvm_passes.runtime.coco import RunLengths, _found_in, _taken_together

import tvm

SIZE = 30, 40
IMAGES = np.random.default_rng(0).integers(0, 2, (5, *SIZE)).astype("uint8")
IMAGES[0], IMAGES[1] = 0, 1
AS = {"torch": torch.from_numpy, "numpy": lambda array: array, "tvm": tvm.nd.array}


@pytest.mark.parametrize("kind", AS)
def test_as_pycocotools(kind):
    found = coco_masks(AS[kind](reference.encoded(IMAGES, capacity=2000)), np.array(SIZE))
    assert found == [coco.encode(np.asfortranarray(image)) for image in IMAGES]


@pytest.mark.parametrize("capacity", [9, 2000])
def test_a_gpu_takes_run_lengths_together_as_the_host_does(capacity):
    encoded = reference.encoded(IMAGES, capacity=capacity)
    for found, wanted in zip(_taken_together(torch.from_numpy(encoded)), _found_in(encoded)):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.gpu
def test_masks_on_a_gpu():
    encoded = torch.from_numpy(reference.encoded(IMAGES, capacity=2000)).cuda()
    assert coco_masks(encoded, SIZE) == coco_masks(encoded.cpu(), SIZE)
    assert coco_masks(encoded.T.contiguous().T[:2], SIZE) == coco_masks(encoded[:2].cpu(), SIZE)
    assert coco_masks(encoded[:0], SIZE) == []
    with pytest.raises(ValueError, match="3 of 5 masks take more than 9 bytes, the first is 2"):
        coco_masks(torch.from_numpy(reference.encoded(IMAGES, capacity=9)).cuda(), SIZE)


def test_rows_of_a_larger_array():
    array = np.repeat(reference.encoded(IMAGES, capacity=2000), 2, axis=0)[::2]
    assert coco_masks(array, SIZE) == coco_masks(array.copy(), SIZE)
    assert coco_masks(array[:0], SIZE) == []


def test_masks_that_did_not_fit():
    with pytest.raises(ValueError, match="3 of 5 masks take more than 9 bytes, the first is 2"):
        coco_masks(reference.encoded(IMAGES, capacity=9), SIZE)


@pytest.mark.parametrize("wrong", [IMAGES, IMAGES[0].astype("float32"), [b"1"], IMAGES[0][:, :0]])
def test_what_are_no_encoded_masks(wrong):
    with pytest.raises(TypeError, match=r"must be a uint8 tensor \(N, capacity\)"):
        coco_masks(wrong, SIZE)


@pytest.mark.parametrize("spare", [0, 1, 60])
def test_run_lengths_are_taken_apart_and_stay_together(spare):
    strings = [each["counts"] for each in coco_masks(reference.encoded(IMAGES, capacity=2000), SIZE)]
    encoded = np.zeros((len(strings), max(map(len, strings)) + spare), "uint8")
    for row, string in zip(encoded, strings):
        row[: len(string)] = np.frombuffer(string, "uint8")
    found = RunLengths.of(encoded)
    assert len(found) == len(strings) and found == strings and found[-1] == strings[-1]
    assert [*found[1:]] == strings[1:] and [*found[:-1]] == strings[:-1] and not len(found[len(found) :])
    with pytest.raises(IndexError):
        found[len(strings)]
    row = {field.name: None for field in detections_schema()}
    rows = [{**row, "masks": masks} for masks in (found[:1], found[1:1], None, found[1:])]
    wanted = [None if each["masks"] is None else [*each["masks"]] for each in rows]
    assert table_of(rows, detections_schema()).column("masks").to_pylist() == wanted
