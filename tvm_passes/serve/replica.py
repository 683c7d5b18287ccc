"""A worker of the service: one network in a process of its own, on one GPU or on the CPU."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
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
from .gather import Gather

BATCHES = 2  # one is decoded while another one is run
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
        except BatchError as error:  # which `about` tells: Serve would hide it in a traceback, and try again
            self._problem = str(error)
            return
        self._batches = Gather(self._compute, self._detector.batch, BATCHES)
        self._blank, _ = self._detector.prepare(BLANK)
        for size in self._detector.sizes:  # kernels are loaded now, and not by the first request
            self._detector.run([self._blank] * size)

    async def about(self) -> dict[str, Any]:
        if self._problem:
            return {"problem": self._problem}
        return {"model": self._detector.model, "batch": self._detector.batch, "pid": os.getpid()}

    async def detect(self, image: bytes, threshold: float) -> Answer:
        if self._problem:
            return Answer(500, answers.error(self._problem))
        found, placed, batch = await self._batches(image)
        if isinstance(found, BadImage):
            return _refused(found)
        if isinstance(found, Exception):
            return Answer(500, answers.error(f"the network failed on this image: {one_line(found)}"))
        try:
            return Answer(200, await self._in_thread(self._json, found, placed, threshold), batch)
        except BadImage as reason:
            return _refused(reason)

    async def _compute(self, images: list[bytes]) -> list[tuple[Any, Any, int]]:
        """For each image what is found, or why nothing is; where it is in the input; how many were run."""
        prepared = await asyncio.gather(*(self._in_thread(self._prepared, image) for image in images))
        arrays = [array for array, _ in prepared if array is not None]
        loop = asyncio.get_running_loop()
        found = iter(await loop.run_in_executor(self._runner, self._found_in, arrays) if arrays else [])
        return [
            (where, None, 0) if array is None else (next(found), where, len(arrays))
            for array, where in prepared
        ]

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def check_health(self) -> None:
        began = self._began
        if began is not None and time.monotonic() - began > self._patience:
            raise RuntimeError(f"the network has not answered in {self._patience:g} seconds")

    def _prepared(self, image: bytes) -> tuple[np.ndarray, Placed] | tuple[None, BadImage]:
        try:
            return self._detector.prepare(decode(image, self._detector.max_pixels))
        except BadImage as reason:
            return None, reason

    def _json(self, found: Found, placed: Placed, threshold: float) -> bytes:
        row = self._detector.finish("", found, placed)
        return answers.detections(row, self._detector.labels, threshold)

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


def _refused(reason: BadImage) -> Answer:
    return Answer(400, answers.error(f"the image {reason}"))
