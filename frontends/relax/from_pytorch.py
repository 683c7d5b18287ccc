"""Imports torchvision's detectors into Relax through `torch.export`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

import tvm
from tvm.relax.frontend.torch import from_exported_program

from ..errors import ImportFailure
from . import _rcnn
from ._operators import converters

RESULTS = ("boxes", "scores", "labels", "masks")


class OfOneImage(torch.nn.Module):
    """A detector of one image: its results in order, then their number, which `count` knows afterwards."""

    def __init__(self, model: torch.nn.Module, count: Callable[[], Tensor]) -> None:
        super().__init__()
        self.model, self._count = model, count

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        (found,) = self.model([image])
        return (*(found[name] for name in RESULTS if name in found), self._count())


def from_pytorch(model: torch.nn.Module, example: Tensor) -> tvm.IRModule:
    """Import a detector of torchvision: Faster or Mask R-CNN.

    Convention
    ----------
    `main` takes one image (3xHxW) of the size of the example, and returns a tuple: `boxes`, `scores`,
    `labels`, for Mask R-CNN `masks` (Kx1xHxW), and the number of detections, int32. All but the last have as
    many rows as there can be detections; those beyond the number are zeros.

    Every detection is torchvision's, in its order, but where torchvision itself rounds: it moves boxes of
    different classes apart before it suppresses, and `topi_ext.batched_nms` does not.

    Parameters
    ----------
    model : torch.nn.Module
        It is imported in evaluation mode, and left as it was.
    example : torch.Tensor
        An image, 3xHxW, float32.

    Returns
    -------
    mod : tvm.IRModule
        All shapes are static; the weights are constants. Compile it with the target in scope:
        `with target: tvm.compile(mod, target=target)`.
    """
    if not isinstance(model, GeneralizedRCNN) or not hasattr(model.roi_heads, "postprocess_detections"):
        raise ImportFailure(
            f"{type(model).__name__} is none of the detectors that can be imported: torchvision's FasterRCNN "
            "and MaskRCNN"
        )
    if model.roi_heads.has_keypoint():
        raise ImportFailure("KeypointRCNN cannot be imported yet")
    if example.dim() != 3 or example.dtype != torch.float32:
        raise ImportFailure(f"the example must be one image, 3xHxW, float32, not {list(example.shape)}")
    was_training = model.training
    try:
        with _rcnn.static(model.eval()) as counts, torch.no_grad():
            program = torch.export.export(OfOneImage(model, counts.pop), (example,), strict=False)
    finally:
        model.train(was_training)
    return from_exported_program(program, custom_convert_map=converters())
