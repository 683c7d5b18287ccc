"""A compiled detector of a fixed batch size, from images as arrays to the detections of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import runtime
from ..runtime.folder import Saved
from ..runtime.manifest import networks_of
from .end_of_work import end_of_work
from .errors import BatchError
from .found import Found, detections_in
from .image_input import ImageInput
from .letterbox import Prepared

MASKS_RANK = 4
MAX_PINNED = 2**26  # bytes of an output


def load_networks(
    folder: str | os.PathLike[str], device: str | None = None, batch: int | str = "auto"
) -> dict[int, Network]:
    """The networks of a folder that was compiled to, by the number of images that each takes.

    They have common weights, and take images of the same size. With a number as `batch`, there is one for
    so many images, and none for more.
    """
    try:
        saved = Saved(folder, device)
        images = images_by_size(saved.manifest, folder)
        numbers = {each.number: size for size, each in images.items()}
        if batch != "auto" and batch not in numbers:
            sizes = ", ".join(map(str, sorted(numbers)))
            raise BatchError(f"{folder} was compiled for batches of {sizes}, not {batch}: give one of these")
        most = max(numbers) if batch == "auto" else int(batch)
        return {
            number: _loaded(saved, size, images[size], str(folder))
            for number, size in numbers.items()
            if number <= most
        }
    except runtime.FolderError as error:
        raise BatchError(str(error)) from error


def images_by_size(manifest: dict[str, Any], folder: str | os.PathLike[str]) -> dict[int | None, Images]:
    """How each network of a folder takes images, by the batch size in its manifest."""
    found = {}
    for size, network in networks_of(manifest).items():
        images = Images.of(network)
        if images is None:
            raise BatchError(f"{folder} takes {described(network)}, not images: compile a detector")
        found[size] = images
    if len({each.of_one for each in found.values()}) > 1:
        raise BatchError(f"{folder} has networks that do not take the same images: compile again")
    return found


def images_of(manifest: dict[str, Any], folder: str | os.PathLike[str]) -> Images:
    """How the network of a folder takes images, the one for the largest batch if there are several."""
    return max(images_by_size(manifest, folder).values(), key=lambda each: each.number)


def check_detects(manifest: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Raise BatchError where the manifest tells that there is no detector in a folder: nothing is loaded."""
    images_by_size(manifest, folder)
    for network in networks_of(manifest).values():
        types = network["outputs"][:-1] if network["padded_rows"] else network["outputs"]
        outputs = {
            each["name"]: np.zeros([length or 1 for length in each["shape"]], _held_as(each["dtype"]))
            for each in types
        }
        # Which rows are detections is known only when it runs.
        first = {name: array[:1] if array.ndim else array for name, array in _of_image(outputs, 0).items()}
        if detections_in(first) is None:
            raise _no_detections(folder, _described(types))


def _held_as(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype  # which NumPy lacks


def _no_detections(title: object, types: str) -> BatchError:
    return BatchError(
        f"{title} returns {types}, in which no boxes, scores and labels are recognized: name the outputs so, "
        "as torchvision's detectors do"
    )


def _loaded(saved: Saved, size: int | None, images: Images, title: str) -> Network:
    network = networks_of(saved.manifest)[size]
    rows, shapes = network["padded_rows"], [output["shape"] for output in network["outputs"]]
    # To cut on the device is to wait there: it pays for masks of the size of the image. Only what is
    # contiguous can be cut so.
    are_contiguous = all(not row or math.prod(shape[: row[0]]) == 1 for row, shape in zip(rows, shapes))
    is_cut = bool(rows) and are_contiguous and any(map(images.are_masks, shapes))
    model = saved.model(size, cut=is_cut, copy_outputs=False)
    return Network(model, images, [] if is_cut else rows, title)


@dataclass(frozen=True)
class Images:
    """How a network takes images: as one input for all of them, or one for each."""

    taken: ImageInput  # one image
    number: int
    are_apart: bool
    channels: str  # their order, RGB or BGR

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> Images | None:
        types = {(tuple(each["shape"]), each["dtype"]) for each in manifest["inputs"]}
        if len(types) != 1:
            return None
        ((shape, dtype),) = types
        number = shape[0] or 1 if len(shape) == 4 else 1
        taken = ImageInput.of((1, *shape[1:]) if len(shape) == 4 else shape, dtype)
        inputs = len(manifest["inputs"])
        if taken is None or (number > 1 and inputs > 1):
            return None
        return Images(taken, number * inputs, inputs > 1, manifest["about"].get("channels", "RGB"))

    @property
    def of_one(self) -> tuple[Any, ...]:
        """What an image must be like, however many there are."""
        taken = self.taken
        return taken.height, taken.width, taken.channels, taken.layout[-1], taken.dtype, self.channels

    def are_masks(self, shape: Sequence[int | None]) -> bool:
        """Whether an output of this shape has masks of as many pixels as the input."""
        return len(shape) == MASKS_RANK and tuple(shape[-2:]) == (self.taken.height, self.taken.width)

    def inputs(self, images: Sequence[Prepared]) -> list[Prepared]:
        """The inputs of a call; a batch that is not full is filled up with its last image."""
        full = [*images, *[images[-1]] * (self.number - len(images))]
        if self.taken.layout == "CHW":
            return full
        if self.are_apart:
            return [image[None] for image in full]
        return [torch.stack(full) if isinstance(full[0], torch.Tensor) else np.stack(full)]


@dataclass(frozen=True)
class Network:
    model: runtime.Model
    images: Images
    # Of each padded output, its axis of detections and the index of their number.
    rows: Sequence[Sequence[int]]
    title: str

    def start(self, images: Sequence[Prepared]) -> Callable[[], list[Found]]:
        """Begin to run on these images, of which there are no more than the network takes.

        What this returns waits, and gives what is found in each of the images.
        """
        outputs = self.model(*self.images.inputs(images))
        if not isinstance(outputs, dict):
            outputs = dict(zip(self.model.output_names or [], [outputs]))
        brought = {name: self._brought(each) for name, each in outputs.items()}
        return partial(self._found, brought, end_of_work(*outputs.values()), len(images))

    def _found(self, outputs: dict[str, Prepared], wait: Callable[[], object], number: int) -> list[Found]:
        wait()
        arrays = {name: self._as_array(each) for name, each in outputs.items()}
        arrays = _without_padding(arrays, self.rows)
        found = [detections_in(_of_image(arrays, index)) for index in range(number)]
        if None in found:
            types = ", ".join(f"{name}: {array.dtype} {list(array.shape)}" for name, array in arrays.items())
            raise _no_detections(self.title, types)
        return [one for one in found if one is not None]

    def _brought(self, output: Prepared) -> Prepared:
        """An output on its way to the host; but small masks stay on the device, since a GPU pastes them.

        It is a copy, since the next call overwrites what the model returns.
        """
        if not isinstance(output, torch.Tensor):
            return output
        if self._stays(output):
            return output.clone()
        # The host's memory for what is not waited for is pinned, and kept.
        return output.to("cpu", non_blocking=output.nbytes <= MAX_PINNED, copy=True)

    def _as_array(self, output: Prepared) -> Prepared:
        """What has arrived, as an array."""
        is_array = not isinstance(output, torch.Tensor) or self._stays(output)
        return output if is_array else output.numpy(force=True)

    def _stays(self, output: torch.Tensor) -> bool:
        return output.ndim == MASKS_RANK and not self.images.are_masks(output.shape)


def _without_padding(outputs: Mapping[str, Prepared], rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    if not rows:
        return dict(outputs)
    *named, (_, numbers) = outputs.items()
    numbers = numbers.reshape(-1)
    return {
        name: array[(slice(None),) * row[0] + (slice(numbers[row[1]]),)] if row else array
        for (name, array), row in zip(named, rows)
    }


def _of_image(outputs: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """The outputs of one image of the batch."""
    prefix = f"output{index}."  # `from_pytorch` names the tensors in a list of dicts so
    own = {name[len(prefix) :]: array for name, array in outputs.items() if name.startswith(prefix)}
    if own:
        return own
    if not any(array.ndim == 3 and array.shape[-1] == 4 for array in outputs.values()):
        return dict(outputs)
    # Boxes have an axis of images, and so has everything.
    own = {name: array[index] for name, array in outputs.items()}
    numbers = [name for name, array in own.items() if array.size == 1 and name.startswith("num")]
    if len(numbers) == 1:  # as EfficientNMS gives it
        number = int(own.pop(numbers[0]).item())
        own = {name: array[:number] for name, array in own.items()}
    return own


def described(manifest: Mapping[str, Any]) -> str:
    """The inputs of a network."""
    return _described(manifest["inputs"])


def _described(types: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['name']}: {each['dtype']} {each['shape']}" for each in types)
