"""Imports PyTorch models into Relax through `torch.export`, torchvision's detectors included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

import tvm
from tvm.relax.frontend.torch import from_exported_program

from .._torch_module import in_evaluation, tensors_of
from ..errors import ImportFailure, gist
from . import _one_stage, _rcnn
from ._operators import converters
from ._promotion import write_casts

RESULTS = ("boxes", "scores", "labels", "masks", "keypoints", "keypoints_scores")
DETECTORS = {GeneralizedRCNN: _rcnn, **dict.fromkeys(_one_stage.KINDS, _one_stage)}


class OfOneImage(torch.nn.Module):
    """A detector of one image: its results in order, then their number."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        with _fixed_shapes(self.model) as counts:
            (found,) = self.model([image])
        return (*(found[name] for name in RESULTS if name in found), *counts)


def from_pytorch(model: torch.nn.Module, example_inputs: Tensor | Sequence[Tensor]) -> tvm.IRModule:
    """Import a PyTorch model into Relax.

    Convention
    ----------
    The inputs of `main` are the tensors of `example_inputs`, with their shapes and types. It returns what the
    model returns: a tensor, or a tuple of tensors.

    A detector of torchvision (Faster, Mask and Keypoint R-CNN, RetinaNet, FCOS, SSD) takes one image (3xHxW)
    and returns a tuple: `boxes`, `scores`, `labels`, for Mask R-CNN `masks` (Kx1xHxW), for Keypoint R-CNN
    `keypoints` and `keypoints_scores`, and the number of detections, int32. All but the last have as many
    rows as there can be detections; those beyond the number are zeros. Every detection is torchvision's, in
    its order, but where torchvision itself rounds: it moves boxes of different classes apart before it
    suppresses, and `topi_ext.batched_nms` does not.

    In other models, `torchvision.ops.roi_align` is `topi_ext.roi_align`. torchvision's `nms` and
    `batched_nms`, whose results have as many rows as are kept, are refused: models call those of this module.

    Parameters
    ----------
    model : torch.nn.Module
        It is imported in evaluation mode, and left as it was.
    example_inputs : torch.Tensor, or a tuple or list of them
        What the model is called with; for a detector, an image, 3xHxW, float32.

    Returns
    -------
    mod : tvm.IRModule
        All shapes are static; the weights are constants. Compile it with the target in scope:
        `with target: tvm.compile(mod, target=target)`.

    Raises
    ------
    ImportFailure
        If torch cannot export the model, or an operator has no equivalent in Relax.
    """
    tensors = tensors_of(example_inputs)
    name = type(model).__name__
    if isinstance(model, tuple(DETECTORS)):
        if len(tensors) > 1 or tensors[0].dim() != 3 or tensors[0].dtype != torch.float32:
            given = ", ".join(f"{list(each.shape)} {each.dtype}" for each in tensors)
            raise ImportFailure(f"the example of {name} must be one image, 3xHxW, float32, not {given}")
        model = OfOneImage(model)
    try:
        with in_evaluation(model), torch.no_grad():
            program = torch.export.export(model, tensors, strict=False).run_decompositions()
    except GuardOnDataDependentSymNode as error:
        raise ImportFailure(
            f"a shape or a branch of {name} depends on data; if it is how many boxes torchvision's nms or "
            "batched_nms keeps, call frontends.relax.nms or batched_nms, which return a fixed number of rows "
            "and a count"
        ) from error
    except Exception as error:
        raise ImportFailure(f"torch cannot export {name}: {gist(error)}") from error
    write_casts(program)
    try:
        return from_exported_program(
            program,
            unwrap_unit_return_tuple=True,
            custom_convert_map=converters(),
            run_ep_decomposition=False,  # it is done
        )
    except ImportFailure:
        raise
    except Exception as error:
        raise ImportFailure(f"Relax has no equivalent of a part of {name}: {gist(error)}") from error


@contextlib.contextmanager
def _fixed_shapes(model: torch.nn.Module) -> Iterator[list[Tensor]]:
    """While it lasts, a detector has fixed shapes; yields the list that gets the number of detections."""
    (module,) = (module for kind, module in DETECTORS.items() if isinstance(model, kind))
    counts: list[Tensor] = []
    replacements: list[tuple[Any, str, Any]] = module.replacements(model, counts)
    with contextlib.ExitStack() as stack:
        for owner, name, function in replacements:
            stack.enter_context(mock.patch.object(owner, name, function))
        yield counts
