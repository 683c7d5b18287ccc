"""The detection models as tests use them: small, imported through either frontend, compared with torch."""

import contextlib
import inspect
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torchvision

from frontends import from_onnx, from_pytorch
from tests.models.zoo import detection_model, random_image

from tvm import relay

HEIGHT, WIDTH = 128, 160
OPSET = 16
# Of each proposal and detection, torch computes what a head of a network in full size does.
FEW_REGIONS = {"rpn_post_nms_top_n_test": 200, "box_detections_per_img": 30}


def small_detector(name):
    """One of the zoo, at the images' own size. SSDs have their own, and few classes; R-CNNs, few regions."""
    if name.startswith("ssd"):
        return detection_model(name, num_classes=8)
    few = FEW_REGIONS if "rcnn" in name else {}
    return detection_model(name, min_size=HEIGHT, max_size=WIDTH, **few)


def example(seed=0):
    return random_image(HEIGHT, WIDTH, seed=seed)


def detect(model, image):
    """What torch finds, as arrays by name."""
    with torch.no_grad():
        return {name: value.numpy() for name, value in model([image])[0].items()}


def through_pytorch(model, image=None):
    """The imported module, which takes an image, or as many as there are in a list."""
    mod, params = from_pytorch(model, example() if image is None else image)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


def through_onnx(model):
    """The imported module, which takes a batch of one image."""
    with tempfile.TemporaryDirectory() as folder:
        return from_onnx(export(model, Path(folder) / "detector.onnx"))[0]


FRONTENDS = {"PyTorch": through_pytorch, "ONNX": through_onnx}


def export(model, path, inputs=None, names=None, opset=OPSET):
    """Write a model as ONNX; of a detector, by default for a batch of one, with torchvision's names."""
    inputs = (example()[None],) if inputs is None else tuple(inputs)
    names = names or list(detect(model, example()))
    # By tracing, as older versions of torch do: its newer exporter writes other graphs.
    is_newer = "dynamo" in inspect.signature(torch.onnx.export).parameters
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")  # the tracer's, about sizes that it takes for constant
        torch.onnx.export(
            model,
            inputs,
            str(path),
            opset_version=opset,
            input_names=["image"],
            output_names=names,
            **({"dynamo": False} if is_newer else {}),
        )
    return path


def share_found(found, expected, box=5e-3, score=5e-4, mask=1e-2, keypoint=0.5):
    """How much of what was expected is found, in any order: rounding swaps detections of close scores.

    torch in float32 finds 97% or more of what it finds in float64 within a fifth of these distances.
    """
    hits = [_is_found(found, expected, i, box, score, mask, keypoint) for i in range(len(expected["boxes"]))]
    return np.mean(hits)


def share_matched(found, expected, iou=0.9, score=0.02, least=0.05):
    """How much of what was expected with at least this score is found: class, box and score alike.

    One that is found counts for one that was expected.
    """
    wanted = expected["scores"] > least
    overlaps = torchvision.ops.box_iou(*(torch.from_numpy(each["boxes"]) for each in (expected, found)))
    alike = (
        (overlaps.numpy() >= iou)
        & (expected["labels"][:, None] == found["labels"])
        & (np.abs(expected["scores"][:, None] - found["scores"]) <= score)
    )
    return matched(alike[wanted]) / max(1, wanted.sum())


def matched(alike):
    """How many of the rows find a column that is alike, each one of its own, the first rows first."""
    taken = set()
    for row in alike:
        taken.update([i for i in np.flatnonzero(row) if i not in taken][:1])
    return len(taken)


def _is_found(found, expected, i, box, score, mask, keypoint):
    alike = (
        (found["labels"] == expected["labels"][i])
        & np.isclose(found["scores"], expected["scores"][i], rtol=0, atol=score)
        & np.isclose(found["boxes"], expected["boxes"][i], rtol=0, atol=box).all(axis=1)
    )
    if "masks" in expected and alike.any():
        return np.abs(found["masks"][alike] - expected["masks"][i]).mean(axis=(1, 2, 3)).min() < mask
    if "keypoints" in expected and alike.any():  # rounding swaps places of close values too
        away = np.abs(found["keypoints"][alike] - expected["keypoints"][i]).max(axis=2)
        return ((away < keypoint).mean(axis=1) >= 0.8).any()
    return bool(alike.any())
