"""How far a job is, how fast, and what bounds it; and the same as a trace for Chrome or Perfetto."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import BatchError

STAGES = ("decode", "fit", "run", "map back", "write")
BESIDE = {"fit": "decode"}  # stages that threads of others do, one after the other


class Work(NamedTuple):
    """What a thread did, in any process."""

    stage: str
    start: float  # by `time.time`, which processes share
    seconds: float
    process: int
    thread: int
    about: dict[str, Any]


@contextlib.contextmanager
def measured(add: Callable[[Work], None], stage: str, **about: Any) -> Iterator[None]:
    start, begin = time.time(), time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - begin
        add(Work(stage, start, took, os.getpid(), threading.get_native_id(), about))


def summed(works: Iterable[Work]) -> list[Work]:
    """One for each stage, without what it was about: enough where there is no trace."""
    sums: dict[str, Work] = {}
    for work in works:
        before = sums.get(work.stage)
        seconds = work.seconds + (before.seconds if before else 0)
        sums[work.stage] = work._replace(seconds=seconds, about={})
    return list(sums.values())


@dataclass
class Progress:
    """Of this run of a job; images that an earlier one has done are not counted."""

    images: int  # whose detections are known
    errors: int
    total: int | None  # if that is known
    seconds: float
    bound: str | None  # the stage that is busy most of the time

    @property
    def images_per_second(self) -> float:
        return (self.images + self.errors) / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        done = self.images + self.errors
        if self.total is None or not done:
            return None
        return max(self.total - done, 0) / self.images_per_second


class Trace:
    """The file of a trace, a context; raises BatchError where it cannot be written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with self._refusing():
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (__exit__ closes it)
            try:
                self._file.write("[\n")
                self._file.flush()  # a disk that is full is told before the job begins
            except OSError:
                with contextlib.suppress(OSError):  # as it is flushed once more
                    self._file.close()
                raise

    def write(self, text: str) -> None:
        with self._refusing():
            self._file.write(text)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        with self._refusing():
            self._file.close()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise BatchError(
                f"the trace {self._path} cannot be written ({reason}): give another place, or leave it out; "
                "the tables are whole, and --resume (resume=True) does the rest"
            ) from error


class Figures:
    """Collects the time that threads work in each stage, those of other processes among them."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.images = self.errors = 0
        self.total: int | None = None
        self.threads = {stage: 1 for stage in STAGES if stage not in BESIDE}
        self._began = time.time()
        self._begin = time.perf_counter()
        self._busy = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()
        self._trace = trace

    def working(self, stage: str, **about: Any) -> contextlib.AbstractContextManager[None]:
        return measured(self.add, stage, **about)

    def add(self, work: Work) -> None:
        with self._lock:
            self._busy[work.stage] += work.seconds
            if self._trace:
                self._trace.write(self._event(work) + ",\n")

    def _event(self, work: Work) -> str:
        event = {"name": work.stage, "ph": "X", "pid": work.process, "tid": work.thread, "args": work.about}
        return json.dumps({**event, "ts": (work.start - self._began) * 1e6, "dur": work.seconds * 1e6})

    def progress(self) -> Progress:
        seconds = time.perf_counter() - self._begin
        with self._lock:
            busy = dict(self._busy)
        return Progress(self.images, self.errors, self.total, seconds, self._bound(busy))

    def _bound(self, busy: dict[str, float]) -> str | None:
        """What the threads do most that are busy most of the time; None where there was no image."""
        if not self.images + self.errors:
            return None
        used = dict.fromkeys(self.threads, 0.0)
        for stage, seconds in busy.items():
            of = BESIDE.get(stage, stage)
            used[of] += seconds / self.threads[of]
        busiest = max(used, key=lambda of: used[of])
        if not used[busiest]:
            return None
        return max((stage for stage in STAGES if BESIDE.get(stage, stage) == busiest), key=busy.__getitem__)

    def end_trace(self) -> None:
        if self._trace:
            about = {"args": {"name": "tvm-passes detect"}}
            name = {"name": "process_name", "ph": "M", "pid": os.getpid(), **about}
            self._trace.write(json.dumps(name) + "]\n")
