"""What an engine gives for each image, and how whoever wants it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Union

from .channel import CLOSED, NOTHING, Channel, Stopped
from .detector import Row

SECONDS_BETWEEN = 0.2  # between two moments at which the caller is told how far the job is


class Failed(NamedTuple):
    """An image that cannot be used."""

    id: str
    reason: str


Result = Union[Row, Failed]


def taken_from(channel: Channel, tick: Callable[[], None]) -> Iterator[Any]:
    """What comes until the channel is closed or stopped; `tick` is called again and again meanwhile."""
    told = time.monotonic()
    while True:
        try:
            item = channel.get(SECONDS_BETWEEN)
        except Stopped:
            return
        if item is CLOSED:
            return
        if item is not NOTHING:
            yield item
        if time.monotonic() - told >= SECONDS_BETWEEN:
            tick()
            told = time.monotonic()
