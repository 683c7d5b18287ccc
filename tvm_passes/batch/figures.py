"""How far a job is, how fast, and what bounds it; and the same as a trace for Chrome or Perfetto."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

STAGES = ("decode", "run", "map back", "write")


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


class Figures:
    """Collects the time that threads work in each stage."""

    def __init__(self, trace: IO[str] | None = None) -> None:
        self.images = self.errors = 0
        self.total: int | None = None
        self.threads = dict.fromkeys(STAGES, 1)
        self._begin = time.perf_counter()
        self._busy = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()
        self._trace = trace
        if trace:
            trace.write("[\n")

    @contextlib.contextmanager
    def working(self, stage: str, **about: Any) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            with self._lock:
                self._busy[stage] += took
                if self._trace:
                    self._trace.write(self._event(stage, start, took, about) + ",\n")

    def _event(self, stage: str, start: float, took: float, about: dict[str, Any]) -> str:
        event = {"name": stage, "ph": "X", "pid": 0, "tid": threading.get_native_id(), "args": about}
        return json.dumps({**event, "ts": (start - self._begin) * 1e6, "dur": took * 1e6})

    def progress(self) -> Progress:
        seconds = time.perf_counter() - self._begin
        with self._lock:
            used = {stage: busy / self.threads[stage] for stage, busy in self._busy.items()}
        busiest = max(used, key=lambda stage: used[stage])
        return Progress(self.images, self.errors, self.total, seconds, busiest if used[busiest] > 0 else None)

    def end_trace(self) -> None:
        if self._trace:
            name = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "tvm-passes detect"}}
            self._trace.write(json.dumps(name) + "]\n")
