"""The engine `local` for GPUs: one or more processes for each, in which the threads of `local.py` work.

    sources -> a few images -> processes: decode, run, map back -> a few results -> whoever calls

In one process, several GPUs, and even a fast one, would wait for Python, which runs one thread at a time. The
processes of a GPU share it by MPS where that is installed. A process asks for images when it has none left to
decode. If one ends, the job does.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing import Pipe

from ..another_process import python
from .channel import Channel, threads_into
from .errors import BatchError
from .figures import Figures
from .item import Item
from .mps import shared_gpus
from .parcel import Receiver, Sender
from .process import IMAGES, WANTED, Options
from .results import Result, taken_from

ANSWERS = 4  # that wait to be written
START = "from tvm_passes.batch.process import main; main({})"


def run_in_processes(
    items: Iterable[Item],
    options: Sequence[Options],
    figures: Figures,
    tick: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """The rows of images, and why others have none, in any order; there is a process for each of the options.

    `tick` is called again and again. Closing the iterator, and an exception in it, ends all processes.
    """
    number = len(options)
    decoders = sum(each.decoders for each in options)
    figures.threads.update({"decode": decoders, "run": number, "map back": number})
    with contextlib.ExitStack() as stack:
        on_gpus = [each.device for each in options if each.device != "cpu"]
        is_shared = len(set(on_gpus)) < len(on_gpus)
        environment = stack.enter_context(shared_gpus()) if is_shared else None
        engine = _Engine(iter(items), options, environment)
        stack.callback(engine.stop)
        yield from engine.results(figures, tick)


class _Engine:
    def __init__(
        self, items: Iterator[Item], options: Sequence[Options], environment: dict[str, str] | None
    ) -> None:
        self._items = items
        self._turn = threading.Lock()  # of whoever takes the next items
        self._error: BaseException | None = None
        self._answers = Channel(ANSWERS)
        self._workers = [_Worker(each, environment) for each in options]
        serve = [partial(self._serve, worker) for worker in self._workers]
        self._threads = threads_into(self._answers, "process", serve, self._failed)

    def results(self, figures: Figures, tick: Callable[[], None]) -> Iterator[Result]:
        for answer in taken_from(self._answers, tick):
            for work in answer.works:
                figures.add(work)
            yield from answer.results
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._answers.stop()
        # All at once: by MPS, a process that is killed while its GPU works makes those beside it fail.
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.close()
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: _Worker) -> None:
        """Give a process images, and take its results, until it has done all."""
        for message in worker.messages():
            if message == WANTED:
                with self._turn:
                    images = list(islice(self._items, IMAGES))
                with contextlib.suppress(OSError):  # of a process that has ended, as the next message says
                    worker.send(images)
            else:
                self._answers.put(message)

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._answers.stop()


class _Worker:
    """A process, and the connection to it."""

    def __init__(self, options: Options, environment: dict[str, str] | None) -> None:
        self.device = options.device
        self._connection, theirs = Pipe()
        sender, self._receiver = Sender(self._connection), Receiver(self._connection)
        self.send = sender.send
        number = theirs.fileno()
        with theirs:  # which then only the process has: what is read here ends when it ends
            command = python(START.format(number))
            self._process = subprocess.Popen(command, pass_fds=[number], env=environment)
        self._options = options

    def messages(self) -> Iterator[object]:
        """What the process says, until it has said that it is done; its error is raised."""
        try:
            self.send(self._options)
            while (message := self._receiver.receive()) is not None:
                if isinstance(message, BatchError):
                    raise message
                yield message
        except (EOFError, OSError) as error:
            raise BatchError(
                f"the process of {self.device} has ended, with the code {self._process.wait()}: what was "
                "written is whole; give --resume (resume=True) to try again"
            ) from error

    def kill(self) -> None:
        self._process.kill()  # it has nothing that is to be kept

    def close(self) -> None:
        self._process.wait()
        self._connection.close()
