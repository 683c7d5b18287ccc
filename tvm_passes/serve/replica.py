"""A worker of the service: one network in a process of its own, on one GPU or on the CPU."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from ray import serve

from ..batch import BadImage, BatchError, Detector
from ..batch.decode import decode
from ..batch.found import Found
from ..batch.letterbox import Placed
from ..errors import one_line
from . import answers
from .answers import Answer

SECONDS_TO_FILL = 0.005  # that the first image of a batch waits for others
BLANK = np.zeros((32, 32, 3), "uint8")


class Replica:
    """Decodes in `decoders` threads, and runs the network in one, so that the event loop waits for neither.

    A run that takes longer than `patience` seconds hangs.
    """

    def __init__(self, folder: str, decoders: int, patience: float) -> None:
        self._patience, self._began = patience, None
        self._decoders = ThreadPoolExecutor(
            decoders, "decode", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._runner = ThreadPoolExecutor(1, "run")
        self._problem = None
        try:
            self._detector = Detector(folder)
        except BatchError as error:  # which `about` tells: Serve would hide it in a traceback, and try again
            self._problem = str(error)
            return
        self._run.set_max_batch_size(self._detector.batch)
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
        in_thread = asyncio.get_running_loop().run_in_executor
        try:
            array, placed = await in_thread(self._decoders, self._prepared, image)
            found, batch = await self._run(array)
            if isinstance(found, Exception):
                return Answer(500, answers.error(f"the network failed on this image: {one_line(found)}"))
            return Answer(200, await in_thread(self._decoders, self._json, found, placed, threshold), batch)
        except BadImage as reason:
            return Answer(400, answers.error(f"the image {reason}"))

    def check_health(self) -> None:
        began = self._began
        if began is not None and time.monotonic() - began > self._patience:
            raise RuntimeError(f"the network has not answered in {self._patience:g} seconds")

    def _prepared(self, image: bytes) -> tuple[np.ndarray, Placed]:
        return self._detector.prepare(decode(image, self._detector.max_pixels))

    def _json(self, found: Found, placed: Placed, threshold: float) -> bytes:
        return answers.detections(self._detector.finish("", found, placed), self._detector.labels, threshold)

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=SECONDS_TO_FILL)
    async def _run(self, arrays: list[np.ndarray]) -> list[tuple[Any, int]]:
        in_thread = asyncio.get_running_loop().run_in_executor
        found = await in_thread(self._runner, self._found_in, arrays)
        return [(each, len(arrays)) for each in found]

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
