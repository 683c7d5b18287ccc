"""Large values for another process: in a file in memory, of which a connection only passes the descriptor.

A connection hands on a few hundred KB at a time, and each time one process wakes the other one; for images
and masks, a process that serves several GPUs would do little else.
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


class _InFile(NamedTuple):
    """What a connection says of a value whose file comes next."""

    sizes: list[int]  # of what is pickled, and of each buffer in it


class Parcel:
    """A value to be sent once."""

    def __init__(self, value: Any) -> None:
        parts = pickled(value)
        sizes = [part.nbytes for part in parts]
        self._message, self._file = value, None
        if sum(sizes) > SMALL and hasattr(os, "memfd_create"):
            self._message, self._file = _InFile(sizes), _file_of(parts)

    def send(self, connection: Connection) -> None:
        try:
            connection.send(self._message)
            if self._file is not None:
                send_handle(connection, self._file, None)
        finally:
            if self._file is not None:
                os.close(self._file)


def _file_of(parts: Sequence[memoryview]) -> int:
    """The descriptor of a file in memory with these bytes."""
    try:
        descriptor = os.memfd_create("tvm-passes")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.writelines(parts)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:  # which is not one of the disk that is written to
        raise BatchError(f"no memory for what goes to another process: {error}") from error
    return descriptor


def receive(connection: Connection) -> Any:
    """The value of the next parcel; its buffers stay where they are, while anything reads them."""
    message = connection.recv()
    if not isinstance(message, _InFile):
        return message
    descriptor = recv_handle(connection)
    try:
        # Not by `mmap`, which would keep a descriptor open for each.
        whole = torch.from_file(
            f"/proc/self/fd/{descriptor}", size=sum(message.sizes), dtype=torch.uint8
        ).numpy()
    finally:
        os.close(descriptor)
    view, ends = whole.data, np.cumsum(message.sizes)
    first, *buffers = (view[end - size : end] for end, size in zip(ends, message.sizes))
    return pickle.loads(first, buffers=buffers)
