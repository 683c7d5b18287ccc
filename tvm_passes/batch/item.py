"""An image of a source before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any, NamedTuple

from .errors import BadImage

MAX_BYTES = 2**28  # of an encoded image


class Item(NamedTuple):
    """An image that is not read yet; `read` raises BadImage if that cannot be done.

    It can be pickled, so that another process reads the image.
    """

    id: str
    read: Callable[[], bytes]
    size: int = 0  # of what it holds already


class Held:
    """Bytes, which a call gives; to another process they go beside what is pickled, without a copy in it."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data

    def __call__(self) -> bytes:
        return bytes(self._data)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Held, (PickleBuffer(self._data) if protocol >= 5 else bytes(self._data),)


def as_text(name: str) -> str:
    """The name of a file as an id, which has to be text: other bytes are written in hexadecimal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_bytes(size: int) -> None:
    if size > MAX_BYTES:
        raise BadImage(f"has {size} bytes, more than the {MAX_BYTES} that are allowed")
