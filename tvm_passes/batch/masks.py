"""The masks of images on their way to COCO's run lengths, by a GPU or by the host."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ..runtime.coco import RunLengths
from . import run_lengths
from .errors import BadImage
from .letterbox import Placed
from .on_gpu import OnGpu


@dataclass
class Masks:
    """Those of an image, and the boxes that they are pasted into, in its pixels."""

    masks: Any
    boxes: np.ndarray
    placed: Placed
    # What waits for a GPU that encodes them, and what begins with them again, without those of other images.
    by_gpu: tuple[Callable[[], Sequence[bytes]], Callable[[], None] | None] | None = None

    @property
    def are_small(self) -> bool:
        return self.masks.ndim > 2 and self.masks.shape[-2:] != self.placed.given

    def small(self) -> Any:
        return self.masks.reshape(-1, *self.masks.shape[-2:])

    def encoded(self) -> Sequence[bytes]:
        """COCO's run lengths; where a GPU has no room for one of the masks, the host computes them."""
        while self.by_gpu:
            (wait, again), self.by_gpu = self.by_gpu, None
            with contextlib.suppress(ValueError):
                return wait()
            if again:
                again()
        return _by_host(self.masks, self.boxes, self.placed)


def start_masks(gpu: OnGpu | None, masks: Sequence[Masks]) -> None:
    """Begin to encode masks where the GPU does: those of images of the same size together."""
    if gpu is None:
        return
    small = [each for each in masks if each.are_small]
    for size in dict.fromkeys(each.placed.image for each in small):
        _start_alike(gpu, [each for each in small if each.placed.image == size])


def _start_alike(gpu: OnGpu, masks: Sequence[Masks]) -> None:
    arrays, boxes = [each.small() for each in masks], np.concatenate([each.boxes for each in masks])
    whole = arrays[0]
    if len(arrays) > 1:
        join: Any = torch.cat if isinstance(whole, torch.Tensor) else np.concatenate
        whole = join(arrays)
    with contextlib.suppress(ValueError):  # nvcc is missing
        # Each of the images waits for all of them, but only the first one has to.
        begun = functools.cache(gpu.start_run_lengths(whole, boxes, masks[0].placed.image))
        end = 0
        for each in masks:
            begin, end = end, end + len(each.boxes)
            again = partial(_start_alike, gpu, [each]) if len(masks) > 1 else None
            each.by_gpu = partial(_from_to, begun, begin, end), again


def _from_to(of_all: Callable[[], Sequence[bytes]], begin: int, end: int) -> Sequence[bytes]:
    return of_all()[begin:end]


def _by_host(masks: Any, boxes: np.ndarray, placed: Placed) -> list[bytes]:
    """COCO's run lengths of masks that are encoded, pasted into the input, or of their boxes."""
    masks = masks.numpy(force=True) if isinstance(masks, torch.Tensor) else masks
    if masks.ndim == 2:
        try:
            strings: Sequence[bytes] = RunLengths.of(masks)
        except ValueError as error:
            raise BadImage(f"has masks that do not fit: {error}") from error
    elif masks.shape[-2:] == placed.given:
        images = masks.reshape(-1, *placed.given) >= run_lengths.THRESHOLD
        strings = [run_lengths.of_pixels(image, placed.given) for image in images]
    else:
        small = masks.reshape(-1, *masks.shape[-2:])
        return [run_lengths.of_box(mask, box, placed.image) for mask, box in zip(small, boxes)]
    return [run_lengths.in_the_image(string, placed) for string in strings]
