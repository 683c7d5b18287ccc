"""A progress bar on standard error: one at a time, erased when done, and only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SECONDS_BEFORE_SHOWN = 2.0
SECONDS_BETWEEN = 0.1

_display = threading.Lock()


@contextlib.contextmanager
def only_display() -> Iterator[bool]:
    """Yield whether the terminal is free; while this block has it, other blocks and threads show nothing."""
    is_free = _display.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _display.release()


@contextlib.contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to be called after each of `total` steps.

    It draws without a thread of its own, and leaves `sys.stdout` and `sys.stderr` as they are.
    """
    with only_display() as is_free:
        if not is_free or not _is_terminal():
            yield lambda: None
            return
        bar = _Bar(description, total)
        try:
            yield bar.advance
        finally:
            bar.close()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class _Bar:
    def __init__(self, description: str, total: int) -> None:
        self._description, self._total, self._done = description, total, 0
        self._progress: Any = None  # until it is shown
        self._next = time.monotonic() + SECONDS_BEFORE_SHOWN

    def advance(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS_BETWEEN
            self._show()

    def _show(self) -> None:
        if self._progress is None:
            self._progress = _started(self._description, self._total)
        self._progress.update(self._progress.task_ids[0], completed=self._done, refresh=True)

    def close(self) -> None:
        if self._progress is not None:
            self._show()
            self._progress.stop()


def _started(description: str, total: int) -> Any:
    from rich.console import Console  # these take a while to import
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = TextColumn("{task.description}"), TextColumn("{task.percentage:>3.0f}%")
    progress = Progress(
        texts[0],
        BarColumn(),
        texts[1],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task(escape(description), total=total)
    progress.start()
    return progress
