"""Imports PyTorch models into Relax through `torch.export`, torchvision's detectors included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)
from torch.utils._pytree import tree_unflatten
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

import tvm

from .._torch_module import in_evaluation, named_tensors, tensors_of
from ..errors import ImportFailure, gist
from . import _one_stage, _rcnn
from ._decompositions import decompositions
from ._importer import Importer
from ._indices import keep_inside
from ._promotion import write_casts
from ._scalar_indices import KeepScalarIndices

RESULTS = ("boxes", "scores", "labels", "masks", "keypoints", "keypoints_scores")
DEPENDS_ON_DATA = (
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)
DETECTORS = {GeneralizedRCNN: _rcnn, **dict.fromkeys(_one_stage.KINDS, _one_stage)}


class OfOneImage(torch.nn.Module):
    """A detector of one image: its results by name, in order, then their number."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        with _fixed_shapes(self.model) as counts:
            (found,) = self.model([image])
        (count,) = counts
        others = ", ".join(name for name in found if name not in RESULTS)
        if others:
            raise ImportFailure(
                f"{type(self.model).__name__} also returns {others}, whose rows may not be those of the "
                "detections: leave it out"
            )
        return {**{name: found[name] for name in RESULTS if name in found}, "num_detections": count}


def from_pytorch(
    model: torch.nn.Module, example_inputs: Tensor | Sequence[Tensor], dynamic_shapes: Any = None
) -> tvm.IRModule:
    """Import a PyTorch model into Relax.

    Convention
    ----------
    The inputs of `main` are the tensors of `example_inputs`, with their shapes and types. It returns the
    tensors of the model's result, flattened: of a dictionary the values, in their order. One alone is no
    tuple. The function attribute `output_names` has their names, by the same rules as those of
    `frontends.from_pytorch`: the keys of dictionaries, numbers in sequences, with dots between.

    A detector of torchvision (Faster, Mask and Keypoint R-CNN, RetinaNet, FCOS, SSD) takes one image (3xHxW)
    and returns a tuple: `boxes`, `scores`, `labels`, for Mask R-CNN `masks` (Kx1xHxW), for Keypoint R-CNN
    `keypoints` and `keypoints_scores`, and `num_detections`, int32. All but the last have as many rows as
    there can be detections; those beyond the number are zeros. The function attribute `padded_rows` says
    this to `tvm_passes.runtime`, which cuts them with `cut=True`. Every detection is torchvision's, in its
    order but of equal scores, and but where torchvision itself rounds: it moves boxes of different classes
    apart before it suppresses, and `topi_ext.batched_nms` does not.

    In other models, `torchvision.ops.roi_align` is `topi_ext.roi_align`. torchvision's `nms` and
    `batched_nms`, whose results have as many rows as are kept, are refused: models call those of this module.

    Parameters
    ----------
    model : torch.nn.Module
        It is imported in evaluation mode, and left as it was.
    example_inputs : torch.Tensor, or a tuple or list of them
        What the model is called with; for a detector, an image, 3xHxW, float32.
    dynamic_shapes : optional
        Which sizes only the run knows, as `torch.export.export` takes it: ({0: Dim("batch")},) is the batch
        of the only input. What torch has to know of sizes, such as that they are even, and bounds of a `Dim`
        are compared as the network runs. Not for detectors.

    Returns
    -------
    mod : tvm.IRModule
        All sizes but those of `dynamic_shapes` are static; the weights are constants. Compile it with the
        target in scope: `with target: tvm.compile(mod, target=target)`.

    Raises
    ------
    ImportFailure
        If torch cannot export the model, or an operator has no equivalent in Relax; if any value in the model
        would have another shape or type than in torch; if the model changes its buffers as it runs; if a
        detector is inside another model, or has methods of its own where torchvision's depend on data.
    """
    if not isinstance(model, torch.nn.Module):
        raise ImportFailure(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    tensors = tensors_of(example_inputs)
    name = type(model).__name__
    if isinstance(model, tuple(DETECTORS)):
        if len(tensors) > 1 or tensors[0].dim() != 3 or tensors[0].dtype != torch.float32:
            given = ", ".join(f"{list(each.shape)} {each.dtype}" for each in tensors)
            raise ImportFailure(f"the example of {name} must be one image, 3xHxW, float32, not {given}")
        if dynamic_shapes is not None:
            raise ImportFailure(f"{name} is imported for one size of images: leave out dynamic_shapes")
        model = OfOneImage(model)
    else:
        _refuse_detectors_inside(model)
    program = _exported(model, tensors, name, dynamic_shapes)
    _check_results(program, name)
    for part in program.graph_module.modules():  # itself, and the branches of torch.cond
        if isinstance(part, torch.fx.GraphModule):
            keep_inside(part.graph)
            write_casts(part.graph)
    try:
        mod = Importer(program).from_exported_program(
            program,
            keep_params_as_input=False,
            unwrap_unit_return_tuple=True,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    except ImportFailure:
        raise
    except Exception as error:
        raise ImportFailure(f"Relax has no equivalent of a part of {name}: {gist(error)}") from error
    names = _output_names(program)
    attrs: dict[str, Any] = {"output_names": names}
    if isinstance(model, OfOneImage):
        attrs["padded_rows"] = [[0, 0]] * (len(names) - 1)  # the axis of detections, counted by number 0
    mod["main"] = mod["main"].with_attrs(attrs)
    return mod


def _refuse_detectors_inside(model: torch.nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, tuple(DETECTORS)):
            raise ImportFailure(
                f"{type(model).__name__} holds a {type(part).__name__}: import the detector itself, not what "
                "is around it"
            )


def _exported(
    model: torch.nn.Module, tensors: tuple[Tensor, ...], name: str, dynamic_shapes: Any
) -> ExportedProgram:
    """The model as operators of torch that TVM's importer understands."""
    try:
        with in_evaluation(model), torch.no_grad():
            with KeepScalarIndices():
                program = torch.export.export(model, tensors, dynamic_shapes=dynamic_shapes, strict=False)
            decomposed = program.run_decompositions(decompositions())
    except ImportFailure as error:
        reason, _, _ = str(error).partition("While executing")  # which torch adds
        raise ImportFailure(reason) from error
    except DEPENDS_ON_DATA as error:
        raise ImportFailure(
            f"a shape or a branch of {name} depends on data; if it is how many boxes torchvision's nms or "
            "batched_nms keeps, call frontends.relax.nms or batched_nms, which return a fixed number of rows "
            "and a count; if it is where x[index] = y writes, give the index an axis: x[index[None]] = y"
        ) from error
    except Exception as error:
        raise ImportFailure(f"torch cannot export {name}: {_of_sizes(error) or gist(error)}") from error
    _check_decomposed(program, decomposed, name)
    return decomposed


def _of_sizes(error: Exception) -> str | None:
    """What torch asks of open sizes that it was not told, if that is the error."""
    message, of_sizes, _ = str(error).partition("Suggested fixes")
    asked = [line.removeprefix("  - ") for line in message.splitlines() if line.startswith("  - ")]
    if "Constraints violated" not in message or not asked:
        return None
    advice = "; conditions of sizes that are Dim.DYNAMIC are compared as the network runs" if of_sizes else ""
    return " ".join(asked).rstrip(".") + advice


def _check_decomposed(program: ExportedProgram, decomposed: ExportedProgram, name: str) -> None:
    """The results still have the types and shapes that torch says."""
    for at, (before, after) in enumerate(zip(_results(program), _results(decomposed))):
        if before != after:
            raise ImportFailure(f"result {at} of {name} would be {after}, and torch computes {before}")


def _results(program: ExportedProgram) -> list[Any]:
    """Type and shape of the results that the user gets."""
    (output,) = program.graph.find_nodes(op="output")
    made = output.args[0][-len(program.graph_signature.user_outputs) :]
    values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in made]
    return [(each.dtype, each.shape) if isinstance(each, Tensor) else type(each) for each in values]


def _check_results(program: ExportedProgram, name: str) -> None:
    changed = program.graph_signature.buffers_to_mutate
    if changed:
        buffers = ", ".join(sorted(changed.values()))
        raise ImportFailure(f"{name} changes its buffers as it runs, and Relax has no state: {buffers}")
    for at, spec in enumerate(program.graph_signature.output_specs):
        if isinstance(spec.arg, ConstantArgument):
            raise ImportFailure(f"result {at} of {name} must be a tensor, not {spec.arg.value}")


def _output_names(program: ExportedProgram) -> list[str]:
    """Of the tensors of the result, in their order; numbers where the names of torch would not tell them."""
    structure = program.call_spec.out_spec
    places = [torch.tensor(place) for place in range(structure.num_leaves)]
    numbered = [f"output{place}" for place in range(len(places))]
    try:
        named = {int(place): name for name, place in named_tensors(tree_unflatten(places, structure))}
    except ImportFailure:  # a class of the user's own, which torch knows how to take apart
        return numbered
    names = [named[place] for place in range(len(places))]
    return names if len(set(names)) == len(names) else numbered


def _batch_of_one(images: list[Tensor], size_divisible: int = 32) -> Tensor:
    """An image with zeros on the right and below; torchvision writes it into zeros."""
    (image,) = images
    right, below = (-extent % size_divisible for extent in (image.shape[2], image.shape[1]))
    return torch.nn.functional.pad(image, (0, right, 0, below))[None]


@contextlib.contextmanager
def _fixed_shapes(model: torch.nn.Module) -> Iterator[list[Tensor]]:
    """While it lasts, a detector has fixed shapes; yields the list that gets the number of detections."""
    (module,) = (module for kind, module in DETECTORS.items() if isinstance(model, kind))
    counts: list[Tensor] = []
    replacements: list[tuple[Any, str, Any]] = module.replacements(model, counts)
    if model.transform.batch_images.__module__.startswith("torchvision."):
        replacements.append((model.transform, "batch_images", _batch_of_one))
    with contextlib.ExitStack() as stack:
        for owner, name, function in replacements:
            written_in = getattr(owner, name).__module__
            if not written_in.startswith("torchvision."):
                raise ImportFailure(
                    f"{type(model).__name__} has its own {name}, of {written_in}: only torchvision's has an "
                    "equivalent with fixed shapes"
                )
            stack.enter_context(mock.patch.object(owner, name, function))
        yield counts
