"""Who waits: a bounded number of requests, and no others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .errors import Refused


class Line:
    """Requests that are computed, `at_once` of them, and at most `max_queued` that wait for those."""

    def __init__(self, at_once: int, max_queued: int) -> None:
        self._at_once, self._max_queued = at_once, max_queued
        self._inside = 0

    @property
    def computing(self) -> int:
        return min(self._inside, self._at_once)

    @property
    def waiting(self) -> int:
        return self._inside - self.computing

    def check(self) -> None:
        """Raise if there is no place."""
        if self._inside >= self._at_once + self._max_queued:
            raise Refused(503, f"{self.waiting} requests wait already: try again later")

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        self.check()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
