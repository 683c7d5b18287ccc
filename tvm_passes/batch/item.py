"""An image of a source before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from .errors import BadImage

MAX_BYTES = 2**28  # of an encoded image


class Item(NamedTuple):
    """An image that is not read yet; `read` raises BadImage if that cannot be done.

    It can be pickled, so that another process reads the image.
    """

    id: str
    read: Callable[[], bytes]
    size: int = 0  # of what it holds already


def as_text(name: str) -> str:
    """The name of a file as an id, which has to be text: other bytes are written in hexadecimal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_bytes(size: int) -> None:
    if size > MAX_BYTES:
        raise BadImage(f"has {size} bytes, more than the {MAX_BYTES} that are allowed")
