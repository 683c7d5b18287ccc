"""The engine `local`: threads of one process, for the network of one device.

    sources -> decode (many threads) -> run (one) -> map back (one) -> whoever calls

Between them are queues of fixed size: each waits for the one behind it, so memory is bounded. GPUs have
processes of such threads: see `processes.py`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from .channel import Batches, Channel, one_ahead, threads_into
from .decode import decode
from .detector import Detector, Row
from .errors import BadImage
from .figures import Figures
from .found import Found
from .letterbox import Fitted
from .results import Failed, OfOneImage, taken_from
from .sources import Item

BATCHES_AHEAD = 2  # of prepared images
BATCHES_RAN = 2  # that wait to be mapped back
RESULTS = 64  # rows that wait to be written


def run_in_threads(
    items: Iterable[Item],
    detector: Detector,
    figures: Figures,
    decoders: int,
    tick: Callable[[], None] = lambda: None,
) -> Generator[OfOneImage, None, None]:
    """The row of each image, or why there is none, in any order; `tick` is called again and again.

    Closing the iterator, and an exception in it, ends all threads.
    """
    engine = _Engine(iter(items), detector, figures, decoders)
    try:
        yield from engine.results(tick)
    finally:
        engine.stop()


class _Running(NamedTuple):
    images: list[Fitted]
    found: Callable[[], list[Found | BadImage]]  # which waits


class _Ran(NamedTuple):
    images: list[Fitted]
    found: list[Found | BadImage]


class _Mapping(NamedTuple):
    images: list[Fitted]
    rows: list[Callable[[], Row]]  # each of which waits


class _Engine:
    def __init__(self, items: Iterator[Item], detector: Detector, figures: Figures, decoders: int) -> None:
        self._items, self._detector, self._figures = items, detector, figures
        self._turn = threading.Lock()  # of whoever takes the next item
        self._error: BaseException | None = None
        self._prepared = Channel(BATCHES_AHEAD * detector.batch)
        self._ran = Channel(BATCHES_RAN)
        self._results = Channel(RESULTS)
        self._threads: list[threading.Thread] = []
        figures.threads.update({"decode": decoders, "run": 1, "map back": 1})
        all_alone = threading.Barrier(decoders + 1)
        with _threads_of_torch_kept():
            self._start("decode", [lambda: self._decode(all_alone)] * decoders, self._prepared)
            all_alone.wait()
        self._start("run", [self._run], self._ran)
        self._start("map back", [self._map_back], self._results)

    def results(self, tick: Callable[[], None]) -> Iterator[OfOneImage]:
        yield from taken_from(self._results, tick)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stop_channels()
        for thread in self._threads:
            thread.join()

    def _stop_channels(self) -> None:
        for channel in (self._prepared, self._ran, self._results):
            channel.stop()

    def _start(self, name: str, works: Sequence[Callable[[], None]], into: Channel) -> None:
        self._threads += threads_into(into, name, works, self._failed)

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stop_channels()

    # --- what each thread does

    def _decode(self, all_alone: threading.Barrier) -> None:
        torch.set_num_threads(1)  # of this thread: there are as many of these as there are cores
        all_alone.wait()
        with self._detector.own_stream():
            while (item := self._next_item()) is not None:
                self._prepare(item)

    def _next_item(self) -> Item | None:
        with self._turn:
            return next(self._items, None)

    def _prepare(self, item: Item) -> None:
        try:
            with self._figures.working("decode", image=item.id):
                pixels = decode(item.read(), self._detector.max_pixels)
            with self._figures.working("fit", image=item.id):
                array, placed = self._detector.prepare(pixels)
        except BadImage as reason:
            self._results.put(Failed(item.id, str(reason)))
        else:
            self._prepared.put(Fitted(item.id, array, placed))

    # A GPU does not wait for Python: it has work of the next batch before that of one is waited for.

    def _run(self) -> None:
        batches = Batches(self._prepared, self._detector.batch)
        one_ahead(batches.get, self._begin_running, self._end_running)

    def _begin_running(self, images: list[Fitted]) -> _Running:
        with self._figures.working("run", begun=len(images)):
            arrays, ids = [each.array for each in images], [each.id for each in images]
            return _Running(images, self._detector.start_each(arrays, ids))

    def _end_running(self, running: _Running) -> None:
        with self._figures.working("run", images=len(running.images)):
            ran = _Ran(running.images, running.found())
        self._ran.put(ran)

    def _map_back(self) -> None:
        with self._detector.own_stream():
            one_ahead(self._ran.get, self._begin_mapping, self._end_mapping)

    def _begin_mapping(self, ran: _Ran) -> _Mapping:
        with self._figures.working("map back", begun=len(ran.images)):
            ids, placed = zip(*((image.id, image.placed) for image in ran.images))
            return _Mapping(ran.images, self._detector.start_finish(ids, ran.found, placed))

    def _end_mapping(self, mapping: _Mapping) -> None:
        for image, finish in zip(mapping.images, mapping.rows):
            try:
                with self._figures.working("map back", image=image.id):
                    row = finish()
            except BadImage as reason:
                self._results.put(Failed(image.id, str(reason)))
            else:
                self._results.put(row)


@contextlib.contextmanager
def _threads_of_torch_kept() -> Iterator[None]:
    """Inside, threads set how many torch has in them, which other threads would get, too."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)
