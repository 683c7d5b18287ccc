"""The engine `local`: threads of one process, and one network for each device.

    sources -> decode (many threads) -> run (one for each device) -> map back (the same) -> whoever calls

Between them are queues of fixed size: each waits for the one behind it, so memory is bounded. An image is
fitted on the device that has the fewest images ahead, and stays there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from .channel import CLOSED, Channel, Stopped
from .decode import decode
from .detector import Detector
from .errors import BadImage
from .figures import Figures
from .found import Found
from .letterbox import Fitted
from .results import Failed, Result, taken_from
from .sources import Item

BATCHES_AHEAD = 2  # of prepared images, for each device
RESULTS = 64  # rows that wait to be written


def run_in_threads(
    items: Iterable[Item],
    detectors: Sequence[Detector],
    figures: Figures,
    decoders: int,
    tick: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """The row of each image, or why there is none, in any order; `tick` is called again and again.

    Closing the iterator, and an exception in it, ends all threads.
    """
    engine = _Engine(iter(items), detectors, figures, decoders)
    try:
        yield from engine.results(tick)
    finally:
        engine.stop()


class _Ran(NamedTuple):
    detector: Detector
    images: list[Fitted]
    found: list[Found | BadImage]


class _Engine:
    def __init__(
        self, items: Iterator[Item], detectors: Sequence[Detector], figures: Figures, decoders: int
    ) -> None:
        self._items, self._detectors, self._figures = items, detectors, figures
        self._turn = threading.Lock()  # of whoever takes the next item
        self._error: BaseException | None = None
        self._ahead = [0] * len(detectors)  # how many images each of them is to run
        self._prepared = [Channel(BATCHES_AHEAD * detector.batch) for detector in detectors]
        self._ran = Channel(len(detectors))
        self._results = Channel(RESULTS)
        self._threads: list[threading.Thread] = []
        figures.threads.update({"decode": decoders, "run": len(detectors), "map back": len(detectors)})
        all_alone = threading.Barrier(decoders + 1)
        with _threads_of_torch_kept():
            self._start("decode", [lambda: self._decode(all_alone)] * decoders, *self._prepared)
            all_alone.wait()
        self._start("run", [partial(self._run, place) for place in range(len(detectors))], self._ran)
        self._start("map back", [self._map_back] * len(detectors), self._results)

    def results(self, tick: Callable[[], None]) -> Iterator[Result]:
        yield from taken_from(self._results, tick)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stop_channels()
        for thread in self._threads:
            thread.join()

    def _stop_channels(self) -> None:
        for channel in (*self._prepared, self._ran, self._results):
            channel.stop()

    def _start(self, name: str, works: Sequence[Callable[[], None]], *into: Channel) -> None:
        """Threads that put into channels, which the last one closes."""
        left = [len(works)]

        def body(work: Callable[[], None]) -> None:
            try:
                work()
            except Stopped:
                pass
            except BaseException as error:
                self._error = self._error or error
                self._stop_channels()
            with self._turn:
                left[0] -= 1
                is_last = not left[0]
            for channel in into if is_last else ():
                channel.close()

        for number, work in enumerate(works):
            thread = threading.Thread(target=body, args=[work], name=f"{name} {number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    # --- what each thread does

    def _decode(self, all_alone: threading.Barrier) -> None:
        torch.set_num_threads(1)  # of this thread: there are as many of these as there are cores
        all_alone.wait()
        while True:
            with self._turn:
                item = next(self._items, None)
                if item is None:
                    return
                place = self._ahead.index(min(self._ahead))
                self._ahead[place] += 1
            detector = self._detectors[place]
            try:
                with self._figures.working("decode", image=item.id):
                    pixels = decode(item.read(), detector.max_pixels)
                with self._figures.working("fit", image=item.id):
                    array, placed = detector.prepare(pixels)
            except BadImage as reason:
                self._has_one_less(place)
                self._results.put(Failed(item.id, str(reason)))
            else:
                self._prepared[place].put(Fitted(item.id, array, placed))

    def _has_one_less(self, place: int) -> None:
        with self._turn:
            self._ahead[place] -= 1

    def _run(self, place: int) -> None:
        detector, is_last = self._detectors[place], False
        while not is_last:
            images: list[Fitted] = []
            while len(images) < detector.batch and not is_last:
                image = self._prepared[place].get()
                is_last = image is CLOSED
                if not is_last:
                    self._has_one_less(place)
                    images.append(image)
            if not images:
                return
            with self._figures.working("run", images=len(images)):
                found = detector.run_each([each.array for each in images], [each.id for each in images])
            self._ran.put(_Ran(detector, images, found))

    def _map_back(self) -> None:
        while True:
            ran = self._ran.get()
            if ran is CLOSED:
                return
            for image, found in zip(ran.images, ran.found):
                try:
                    with self._figures.working("map back", image=image.id):
                        row = ran.detector.finish(image.id, found, image.placed)
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
