"""Large values for another process: in memory that both see, of which a connection only says what is there.

A connection hands on a few hundred KB at a time, and each time one process wakes the other one; for images
and masks, a process that serves several GPUs would do little else. The memory is used again and again: for
new memory, the system would take several times as long as the copy does.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np
import torch

from .chunks import pickled
from .errors import BatchError

SMALL = 2**16  # bytes, which a connection passes at once
BOXES = 4  # in one direction: so many values may be on their way
LEAST, MOST = 2**20, 2**26  # bytes of a box that is used again
BEGIN = 64  # of a value in its box, behind the byte that says whether there is one


class _InBox(NamedTuple):
    """What a connection says of a value in a box; the descriptor of a new box comes next."""

    number: int | None  # None: of a box for this value alone
    is_new: bool
    sizes: list[int]  # of what is pickled, and of each buffer in it


class _Box:
    """Memory that two processes see, where the one puts a value, and the other one takes it."""

    def __init__(self, descriptor: int, size: int) -> None:
        # Not by `mmap`, which would keep a descriptor open for each.
        path = f"/proc/self/fd/{descriptor}"
        self._bytes = torch.from_file(path, shared=True, size=size, dtype=torch.uint8).numpy()

    @property
    def room(self) -> int:
        return len(self._bytes) - BEGIN

    @property
    def is_full(self) -> bool:
        return bool(self._bytes[0])

    def put(self, parts: Sequence[memoryview]) -> None:
        begin = BEGIN
        for part in parts:
            self._bytes[begin : begin + part.nbytes] = np.frombuffer(part, np.uint8)
            begin += part.nbytes
        self._bytes[0] = 1

    def take(self, size: int) -> np.ndarray:
        found = self._bytes[BEGIN : BEGIN + size].copy()
        self._bytes[0] = 0
        return found


class Sender:
    """Sends values to the `Receiver` at the other end of a connection, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._boxes: dict[int, _Box] = {}

    def send(self, value: Any) -> None:
        """An OSError is one of the connection."""
        parts = pickled(value)
        sizes = [part.nbytes for part in parts]
        size = sum(sizes)
        if size <= SMALL or not hasattr(os, "memfd_create"):
            self._connection.send(value)
            return
        number = self._empty_box(size)
        box = None if number is None else self._boxes.get(number)
        if box is not None and box.room >= size:
            box.put(parts)
            self._connection.send(_InBox(number, False, sizes))
            return
        descriptor, box = _new_box(size, is_kept=number is not None)
        try:
            box.put(parts)
            self._connection.send(_InBox(number, True, sizes))
            send_handle(self._connection, descriptor, None)
        finally:
            os.close(descriptor)
        if number is not None:
            self._boxes[number] = box

    def _empty_box(self, size: int) -> int | None:
        """The number of an empty box, which may be new, or too small; None for one that is used once."""
        if size > MOST - BEGIN:
            return None
        empty = [number for number, box in self._boxes.items() if not box.is_full]
        if empty:
            return max(empty, key=lambda number: self._boxes[number].room >= size)
        return len(self._boxes) if len(self._boxes) < BOXES else None


def _new_box(size: int, is_kept: bool) -> tuple[int, _Box]:
    """The descriptor of a file in memory, and the box in it; there is memory for all of it."""
    size += BEGIN
    if is_kept:  # for larger values, too
        size = max(LEAST, 1 << (size - 1).bit_length())
    try:
        descriptor = os.memfd_create("tvm-passes")
        try:
            os.posix_fallocate(descriptor, 0, size)
            return descriptor, _Box(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:  # which is not one of the disk that is written to
        raise BatchError(f"no memory for what goes to another process: {error}") from error


class Receiver:
    """Receives what a `Sender` sends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._boxes: dict[int | None, _Box] = {}

    def receive(self) -> Any:
        message = self._connection.recv()
        if not isinstance(message, _InBox):
            return message
        size = sum(message.sizes)
        if message.is_new:
            descriptor = recv_handle(self._connection)
            try:
                self._boxes[message.number] = _Box(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        whole = self._boxes[message.number].take(size)
        self._boxes.pop(None, None)
        ends = np.cumsum(message.sizes)
        first, *buffers = (whole.data[end - each : end] for end, each in zip(ends, message.sizes))
        return pickle.loads(first, buffers=buffers)
