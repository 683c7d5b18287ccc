"""What a GPU does beside the network: it fits images into the input, and writes masks as run lengths.

Images are fitted in the stream of the network, before it: the network of another process runs meanwhile.
Masks, and large images, have a stream of each thread, in which copies and small kernels go on while the
network runs. There are few steps: after each of torch's, a thread waits for its turn among all of Python's.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from topi_ext.torch import encode_masks

from .. import runtime
from ..runtime.coco import RunLengths
from .end_of_work import end_of_work
from .image_input import ImageInput
from .letterbox import Placed, fitted, pixels_of

USUAL = 512  # bytes of a mask's run lengths, which leave the GPU without being waited for: few have more
# Bytes of an image that waits for its batch on the host: a few dozens of them do, in each process.
MAX_WAITING = 2**24


class Waiting(NamedTuple):
    """An image in memory that a GPU copies from, which is fitted when its batch is run, in the same stream.

    Threads that decode would each have a stream, whose small kernels wait for room between those of the
    networks: in a job on a GPU, 15 ms for half of one, and three more cores are busy.
    """

    pixels: torch.Tensor
    taken: ImageInput
    channels: str


class OnGpu:
    """Work on a device of torch, from any thread."""

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._of_thread = threading.local()

    @staticmethod
    def of(model: runtime.Model) -> OnGpu | None:
        """For the device of a model; None if that is no GPU that torch can use."""
        device = model.device
        is_on_gpu = device.device_type == device.kDLCUDA and torch.cuda.is_available()
        return OnGpu(f"cuda:{device.device_id}") if is_on_gpu else None

    def letterbox(
        self, image: np.ndarray, taken: ImageInput, channels: str
    ) -> tuple[torch.Tensor | Waiting, Placed]:
        """See `letterbox`; `arrived` gives the tensor."""
        pixels = pixels_of(image)
        if pixels.nbytes <= MAX_WAITING:
            height, width, _ = image.shape
            return Waiting(self._pinned(pixels), taken, channels), Placed.of((height, width), taken)
        with self.own_stream():
            found, placed = fitted(self._copied(pixels), taken, channels)
            end_of_work(found)()
            return found, placed

    def arrived(self, images: Sequence[torch.Tensor | Waiting]) -> list[torch.Tensor]:
        """These images on the device, for work in the current stream."""
        return list(map(self._arrived, images))

    def _arrived(self, image: torch.Tensor | Waiting) -> torch.Tensor:
        if isinstance(image, Waiting):
            there = image.pixels.to(self._device, non_blocking=True)
            return fitted(there, image.taken, image.channels)[0]
        if image.is_cuda:
            image.record_stream(torch.cuda.current_stream(image.device))
        return image

    def start_run_lengths(
        self, masks: np.ndarray | torch.Tensor, boxes: np.ndarray, size: tuple[int, int]
    ) -> Callable[[], Sequence[bytes]]:
        """Begin with COCO's run lengths of small masks (n, m, m), pasted into an image of this size.

        What this returns waits, and gives them. Masks may be on the device already, if whatever computed them
        has ended.

        Raises ValueError where nvcc is missing, which compiles the kernel; what it returns does for a mask of
        more runs than there is room for.
        """
        if self._device.type == "cuda" and not _has_nvcc():
            raise ValueError("nvcc is missing")
        if not len(masks):
            return list
        with self.own_stream():
            if not isinstance(masks, torch.Tensor):
                masks = self._copied(torch.from_numpy(np.ascontiguousarray(masks)))
            # CUDA has read what is not pinned when it returns; to wait would be for the masks before.
            boxes_there = torch.from_numpy(np.ascontiguousarray(boxes)).to(self._device, non_blocking=True)
            whole = encode_masks(masks[:, None], boxes_there, size)
            # Most of the room is empty, as a rule.
            encoded = whole[:, :USUAL].to("cpu", non_blocking=True, copy=True)
            return partial(self._run_lengths, whole, encoded, end_of_work(whole))

    def _run_lengths(
        self, whole: torch.Tensor, encoded: torch.Tensor, wait: Callable[[], object]
    ) -> Sequence[bytes]:
        wait()
        usual = encoded.numpy()
        if not usual[:, -1].any():
            return RunLengths.of(usual)
        with self.own_stream():
            return RunLengths.of(whole)

    @contextlib.contextmanager
    def own_stream(self) -> Iterator[None]:
        """Inside, the stream of this thread is torch's current one, where there are streams.

        A thread that does nothing else enters it once: inside, to enter it again costs nothing.
        """
        if self._device.type != "cuda":
            yield
            return
        of_thread = self._of_thread
        if not hasattr(of_thread, "stream"):
            # Its kernels are short, and do not wait until those of the network leave room.
            of_thread.stream = torch.cuda.Stream(self._device, priority=-1)
            of_thread.is_entered = False
        if of_thread.is_entered:
            yield
            return
        of_thread.is_entered = True
        try:
            with torch.cuda.stream(of_thread.stream):
                yield
        finally:
            of_thread.is_entered = False

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._pinned(tensor).to(self._device, non_blocking=True)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self._device.type == "cuda" else tensor


@functools.cache
def _has_nvcc() -> bool:
    return shutil.which("nvcc") is not None
