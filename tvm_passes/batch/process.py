"""A process of the engine `local`, with a network on a GPU; `processes.py` starts it, and talks to it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import one_line
from .detector import Batch, Detector
from .errors import BatchError
from .figures import Figures, Work, summed
from .item import Item
from .local import run_in_threads
from .parcel import Receiver, Sender
from .results import OfOneImage, Result, in_a_table

# After which Python's threads take turns; by default after 5 ms, for which a GPU waits for its next batch.
SECONDS_OF_TURN = 0.001
IMAGES = 16  # that are asked for at once, and results that are sent at once
WANTED = "images, please"


class Options(NamedTuple):
    """What a process is told first."""

    folder: Path
    device: str
    batch: Batch
    max_pixels: int
    decoders: int
    is_traced: bool = False  # each of its works has to be known


class JobEnded(Exception):
    """Nobody is at the other end of the connection."""


class Answer(NamedTuple):
    """What a process has done since the last one."""

    results: list[Result]
    works: list[Work]  # each, or the sum of a stage


def main(number: int) -> None:
    """Do what is asked through the connection of this file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the job, which ends its processes
    sys.setswitchinterval(SECONDS_OF_TURN)
    talk = _Talk(Connection(number))
    with suppress(JobEnded):
        options = talk.hear()
        try:
            _work(talk, options)
            talk.say(None)
        except JobEnded:
            raise
        except BatchError as error:
            talk.say(error)
        except BaseException as error:
            talk.say(BatchError(f"the process of {options.device} failed: {one_line(error)}"))
    os._exit(0)  # without waiting for threads that wait for images


def _work(talk: _Talk, options: Options) -> None:
    detector = Detector(options.folder, options.device, batch=options.batch, max_pixels=options.max_pixels)
    talk.is_traced = options.is_traced
    for result in run_in_threads(talk.items(), detector, talk, options.decoders, talk.send):
        talk.results.append(result)
        if len(talk.results) >= IMAGES:
            talk.send()
    talk.send()


class _Talk(Figures):
    """Both directions of a connection, and the figures that go with the results."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.is_traced = False
        self.results: list[OfOneImage] = []
        self._works: list[Work] = []
        self._sender, self._receiver = Sender(connection), Receiver(connection)
        self._sending = threading.Lock()

    def add(self, work: Work) -> None:
        with self._lock:
            self._works.append(work)

    def items(self) -> Iterator[Item]:
        """Those that come; the next ones are on their way while these are decoded."""
        ahead = ThreadPoolExecutor(1)
        coming = ahead.submit(self._ask)
        while images := coming.result():
            coming = ahead.submit(self._ask)
            yield from images

    def _ask(self) -> list[Item]:
        self.say(WANTED)
        images: list[Item] = self.hear()
        return images

    def send(self) -> None:
        """What is there to be sent."""
        if self.results:
            with self._lock:
                works, self._works = self._works, []
            results, self.results = self.results, []
            self.say(Answer(in_a_table(results), works if self.is_traced else summed(works)))

    def say(self, message: Any) -> None:
        with self._sending, _of_the_connection():
            self._sender.send(message)

    def hear(self) -> Any:
        with _of_the_connection():
            return self._receiver.receive()


@contextmanager
def _of_the_connection() -> Iterator[None]:
    """Errors of the network and of files are not those of the connection."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise JobEnded from error
