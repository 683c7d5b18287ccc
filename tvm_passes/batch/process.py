"""A process of the engine `local`, with the network of one GPU; `processes.py` starts it, and talks to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import one_line
from .detector import Batch, Detector
from .errors import BatchError
from .figures import Figures, Work
from .item import Item
from .local import run_in_threads
from .results import Result

IMAGES = 16  # that are asked for at once, and results that are sent at once
WANTED = "images, please"


class Options(NamedTuple):
    """What a process is told first."""

    folder: Path
    device: str
    batch: Batch
    max_pixels: int
    decoders: int


class Answer(NamedTuple):
    """What a process has done since the last one."""

    results: list[Result]
    works: list[Work]


def main(number: int) -> None:
    """Do what is asked through the connection of this file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the job, which ends its processes
    connection = Connection(number)
    with suppress(EOFError, OSError):  # the job has ended
        options = connection.recv()
        try:
            _work(connection, options)
            connection.send(None)
        except (EOFError, OSError):
            raise
        except BatchError as error:
            connection.send(error)
        except BaseException as error:
            connection.send(BatchError(f"the process of {options.device} failed: {one_line(error)}"))
    os._exit(0)  # without waiting for threads that wait for images


def _work(connection: Connection, options: Options) -> None:
    folder, device, batch, max_pixels, decoders = options
    detector = Detector(folder, device, batch=batch, max_pixels=max_pixels)
    talk = _Talk(connection)
    for result in run_in_threads(talk.items(), detector, talk, decoders, talk.send):
        talk.results.append(result)
        if len(talk.results) >= IMAGES:
            talk.send()
    talk.send()


class _Talk(Figures):
    """Both directions of a connection, and the figures that go with the results."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.results: list[Result] = []
        self._works: list[Work] = []
        self._connection = connection
        self._sending = threading.Lock()

    def add(self, work: Work) -> None:
        with self._lock:
            self._works.append(work)

    def items(self) -> Iterator[Item]:
        while True:
            self._say(WANTED)
            images = self._connection.recv()
            if not images:
                return
            yield from images

    def send(self) -> None:
        """What is there to be sent."""
        if self.results:
            with self._lock:
                works, self._works = self._works, []
            results, self.results = self.results, []
            self._say(Answer(results, works))

    def _say(self, message: Any) -> None:
        with self._sending:
            self._connection.send(message)
