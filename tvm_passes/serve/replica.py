"""A worker of the service: one network in a process of its own, on one GPU or on the CPU."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ..batch import BadImage, BatchError, Detector
from ..batch.decode import decode
from ..batch.found import Found
from ..batch.letterbox import Placed
from ..errors import one_line
from . import answers
from .answers import Answer

BLANK = np.zeros((32, 32, 3), "uint8")


class Replica:
    """Decodes and encodes in `threads`, and runs the network in another one: the event loop waits for none.

    A run that takes longer than `patience` seconds hangs.
    """

    def __init__(self, folder: str, threads: int, patience: float) -> None:
        self._patience = patience
        self._began: float | None = None
        self._threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._runner = ThreadPoolExecutor(1, "run")
        self._problem = None
        try:
            self._detector = Detector(folder)
            self._blank, _ = self._detector.prepare(BLANK)
            for size in self._detector.sizes:  # kernels are loaded now, and not by the first request
                self._detector.run([self._blank] * size)
        except BatchError as error:  # which `about` tells: Serve would hide it in a traceback, and try again
            self._problem = str(error)

    async def about(self) -> dict[str, Any]:
        if self._problem:
            return {"problem": self._problem}
        return {"model": self._detector.model, "batch": self._detector.batch, "pid": os.getpid()}

    async def detect(self, items: list[tuple[bytes, float]]) -> list[Answer]:
        """The answers to requests that are computed together: images, with their thresholds of scores."""
        if self._problem:
            return [Answer(500, answers.error(self._problem))] * len(items)
        prepared = await self._each(self._prepared, [image for image, _ in items])
        arrays = [array for array, _ in prepared if array is not None]
        loop = asyncio.get_running_loop()
        found = iter(await loop.run_in_executor(self._runner, self._found_in, arrays) if arrays else [])
        work = [
            (where if array is None else next(found), where, threshold, len(arrays))
            for (array, where), (_, threshold) in zip(prepared, items)
        ]
        return await self._each(self._answer, work)

    async def _each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Of all items in the threads."""
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(self._threads, function, item) for item in items))

    def check_health(self) -> None:
        began = self._began
        if began is not None and time.monotonic() - began > self._patience:
            raise RuntimeError(f"the network has not answered in {self._patience:g} seconds")

    def _prepared(self, image: bytes) -> tuple[np.ndarray, Placed] | tuple[None, BadImage]:
        try:
            return self._detector.prepare(decode(image, self._detector.max_pixels))
        except BadImage as reason:
            return None, reason

    def _answer(self, work: tuple[Found | Exception, Any, float, int]) -> Answer:
        found, placed, threshold, batch = work
        if isinstance(found, BadImage):
            return Answer(400, answers.error(f"the image {found}"))
        if isinstance(found, Exception):
            return Answer(500, answers.error(f"the network failed on this image: {one_line(found)}"))
        try:
            row = self._detector.finish("", found, placed)
        except BadImage as reason:
            return Answer(400, answers.error(f"the image {reason}"))
        return Answer(200, answers.detections(row, self._detector.labels, threshold), batch)

    def _found_in(self, arrays: list[np.ndarray]) -> list[Found | Exception]:
        self._began = time.monotonic()
        try:
            return list(self._detector.run(arrays))
        except Exception as error:
            self._leave_if_broken()
            # Only one of the images may be the reason.
            return [error] if len(arrays) == 1 else [self._found_in([each])[0] for each in arrays]
        finally:
            self._began = None

    def _leave_if_broken(self) -> None:
        """After an error of a GPU nothing works in this process any more: Serve starts another one.

        Requests that are in here are given to other replicas when this one is gone.
        """
        try:
            self._detector.run([self._blank])
        except Exception:
            os._exit(1)
