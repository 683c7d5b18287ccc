"""A bounded queue between threads that can be closed by those who put, and stopped by anyone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

CLOSED = object()  # what `get` gives when nothing comes any more
NOTHING = object()  # what it gives when nothing came in time


class Stopped(Exception):
    """The work is over, whatever is left of it."""


class Channel:
    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[Any] = deque()
        lock = threading.Lock()
        self._has_room, self._has_items = threading.Condition(lock), threading.Condition(lock)
        self._is_closed = self._is_stopped = False

    def put(self, item: Any) -> None:
        """Wait for room."""
        with self._has_room:
            self._has_room.wait_for(lambda: self._is_stopped or len(self._items) < self._size)
            if self._is_stopped:
                raise Stopped
            self._items.append(item)
            self._has_items.notify()  # one: to wake all who wait, only one of whom is served, takes long

    def get(self, timeout: float | None = None) -> Any:
        """Wait for an item."""
        with self._has_items:
            self._has_items.wait_for(lambda: self._is_stopped or self._is_closed or self._items, timeout)
            if self._is_stopped:
                raise Stopped
            if not self._items:
                return CLOSED if self._is_closed else NOTHING
            item = self._items.popleft()
            self._has_room.notify()
            return item

    def close(self) -> None:
        with self._has_items:
            self._is_closed = True
            self._has_items.notify_all()

    def stop(self) -> None:
        with self._has_room:
            self._is_stopped = True
            self._has_room.notify_all()
            self._has_items.notify_all()


class Batches:
    """What comes through a channel, so many at once; the last ones may be fewer."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self._number = channel, number
        self._items: list[Any] = []

    def get(self, timeout: float | None = None) -> Any:
        """Wait for a list of items, for so long for each of them; else it is CLOSED or NOTHING."""
        while len(self._items) < self._number:
            item = self._channel.get(timeout)
            if item is NOTHING:
                return NOTHING
            if item is CLOSED:
                break
            self._items.append(item)
        items, self._items = self._items, []
        return items or CLOSED


def one_ahead(
    get: Callable[[float | None], Any], begin: Callable[[Any], Any], end: Callable[[Any], object]
) -> None:
    """Do work in two parts, `end(begin(item))`, until all is done; `get` is that of a channel.

    If the next item is there already, it is begun before the one before is ended.
    """
    begun: Any = NOTHING
    while (item := get(None if begun is NOTHING else 0)) is not CLOSED:
        before, begun = begun, NOTHING if item is NOTHING else begin(item)
        if before is not NOTHING:
            end(before)
    if begun is not NOTHING:
        end(begun)


def threads_into(
    channel: Channel,
    name: str,
    works: Sequence[Callable[[], object]],
    failed: Callable[[BaseException], object],
) -> list[threading.Thread]:
    """Started threads that put into a channel, which the last one closes.

    `failed` is told what ends a thread before its work is done; that the work is over is no failure.
    """
    turn, left = threading.Lock(), [len(works)]

    def body(work: Callable[[], object]) -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            failed(error)
        with turn:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            channel.close()

    threads = [
        threading.Thread(target=body, args=[work], name=f"{name} {number}", daemon=True)
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    return threads
