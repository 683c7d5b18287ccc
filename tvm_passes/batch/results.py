"""What an engine gives for each image, and how whoever wants it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from .channel import CLOSED, NOTHING, Channel, Stopped
from .detector import Row
from .table import detections_schema, table_of

SECONDS_BETWEEN = 0.2  # between two moments at which the caller is told how far the job is


class Failed(NamedTuple):
    """An image that cannot be used."""

    id: str
    reason: str


@dataclass(frozen=True)
class Rows:
    """Those of several images as a table of pyarrow: a few buffers go to the process that writes them.

    There, a hundred masks of each image would be as many objects of Python, made in one thread for all GPUs.
    """

    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)


OfOneImage = Union[Row, Failed]
Result = Union[OfOneImage, Rows]


def number_of(result: Result) -> int:
    """Of how many images this is."""
    return len(result) if isinstance(result, Rows) else 1


def in_a_table(results: Sequence[OfOneImage]) -> list[Result]:
    """The same, with all rows together."""
    rows = [result for result in results if not isinstance(result, Failed)]
    failed: list[Result] = [result for result in results if isinstance(result, Failed)]
    return [*failed, Rows(table_of(rows, detections_schema()))] if rows else failed


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
