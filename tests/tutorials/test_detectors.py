"""Where the detectors of the tutorials have their weights from, and how detections are told apart."""

import urllib.error

import numpy as np
import torch
from torchvision.models import _api

from tests.models.zoo import random_image
from tutorials import detectors

SMALL = "fasterrcnn_mobilenet_v3_large_320_fpn"


def test_without_a_network_weights_are_random(monkeypatch, capsys):
    def unreachable(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(_api, "load_state_dict_from_url", unreachable)
    image = random_image(96, 112)
    model, names = detectors.detector(SMALL, image, "trained")
    said = capsys.readouterr().out
    assert "no network" in said and "The weights are random" in said
    assert len(names) == 91
    with torch.no_grad():
        found = model([image])[0]
    assert len(found["boxes"]) > 10 and found["boxes"][:, 2].max() <= 112


def test_detections_are_compared_by_class_and_place():
    boxes = np.array([[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60]], "float32")
    expected = {"boxes": boxes, "labels": np.array([1, 2, 3])}
    found = {"boxes": boxes[[1, 0]] + np.float32(0.1), "labels": np.array([2, 5])}
    assert list(detectors.counterparts(expected, found)) == [(1, 0)]
    none = {"boxes": boxes[:0], "labels": np.array([], int)}
    assert list(detectors.counterparts(expected, none)) == list(detectors.counterparts(none, found)) == []
